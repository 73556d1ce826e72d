"""The options that choose where work runs, and the engine behind them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hpgmn.base.errors import SettingError
from hpgmn.cli.console import say

if TYPE_CHECKING:
    from hpgmn.engines import Engine

EngineName = Annotated[
    str, typer.Option("--engine", help="local: this machine; ray: a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: the cluster, HOST:PORT or auto [RAY_ADDRESS, else Ray is started "
        "on this machine]."
    ),
]
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Place:
    """Where work runs.

    Attributes:
        device: "cpu" or "cuda".
        engine: what runs tasks.
    """

    device: str
    engine: Engine


def check_engine(engine: str, address: str | None, workers: int | None = None) -> None:
    """Refuse options that do not go together."""
    if engine not in ENGINES:
        raise SettingError.unknown("engine", engine, ENGINES)
    if address is not None and engine != "ray":
        raise SettingError("--address is of a Ray cluster.", "Add --engine ray, or leave it out.")
    if workers is not None and workers < 1:
        raise SettingError(f"--workers must be at least 1 (got {workers}).")
    if engine == "ray":
        from hpgmn.engines.ray import require_ray

        require_ray()


@contextmanager
def open_engine(
    engine: str, address: str | None, device: str, workers: int | None = None
) -> Iterator[Place]:
    """Yield the requested engine, ready to work.

    Args:
        engine: "local" or "ray".
        address: of the cluster.
        device: "auto", "cpu" or "cuda"; auto takes GPUs where the engine has some.
        workers: tasks at a time; None: one on this machine, all cores of a cluster.
    """
    from hpgmn.runs.spec import DEVICES, resolve_device

    check_engine(engine, address, workers)
    if engine == "local":
        from hpgmn.engines.processes import LocalEngine

        yield Place(resolve_device(device), LocalEngine(workers or 1))
        return
    if device not in DEVICES:
        raise SettingError.unknown("device", device, DEVICES)
    from hpgmn.engines.ray import RayEngine, connect_ray

    with connect_ray(address) as ray:
        has_gpu = ray.cluster_resources().get("GPU", 0) >= 1
        chosen = device if device != "auto" else "cuda" if has_gpu else "cpu"
        cluster = RayEngine(ray, chosen, workers)
        say(f"{cluster}.")
        yield Place(chosen, cluster)
