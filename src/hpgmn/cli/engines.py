"""The options that say where work runs, and the engine behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from hpgmn.base.errors import SettingError
from hpgmn.cli.console import say
from hpgmn.engines import ENGINES, Engine
from hpgmn.engines.local import LocalEngine

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

_DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Place:
    """Where work runs.

    Attributes:
        device: "cpu" or "cuda".
        engine: who runs tasks.
    """

    device: str
    engine: Engine


def check_engine(engine: str, address: str | None, workers: int | None = None) -> None:
    """Refuse options that do not go together, before anything is begun."""
    if engine not in ENGINES:
        raise SettingError.unknown("engine", engine, ENGINES)
    if address is not None and engine != "ray":
        raise SettingError("--address is of a Ray cluster. Add --engine ray, or leave it out.")
    if workers is not None and workers < 1:
        raise SettingError(f"--workers must be at least 1 (got {workers}).")
    if engine == "ray":
        from hpgmn.engines.cluster import require_ray

        require_ray()


def chosen_device(name: str) -> str:
    """The device of this machine behind a name that the user gave."""
    from hpgmn.runs.spec import resolve_device

    _check_device(name)
    return resolve_device(name)


def _check_device(name: str) -> None:
    if name not in _DEVICES:
        raise SettingError.unknown("device", name, _DEVICES)


@contextmanager
def opened(
    engine: str, address: str | None, device: str, workers: int | None = None
) -> Iterator[Place]:
    """The engine that is asked for, ready to work.

    Args:
        engine: "local" or "ray".
        address: of the cluster.
        device: "auto", "cpu" or "cuda"; auto takes GPUs where the engine has some.
        workers: how many tasks at a time; None: one on this machine, all cores of a cluster.
    """
    check_engine(engine, address, workers)
    if engine == "local":
        yield Place(chosen_device(device), LocalEngine(workers or 1))
        return
    _check_device(device)
    from hpgmn.engines.cluster import RayEngine, connected

    with connected(address) as ray:
        has_gpu = ray.cluster_resources().get("GPU", 0) >= 1
        chosen = device if device != "auto" else "cuda" if has_gpu else "cpu"
        cluster = RayEngine(ray, chosen, workers)
        say(f"{cluster}.")
        yield Place(chosen, cluster)


def tell_lost(what: str) -> Callable[[str], None]:
    """Says that a task is begun again.

    Args:
        what: what kind of thing a task is.
    """

    def lost(name: str) -> None:
        say(f"Warning: the machine or process of {what} {name} is lost; it is begun again.")

    return lost
