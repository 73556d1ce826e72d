"""HP-GMN beside other models on one graph: who reaches which score after how many seconds."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.graph.datasets import load
from hpgmn.models import find_model
from hpgmn.training.checks import check_split
from hpgmn_lab.bench.graphs import GraphSpec, check_spec, generated
from hpgmn_lab.bench.processes import ProcessFailed, measured
from hpgmn_lab.bench.records import Bar, Record, Table, bars_table, head
from hpgmn_lab.bench.settings import LARGE
from hpgmn_lab.bench.trials import PYG, label

OURS = "hpgmn"
NO_PYG = "PyTorch Geometric is not installed"
GIB = 2**30

# The first trial is the plain one. Directed edges tell more than both directions as one on some
# graphs and less on others, so models that read edges try both.
_LIGHT = {"hidden_dim": 64, "dropout": 0.2, "weight_decay": 1e-5}
_STRONG = {"hidden_dim": 64, "dropout": 0.5, "weight_decay": 5e-4}
_WITH_EDGES: tuple[dict[str, Any], ...] = (
    {"lr": 0.01, "neighbors": "undirected", **_LIGHT},
    {"lr": 0.01, "neighbors": "out", **_LIGHT},
    {"lr": 0.05, "neighbors": "out", **_LIGHT},
    {"lr": 0.05, "neighbors": "undirected", **_STRONG},
)
_WITHOUT_EDGES: tuple[dict[str, Any], ...] = (
    {"lr": 0.01, **_LIGHT},
    {"lr": 0.05, **_LIGHT},
    {"lr": 0.01, **_STRONG},
    {"lr": 0.05, **_STRONG},
)
TRIALS: dict[str, tuple[dict[str, Any], ...]] = {
    OURS: (LARGE, LARGE | {"lr": 0.02}, LARGE | {"lr": 0.005}, LARGE | {"dropout": 0.0}),
    "gcn": _WITH_EDGES,
    "linkx": _WITH_EDGES,
    "fsgnn": _WITH_EDGES,
    "appnp": _WITH_EDGES,
    "mlp": _WITHOUT_EDGES,
    f"{PYG}gcn": _WITH_EDGES,
    f"{PYG}linkx": _WITH_EDGES,
    f"{PYG}appnp": _WITH_EDGES,
    f"{PYG}mlp": _WITHOUT_EDGES,
}
"""Every model that can be compared, with the settings of its trials in the order they are tried."""

ABOUT = """\
One graph, one split, one model after the other, each in a fresh process with the same number of
trials, of which validation chooses one; its test score is read once. Peers train on all nodes in
one step; *PyG* are PyTorch Geometric's own classes in a plain loop. *Before epochs* is everything
that a model needs first: for hpgmn the label estimator and the statistics. The second table is a
race: after how many seconds a peer has its best validation score, and after how many hpgmn has that
score, both from the opened graph on."""

BEHIND = 0.5
"""HP-GMN may be so many points behind the best peer."""
FASTER_THAN = ("gcn", "linkx", f"{PYG}gcn", f"{PYG}linkx")
"""The peers whose best validation score HP-GMN has to reach sooner than they do."""


def chosen_models(names: Sequence[str]) -> list[str]:
    """The models to measure, HP-GMN always and first."""
    for name in names:
        if name not in TRIALS:
            raise SettingError.unknown("model", name, TRIALS)
    return [OURS, *(name for name in dict.fromkeys(names) if name != OURS)]


def candidates_of(
    model: str, count: int, epochs: int, changes: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The settings of a model's trials, complete and checked.

    Args:
        model: its name.
        count: how many trials.
        epochs: of each trial.
        changes: what is other than in :data:`TRIALS`.
    """
    entry = find_model(model.removeprefix(PYG))
    fixed = {"epochs": epochs, "patience": 0} | dict(changes)
    return [
        settings_dict(make_settings(entry.settings, one | fixed)) for one in TRIALS[model][:count]
    ]


def measure(
    out: Path,
    *,
    command: str,
    graph: GraphSpec | str,
    split: int = 0,
    models: Sequence[str] = tuple(TRIALS),
    trials: int = 4,
    epochs: int = 20,
    peer_epochs: int = 100,
    changes: Mapping[str, Mapping[str, Any]],
    limit: float | None = None,
    seed: int = 0,
    graphs: Path | None = None,
    device: str = "cpu",
    say: Callable[[str], None],
) -> Record:
    """Train every model on the same split, each in a fresh process, one after the other.

    Args:
        out: the folder of the benchmark.
        command: what to type to make the record again.
        graph: a generated graph, or a dataset's name, graph file or folder.
        split: the number of the split.
        models: names in :data:`TRIALS`.
        trials: how many trials each model has.
        epochs: of HP-GMN.
        peer_epochs: of all others.
        changes: for each model the settings that are other than in :data:`TRIALS`.
        limit: seconds for all trials of a model; None for no limit.
        seed: of the trainings.
        graphs: where the generated graph is kept; None for a folder inside ``out``.
        device: "cpu" or "cuda".
        say: called with a line of progress.
    """
    names = chosen_models(models)
    most = len(TRIALS[OURS])
    if not 1 <= trials <= most:
        raise SettingError(f"--trials must be from 1 to {most} (got {trials}).")
    if limit is not None and limit <= 0:
        raise SettingError(f"--limit must be above 0 seconds (got {limit:g}).")
    candidates = {
        name: candidates_of(
            name, trials, epochs if name == OURS else peer_epochs, changes.get(name, {})
        )
        for name in names
    }
    source, about = _graph(graph, split, graphs or out / "graphs", say)
    record = head(
        "peers", command, device, seeds={"training": seed}, settings={"trials": candidates}
    )
    record |= {"graph": about, "split": split, "limit": limit, "models": {}}
    for number, name in enumerate(names, start=1):
        say(f"{number} of {len(names)}: {label(name)}")
        try:
            if name.startswith(PYG) and importlib.util.find_spec("torch_geometric") is None:
                raise ProcessFailed(NO_PYG)
            record["models"][name] = measured(
                "peer",
                patience=None if limit is None else 2 * limit + 120,  # one epoch may be too long
                source=source,
                split=split,
                model=name,
                candidates=candidates[name],
                seed=seed,
                device=device,
                limit=limit,
                launched=time.time(),
            )
        except ProcessFailed as error:
            say(f"{label(name)}: {error}")
            record["models"][name] = {"failed": str(error)}
    return record


def _graph(
    graph: GraphSpec | str, split: int, folder: Path, say: Callable[[str], None]
) -> tuple[str, Record]:
    """Where the graph is found, and what the record says of it."""
    if isinstance(graph, GraphSpec):
        check_spec(graph)
        say(f"{graph.nodes:,} nodes: the graph")
        made = generated(graph, folder)
        return made["path"], {
            "name": graph.name,
            "parameters": made["parameters"],
            "best_accuracy": made["best_accuracy"],
        }
    found = load(graph)
    check_split(found, found.split(split), split)
    return graph, {"name": found.name}


# What the record says.


def reached(record: Mapping[str, Any], model: str) -> float | None:
    """The best validation score of a model's chosen trial; None where it has none."""
    own = record["models"].get(model, {})
    return float(own["curve"][-1][1]) if own.get("curve") else None


def seconds_to(record: Mapping[str, Any], model: str, score: float | None) -> float | None:
    """Seconds until a model first has a validation score, its preparation counted; None: never."""
    if score is None:
        return None
    curve = record["models"].get(model, {}).get("curve") or []
    return next((float(moment) for moment, best in curve if best >= score), None)


def times_faster(record: Mapping[str, Any], peer: str) -> float | None:
    """How many times sooner HP-GMN has a peer's best score than the peer itself."""
    score = reached(record, peer)
    theirs, ours = (seconds_to(record, model, score) for model in (peer, OURS))
    return None if theirs is None or ours is None else theirs / ours


def bars(record: Mapping[str, Any]) -> list[Bar]:
    """What HP-GMN has to reach beside its peers."""
    tests = {name: own.get("test_accuracy") for name, own in record["models"].items()}
    peers = {name: score for name, score in tests.items() if name != OURS and score is not None}
    best = max(peers, key=lambda name: peers[name], default=None)
    ahead = None
    if best is not None and tests[OURS] is not None:
        ahead = 100 * (tests[OURS] - peers[best])
    found = [
        Bar(
            f"test accuracy minus that of the best peer{f' ({label(best)})' if best else ''}",
            ahead,
            -BEHIND,
            " points",
            at_most=False,
        )
    ]
    for name in FASTER_THAN:
        if name not in record["models"]:
            continue
        missing = record["models"][name].get("failed") or "its score is never reached"
        found.append(
            Bar(
                f"times faster than {label(name)} to its best validation score",
                times_faster(record, name),
                1.0,
                " ×",
                at_most=False,
                why_missing=missing,
            )
        )
    return found


def tables(record: Mapping[str, Any]) -> list[Table]:
    """The record as tables: accuracy and cost, then who is sooner, then the bars."""
    on_gpu = record["device_kind"] == "cuda"
    columns = ["model", "test %", "minus hpgmn", "validation %", "before epochs, s", "epoch, s"]
    columns += ["peak, GiB", *(["GPU, GiB"] if on_gpu else []), ""]
    costs = [_cost_row(record, name, on_gpu) for name in record["models"]]
    races = [_race_row(record, name) for name in record["models"] if name != OURS]
    return [
        Table(columns, costs),
        Table(
            (
                "model",
                "its best validation %",
                "reached after, s",
                "hpgmn after, s",
                "times faster",
            ),
            races,
        ),
        bars_table(bars(record)),
    ]


def _cost_row(record: Mapping[str, Any], name: str, on_gpu: bool) -> list[str]:
    own, width = record["models"][name], 7 + on_gpu
    if "failed" in own:
        return [label(name), *["–"] * (width - 1), own["failed"]]
    trial = own["trials"][own["chosen"]]
    test, ours = own["test_accuracy"], record["models"][OURS].get("test_accuracy")
    behind = None if None in (test, ours) or name == OURS else 100 * (test - ours)
    memory = [own["peak_bytes"], *([own["device_peak_bytes"]] if on_gpu else [])]
    return [
        label(name),
        _number(None if test is None else 100 * test, ".1f"),
        "" if name == OURS else _number(behind, "+.1f"),
        _number(None if trial["val_accuracy"] is None else 100 * trial["val_accuracy"], ".1f"),
        _number(trial["preparation_seconds"], ".2f"),
        _number(trial["epoch_seconds"], ".3f"),
        *(_number(part / GIB, ".2f") for part in memory),
        _cut_words(own, len(record["settings"]["trials"][name])),
    ]


def _cut_words(own: Mapping[str, Any], trials: int) -> str:
    """What the limit kept a model from doing."""
    trial, words = own["trials"][own["chosen"]], []
    if not trial["is_finished"]:
        words.append(f"cut after {trial['epochs_trained']} of {trial['epochs']} epochs")
    if len(own["trials"]) < trials:
        words.append(f"{len(own['trials'])} of {trials} trials")
    return ", ".join(words)


def _race_row(record: Mapping[str, Any], name: str) -> list[str]:
    own, score = record["models"][name], reached(record, name)
    if score is None:
        return [label(name), own.get("failed", "no epoch"), "–", "–", "–"]
    ours = seconds_to(record, OURS, score)
    return [
        label(name),
        f"{100 * score:.1f}",
        _number(seconds_to(record, name, score), ".1f"),
        "never" if ours is None else f"{ours:.1f}",
        _number(times_faster(record, name), ".2f"),
    ]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def disturbance(record: Mapping[str, Any]) -> float:
    """The most cores that others took during any of the measurements."""
    taken = (own.get("cores_taken_by_others") or 0.0 for own in record["models"].values())
    return max(taken, default=0.0)
