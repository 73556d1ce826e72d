"""The cost of ``--deterministic``: seconds with and without, and whether results repeat."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
import time
from collections.abc import Mapping
from typing import Annotated, Any

from typer import Option

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import make_settings
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import MODELS, find_model
from hpgmn.models.stage import Replica
from hpgmn.training.replicas import Fitted, fit_replicas
from hpgmn.training.stage_runner import WARM_UP
from hpgmn.training.trainer import deterministic_algorithms
from hpgmn_lab.bench.options import names as split_names
from hpgmn_lab.bench.process import OtherLoad, ProgressLines, run_task
from hpgmn_lab.bench.records import Call, Record, Table, machine_name, new_record
from hpgmn_lab.bench.workers import alternate

SPLITS = 10
"""Trained at once: all splits of the generated graph."""
SIDES = ("usual", "ordered")
"""Without ``--deterministic``, and with it, as records name them."""


def measure(
    call: Call,
    models: Annotated[str | None, Option(help="Names with commas [all that a GPU trains].")] = None,
    nodes: Annotated[int, Option(min=100, help="Nodes of the generated graph.")] = 2000,
    epochs: Annotated[int, Option(min=1, help="Epochs of each stage.")] = 200,
    repeats: Annotated[int, Option(min=2, help="Repeats of both sides.")] = 3,
) -> Record:
    """Measure the cost of train --deterministic by model; on a CPU results repeat anyway."""
    on_gpu = [name for name, entry in MODELS.items() if entry.rounds is None]
    names = on_gpu if models is None else split_names(models)
    if not names:
        raise SettingError("--models needs a name.", "Omit it for all models")
    for name in names:
        find_model(name)
    settings = {"nodes": nodes, "epochs": epochs, "patience": 0, "splits": SPLITS}
    seeds = {"graph": 0, "training": 0}
    record = new_record("deterministic", call, seeds=seeds, settings=settings)

    def run(side: str) -> Record:
        return run_task(
            "deterministic",
            models=names,
            nodes=nodes,
            epochs=epochs,
            device=call.device,
            is_deterministic=side == "ordered",
        )

    return record | {"models": names, "repeats": alternate(repeats, SIDES, run)}


def train_models(
    models: list[str], nodes: int, epochs: int, device: str, is_deterministic: bool
) -> Record:
    """Train every model; return seconds and a digest of each result; in the measured process."""
    graph = trading_network(nodes, seed=0).graph
    load = OtherLoad()
    lines = ProgressLines("with" if is_deterministic else "without")

    def train(name: str, epochs: int) -> tuple[float, Fitted]:
        replicas = [Replica(split, 0, _settings(name, epochs)) for split in range(SPLITS)]
        splits = [graph.split(replica.split) for replica in replicas]
        masks = [(split.train, split.val) for split in splits]
        started = time.perf_counter()
        fitted = fit_replicas(graph, find_model(name), replicas, masks, device=device)
        return time.perf_counter() - started, fitted

    results = {}
    with deterministic_algorithms(is_deterministic, device):
        for name in models:
            train(name, WARM_UP + 1)
            seconds, fitted = train(name, epochs)
            results[name] = {"seconds": seconds, "bits": digest(fitted)}
            lines.print(f"{name} {seconds:.2f} s")
    return {"models": results, "cores_taken_by_others": load.cores()}


def _settings(name: str, epochs: int) -> Any:
    """Return a model's default settings with so many epochs of each stage and no early stopping."""
    cls = find_model(name).settings
    keys = [field.name for field in dataclasses.fields(cls)]
    values = {key: epochs for key in keys if key.endswith("epochs")}
    return make_settings(cls, values | {key: 0 for key in keys if key.endswith("patience")})


def digest(fitted: Fitted) -> str:
    """Hash the predictions and every weight of every stage."""
    tensors = {"logits": fitted.logits}
    for stage, parameters in fitted.done.items():
        tensors |= {f"{stage}/{key}": value for key, value in parameters.items()}
    result = hashlib.sha256()
    for name in sorted(tensors):
        result.update(name.encode())
        result.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return result.hexdigest()


# Read the record.


def median_seconds(record: Mapping[str, Any], model: str, side: str) -> float:
    """Return the median over repeats."""
    return statistics.median(
        float(result[side]["models"][model]["seconds"]) for result in record["repeats"]
    )


def ratios(record: Mapping[str, Any]) -> dict[str, float]:
    """Return by model how many times as long it takes with the option."""
    return {
        name: median_seconds(record, name, "ordered") / median_seconds(record, name, "usual")
        for name in record["models"]
    }


def is_repeated(record: Mapping[str, Any], model: str, side: str) -> bool:
    """Return whether all repeats of a model gave bit-identical results."""
    return len({result[side]["models"][model]["bits"] for result in record["repeats"]}) == 1


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Return a row for each model."""
    rows = [
        [
            name,
            *(f"{median_seconds(record, name, side):.2f}" for side in SIDES),
            f"{ratio:.2f} ×",
            *("yes" if is_repeated(record, name, side) else "no" for side in SIDES),
        ]
        for name, ratio in ratios(record).items()
    ]
    settings = record["settings"]
    sizes = f"{settings['nodes']:,} nodes, {SPLITS} splits, {settings['epochs']} epochs"
    columns = ("model", "s", "s, deterministic", "ratio", "bit-identical", "deterministic")
    return [Table(columns, rows, f"{sizes}, {len(record['repeats'])} repeats:")]


def summary(record: Mapping[str, Any]) -> Record:
    """Return the facts that docs/RELIABILITY.md states."""
    found = ratios(record)
    least, most = (choose(found, key=lambda name: found[name]) for choose in (min, max))
    return {
        "machine": machine_name(record),
        "median": statistics.median(found.values()),
        "models": len(found),
        "least": (found[least], least),
        "most": (found[most], most),
        "same": [sum(is_repeated(record, name, side) for name in found) for side in SIDES[::-1]],
    }
