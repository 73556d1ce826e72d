"""Measure the package under the same conditions as yardstick.py, with the same options and record.

``--timed-epochs`` times epochs (a training step and an evaluation) of the paper's model.
``--shipped`` uses the settings shipped for the graph and, without ``--timed-epochs``, trains in
full: everything ``hpgmn train`` does except the report page. With neither it trains the paper's
model in full, all splits at once, from the graph file to the scores.

    python lab/benchmarks/ours.py shared/data/squirrel.npz --splits 0 --timed-epochs 4 --hidden 128
    python lab/benchmarks/ours.py shared/data/squirrel.npz --shipped
    python lab/benchmarks/ours.py shared/data/squirrel.npz --device cuda --tf32
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from hpgmn.base.randomness import load_kernels
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.evaluation.scores import scores
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.models import find_model, read_config, settings_for
from hpgmn.models.stage import Replica
from hpgmn.runs.fit import fit_run
from hpgmn.runs.spec import RunSpec
from hpgmn.training.replicas import Fitted, fit_replicas
from hpgmn_lab.bench.process import OtherLoad, StageClock
from yardstick import peak_resident_bytes, resident_bytes

MODEL = "hpgmn"


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the complete settings of this measurement."""
    if options.shipped:
        values = settings_for(options.graph.stem, MODEL)
    else:
        values = read_config("paper")["settings"] | {"diffusion_form": options.diffusion_form}
        if options.adjacency_rows:
            kinds = ["attributes", "class_counts", "class_means", "adjacency"]
            values |= {"statistics": kinds, "adjacency_dropout": 0.0, "adjacency_scaling": "raw"}
        if options.neighbors is not None:
            values["neighbors"] = options.neighbors
    if options.tf32:
        values["precision"] = "tf32"
    if options.hidden is not None:
        values |= {"hidden_dim": options.hidden, "estimator_hidden": options.hidden}
    if options.patterns is not None:
        values["num_patterns"] = options.patterns
    if options.timed_epochs is not None:  # so many epochs of each stage, no early stopping
        limits = ("epochs", "estimator_epochs")
        values |= dict.fromkeys(limits, options.timed_epochs)
        values |= dict.fromkeys(("patience", "estimator_patience"), 0)
    return settings_dict(make_settings(find_model(MODEL).settings, values))


def timed_epochs(
    graph: Graph, values: dict[str, Any], splits: list[int], at_once: int
) -> list[dict[str, Any]]:
    """Train so many splits at once for the epochs of the settings; return one row per batch."""
    rows = []
    for batch in (splits[first : first + at_once] for first in range(0, len(splits), at_once)):
        clock = StageClock()
        fitted = fit(graph, values, batch, report=clock)
        epochs = clock.epochs["main"]
        rows.append(
            {
                "splits": batch,
                "epochs_trained": len(epochs),
                "seconds_statistics": fitted.seconds["statistics"],
                "seconds_estimator": sum(clock.epochs["estimator"]),
                "seconds_epochs": sum(epochs),
                "seconds_per_epoch": statistics.median(epochs) / len(batch),  # of one split
                "seconds_of_epochs": epochs,
            }
        )
    return rows


def fit(graph: Graph, values: dict[str, Any], splits: list[int], **options: Any) -> Fitted:
    """Train HP-GMN on some splits at once."""
    entry = find_model(MODEL)
    settings = make_settings(entry.settings, values)
    masks = [(graph.split(split).train, graph.split(split).val) for split in splits]
    replicas = [Replica(split, 0, settings) for split in splits]
    return fit_replicas(graph, entry, replicas, masks, **options)


def epochs_alone(best: list[int], settings: dict[str, Any]) -> list[int]:
    """Return how many epochs each run trains when alone: until its patience ends.

    >>> epochs_alone([10, 290], {"epochs": 300, "patience": 100})
    [110, 300]
    """
    limit = settings["epochs"]
    return [min(limit, epoch + (settings["patience"] or limit)) for epoch in best]


def whole_run(path: Path, values: dict[str, Any], splits: list[int] | None) -> dict[str, Any]:
    """Train all splits in full, from the graph file to the files of a run folder."""
    started = time.perf_counter()
    graph = load(path)
    assert graph.splits is not None
    numbers = tuple(range(len(graph.splits)) if splits is None else splits)
    spec = RunSpec(graph=str(path), model=MODEL, settings=values, splits=numbers)
    with tempfile.TemporaryDirectory() as folder:
        metrics = fit_run(spec, graph, Path(folder)).metrics
        seconds = time.perf_counter() - started
    return {
        "splits": list(numbers),
        "seconds_total": seconds,
        "seconds_statistics": metrics["seconds_statistics"],
        "seconds_training": metrics["seconds_training"],
        "epochs_trained": epochs_alone(metrics["epochs"], values),
        "accuracy_mean": 100 * metrics["test_accuracy_mean"],
        "accuracy_std": 100 * metrics["test_accuracy_std"],
        "accuracy": [100 * value for value in metrics["test_score"]],
    }


def in_full(
    path: Path, values: dict[str, Any], splits: list[int] | None, device: str
) -> dict[str, Any]:
    """Train all splits at once and score them, from the graph file on, as the yardstick does."""
    if device == "cuda":
        load_kernels()  # an import like the others
        torch.cuda.synchronize()  # the yardstick's clock, too, starts when the GPU is there
    started = time.perf_counter()
    graph = load(path)
    assert graph.splits is not None
    numbers = list(range(len(graph.splits)) if splits is None else splits)
    fitted = fit(graph, values, numbers, device=device)
    tests = [graph.split(number).test for number in numbers]
    accuracy = [100 * score for score in scores(fitted.logits, graph.y, tests, "accuracy")]
    return {
        "splits": numbers,
        "seconds_total": time.perf_counter() - started,
        "seconds_statistics": fitted.seconds["statistics"],
        "seconds_training": fitted.seconds["training"],
        "seconds_epochs": fitted.seconds["training main"],
        "epochs_trained": values["epochs"],
        "accuracy_mean": statistics.mean(accuracy),
        "accuracy_std": statistics.stdev(accuracy) if len(accuracy) > 1 else None,
        "accuracy": accuracy,
        "val_accuracy": [100 * score for score in fitted.val_score.tolist()],
    }


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", type=Path, help="graph file (.npz)")
    parser.add_argument("--splits", type=int, nargs="+", help="stored splits (default: all)")
    parser.add_argument("--shipped", action="store_true", help="the graph's shipped settings")
    parser.add_argument("--hidden", type=int, help="width (default: as the settings have it)")
    parser.add_argument("--patterns", type=int, help="K (default: as the settings have it)")
    parser.add_argument("--neighbors", choices=["out", "undirected"], help="default: out")
    parser.add_argument("--adjacency-rows", action="store_true", help="rows of A in place of S")
    parser.add_argument("--diffusion-form", choices=["dense", "implicit"], default="dense")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cpu")
    parser.add_argument("--tf32", action="store_true", help="products in TF32 on a GPU")
    parser.add_argument("--timed-epochs", type=int, metavar="N", help="N epochs only; no accuracy")
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="R", help="splits at once, when timing epochs"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    options = parser.parse_args(arguments)
    if options.timed_epochs is not None and options.timed_epochs < 1:
        parser.error("--timed-epochs must be at least 1")
    if options.replicas < 1:
        parser.error("--replicas must be at least 1")
    if options.device == "cuda" and (options.timed_epochs is not None or options.shipped):
        parser.error("--device cuda is for the paper's model in full")
    return options


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print and return the record."""
    baseline = resident_bytes()
    options = parsed(arguments)
    values = settings_of(options)
    load_of_others = OtherLoad()
    record: dict[str, Any] = {"graph": options.graph.stem, "settings": values}
    if options.timed_epochs is None and not options.shipped:
        record |= in_full(options.graph, values, options.splits, options.device)
        print(
            f"{len(record['splits'])} splits: test {record['accuracy_mean']:.2f} %, "
            f"{record['seconds_total']:.2f} s in all, {record['seconds_statistics']:.2f} s of it "
            f"statistics and {record['seconds_training']:.2f} s training"
        )
    elif options.timed_epochs is None:
        record |= whole_run(options.graph, values, options.splits)
        print(
            f"{len(record['splits'])} splits: test {record['accuracy_mean']:.2f} % "
            f"± {record['accuracy_std']:.2f}, {record['seconds_total']:.1f} s in all"
        )
    else:
        graph = load(options.graph)
        assert graph.splits is not None
        splits = options.splits or list(range(len(graph.splits)))
        rows = timed_epochs(graph, values, splits, options.replicas)
        record["seconds_per_epoch"] = statistics.median(row["seconds_per_epoch"] for row in rows)
        record["runs"] = rows
        print(f"{record['seconds_per_epoch']:.4f} s per split and epoch")
    record |= {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "replicas": options.replicas,
        "peak_memory_bytes": peak_resident_bytes() - baseline,
        "cores_taken_by_others": load_of_others.cores(),
    }
    print(f"peak memory above imports {record['peak_memory_bytes'] / 2**20:.0f} MiB")
    if record["cores_taken_by_others"] > 0.1:
        taken = record["cores_taken_by_others"]
        print(f"warning: others kept {taken:.1f} cores busy: these times are too long")
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


if __name__ == "__main__":
    os.environ["HPGMN_CACHE"] = "off"  # every measurement computes its statistics
    main()
