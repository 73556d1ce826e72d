"""What ``--deterministic`` costs: seconds with it and without, and whether bits repeat."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import make_settings
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import MODELS, find_model
from hpgmn.models.stage import Replica
from hpgmn.training.numerics import deterministic_algorithms
from hpgmn.training.replay import WARM_UP
from hpgmn.training.replicas import Fitted, fit_replicas
from hpgmn_lab.bench.clock import Lines
from hpgmn_lab.bench.machine import Neighbours
from hpgmn_lab.bench.processes import required
from hpgmn_lab.bench.records import Record, Table, disturbance_of_sides, head

SPLITS = 10
"""Trained at once: as many as the generated graph has."""
SIDES = ("usual", "ordered")
"""Without ``--deterministic``, and with it."""

ABOUT = f"""\
A GPU adds in whatever order its threads come, where that is faster; with `--deterministic` it keeps
to one order. Every model with its own settings is trained on {SPLITS} splits of a generated graph,
all at once, without and with the switch. Each side of a repeat is a fresh process, and the order of
both changes from repeat to repeat. Seconds are the median over repeats, from the graph to the
predictions; each model is trained for a few epochs before, because libraries set themselves up in
its first ones. Bits repeat where weights and predictions of all repeats were equal to the last
bit."""


def measure(
    *,
    command: str,
    models: Sequence[str] | None = None,
    nodes: int = 2000,
    epochs: int = 200,
    repeats: int = 3,
    device: str = "cpu",
    say: Callable[[str], None],
) -> Record:
    """Train every model without and with the switch, in turns.

    Args:
        command: what to type to make the record again.
        models: their names; None for all.
        nodes: of the generated graph.
        epochs: of each stage; none is skipped.
        repeats: how often both sides are measured, at least twice.
        device: "cpu" or "cuda".
        say: called with a line of progress.
    """
    names = list(MODELS) if models is None else list(models)
    if not names:
        raise SettingError("--models needs a name. Leave it out for all models.")
    for name in names:
        find_model(name)
    if repeats < 2:
        raise SettingError(f"--repeats must be at least 2, to compare bits (got {repeats}).")
    for option, value, least in (("--nodes", nodes, 100), ("--epochs", epochs, 1)):
        if value < least:
            raise SettingError(f"{option} must be at least {least} (got {value}).")
    settings = {"nodes": nodes, "epochs": epochs, "patience": 0, "splits": SPLITS}
    seeds = {"graph": 0, "training": 0}
    record = head("deterministic", command, device, seeds=seeds, settings=settings)
    record |= {"models": names, "repeats": []}
    for number in range(repeats):
        found = {}
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            words = "with" if side == "ordered" else "without"
            say(f"repeat {number + 1} of {repeats}: {words} --deterministic")
            found[side] = required(
                "deterministic",
                models=names,
                nodes=nodes,
                epochs=epochs,
                device=device,
                is_asked=side == "ordered",
            )
        record["repeats"].append(found)
    return record


# In the measured process.


def one_side(models: list[str], nodes: int, epochs: int, device: str, is_asked: bool) -> Record:
    """Seconds and bits of every model; a task of the worker.

    Args:
        models: their names.
        nodes: of the generated graph.
        epochs: of each stage.
        device: "cpu" or "cuda".
        is_asked: whether the same bits are asked for.
    """
    graph = trading_network(nodes, seed=0).graph
    neighbours, tell = Neighbours(), Lines("with" if is_asked else "without")

    def trained(name: str, epochs: int) -> tuple[float, Fitted]:
        replicas = [Replica(split, 0, _settings(name, epochs)) for split in range(SPLITS)]
        own = [graph.split(replica.split) for replica in replicas]
        masks = [(one.train, one.val) for one in own]
        started = time.perf_counter()
        fitted = fit_replicas(graph, find_model(name), replicas, masks, device=device)
        return time.perf_counter() - started, fitted

    found = {}
    with deterministic_algorithms(is_asked, device):
        for name in models:
            trained(name, WARM_UP + 1)
            seconds, fitted = trained(name, epochs)
            found[name] = {"seconds": seconds, "bits": bits(fitted)}
            tell.say(f"{name} {seconds:.2f} s")
    return {"models": found, "cores_taken_by_others": neighbours.cores_taken()}


def _settings(name: str, epochs: int) -> Any:
    """A model's own settings, but so many epochs of each stage, none of them skipped."""
    cls = find_model(name).settings
    known = [info.name for info in dataclasses.fields(cls)]
    values = {one: epochs for one in known if one.endswith("epochs")}
    return make_settings(cls, values | {one: 0 for one in known if one.endswith("patience")})


def bits(fitted: Fitted) -> str:
    """A digest of the predictions and of every weight of every stage."""
    tensors = {"logits": fitted.logits}
    for stage, parameters in fitted.done.items():
        tensors |= {f"{stage}/{key}": value for key, value in parameters.items()}
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


# What the record says.


def seconds_of(record: Mapping[str, Any], model: str, side: str) -> float:
    """The median over repeats."""
    each = [float(found[side]["models"][model]["seconds"]) for found in record["repeats"]]
    return statistics.median(each)


def ratios(record: Mapping[str, Any]) -> dict[str, float]:
    """For each model how many times as long it takes with the switch."""
    return {
        name: seconds_of(record, name, "ordered") / seconds_of(record, name, "usual")
        for name in record["models"]
    }


def repeated(record: Mapping[str, Any], model: str, side: str) -> bool:
    """Whether all repeats of a model ended with the same bits."""
    return len({found[side]["models"][model]["bits"] for found in record["repeats"]}) == 1


def tables(record: Mapping[str, Any]) -> list[Table]:
    """The record as a table."""
    rows = [
        [
            name,
            *(f"{seconds_of(record, name, side):.2f}" for side in SIDES),
            f"{ratio:.2f} ×",
            *("yes" if repeated(record, name, side) else "no" for side in SIDES),
        ]
        for name, ratio in ratios(record).items()
    ]
    asked = record["settings"]
    what = f"{asked['nodes']:,} nodes, {SPLITS} splits, {asked['epochs']} epochs"
    columns = ("model", "s", "s with the switch", "ratio", "bits repeat", "with the switch")
    return [Table(columns, rows, f"{what}, {len(record['repeats'])} repeats:")]


def cost(record: Mapping[str, Any]) -> str:
    """What the switch costs, in a sentence."""
    found = ratios(record)
    least, most = min(found, key=lambda name: found[name]), max(found, key=lambda name: found[name])
    where = record["device"] if record["device_kind"] == "cuda" else record["processor"]
    same = sum(repeated(record, name, "ordered") for name in found)
    usual = sum(repeated(record, name, "usual") for name in found)
    return (
        f"On {where} a training with the switch takes {statistics.median(found.values()):.2f} "
        f"times as long (the median of {len(found)} models; from {found[least]:.2f} for {least} to "
        f"{found[most]:.2f} for {most}). Bits repeat for {same} of the {len(found)} with it, for "
        f"{usual} without."
    )


disturbance = disturbance_of_sides
