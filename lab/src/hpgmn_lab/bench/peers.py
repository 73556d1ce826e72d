"""HP-GMN and other models on one graph: accuracy, cost, and seconds to a validation score."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Annotated, Any

from typer import Option

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.graph.datasets import load
from hpgmn.models import find_model
from hpgmn.runs.compare import settings_by_model
from hpgmn.training.checks import check_split
from hpgmn_lab.bench.graphs import LARGE, GraphSpec, generate
from hpgmn_lab.bench.options import Attributes, Degree, Epochs, Nodes, Seed
from hpgmn_lab.bench.options import changes as changes_of
from hpgmn_lab.bench.options import names as split_names
from hpgmn_lab.bench.process import ProcessFailed, run_task, say
from hpgmn_lab.bench.records import GIB, Bar, Call, Record, Table, bars_table, new_record
from hpgmn_lab.bench.trials import PYG, label

OURS = "hpgmn"

# The first trial has plain settings. Edge direction is informative on some graphs and harmful on
# others, so models that read edges try both.
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
    **dict.fromkeys(("gcn", "linkx", "fsgnn", "appnp"), _WITH_EDGES),
    "mlp": _WITHOUT_EDGES,
    **dict.fromkeys((f"{PYG}gcn", f"{PYG}linkx", f"{PYG}appnp"), _WITH_EDGES),
    f"{PYG}mlp": _WITHOUT_EDGES,
}
"""The settings of each model's trials, in the order they are tried."""

# The bars: points behind the best peer, and peers that HP-GMN has to outpace.
MAX_POINTS_BEHIND = 0.5
FASTER_THAN = ("gcn", "linkx", f"{PYG}gcn", f"{PYG}linkx")


def candidates_of(
    model: str, count: int, epochs: int, changes: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the complete settings of a model's first trials; ``changes`` apply to each."""
    entry = find_model(model.removeprefix(PYG))
    fixed = {"epochs": epochs, "patience": 0} | dict(changes)
    return [
        settings_dict(make_settings(entry.settings, trial | fixed))
        for trial in TRIALS[model][:count]
    ]


def measure(
    call: Call,
    nodes: Nodes = 100_000,
    degree: Degree = 10.0,
    attributes: Attributes = 64,
    graph: Annotated[
        str | None, Option(help="Dataset, graph file or folder instead of a generated graph.")
    ] = None,
    split: Annotated[int, Option(help="Number of the split.")] = 0,
    models: Annotated[
        str | None, Option(help="Names with commas; hpgmn is always included [all].")
    ] = None,
    trials: Annotated[int, Option(min=1, max=4, help="Trials of each model.")] = 4,
    epochs: Epochs = 20,
    peer_epochs: Annotated[int, Option(min=1, help="Epochs of all others.")] = 100,
    limit: Annotated[
        float | None, Option(min=0.001, help="Seconds for all trials of a model [none].")
    ] = None,
    seed: Seed = 0,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="[MODEL.]KEY=VALUE",
            help="Change a setting of every model that has it, or of one model.",
        ),
    ] = None,
) -> Record:
    """Compare HP-GMN with other models on one graph: accuracy, memory, seconds to a score."""
    names = list(dict.fromkeys((OURS, *(split_names(models or "") or TRIALS))))
    for name in names:
        if name not in TRIALS:
            raise SettingError.unknown("model", name, TRIALS)
    ours = {name: name.removeprefix(PYG) for name in names}
    changes = settings_by_model(list(dict.fromkeys(ours.values())), changes_of(set_))
    candidates = {
        name: candidates_of(
            name, trials, epochs if name == OURS else peer_epochs, changes[ours[name]]
        )
        for name in names
    }
    if graph is None:
        spec = GraphSpec(nodes, degree, attributes, seed)
        made = generate(spec, call.graph_folder)
        source, facts = made["path"], {"name": spec.name, "parameters": made["parameters"]}
        facts["best_accuracy"] = made["best_accuracy"]
    else:
        loaded = load(graph)
        check_split(loaded, loaded.split(split), split)
        source, facts = graph, {"name": loaded.name}
    record = new_record("peers", call, seeds={"training": seed}, settings={"trials": candidates})
    record |= {"graph": facts, "split": split, "limit": limit, "models": {}}
    for number, name in enumerate(names, start=1):
        say(f"{number} of {len(names)}: {label(name)}")
        try:
            if name.startswith(PYG) and importlib.util.find_spec("torch_geometric") is None:
                raise ProcessFailed("PyTorch Geometric is not installed")
            record["models"][name] = run_task(
                "peer",
                timeout=None if limit is None else 2 * limit + 120,  # an epoch may be long
                source=source,
                split=split,
                model=name,
                candidates=candidates[name],
                seed=seed,
                device=call.device,
                limit=limit,
            )
        except ProcessFailed as error:
            say(f"{label(name)}: {error.message}")
            record["models"][name] = {"failed": error.message}
    return record


# Read the record.


def best_validation(record: Mapping[str, Any], model: str) -> float | None:
    """Return the best validation score of a model's selected trial."""
    curve = record["models"].get(model, {}).get("curve")
    return float(curve[-1][1]) if curve else None


def seconds_to(record: Mapping[str, Any], model: str, score: float | None) -> float | None:
    """Return the seconds until a model first has a validation score; None if it never has."""
    if score is None:
        return None
    curve = record["models"].get(model, {}).get("curve") or []
    return next((float(moment) for moment, best in curve if best >= score), None)


def times_faster(record: Mapping[str, Any], peer: str) -> float | None:
    """Return how many times sooner HP-GMN has a peer's best score than the peer itself."""
    score = best_validation(record, peer)
    theirs, ours = (seconds_to(record, model, score) for model in (peer, OURS))
    return None if theirs is None or ours is None else theirs / ours


def bars(record: Mapping[str, Any]) -> list[Bar]:
    """Return the bars of HP-GMN against its peers."""
    tests = {name: result.get("test_accuracy") for name, result in record["models"].items()}
    peers = {name: score for name, score in tests.items() if name != OURS and score is not None}
    best = max(peers, key=lambda name: peers[name], default=None)
    ahead = None
    if best is not None and tests[OURS] is not None:
        ahead = 100 * (tests[OURS] - peers[best])
    what = f"test accuracy minus that of the best peer{f' ({label(best)})' if best else ''}"
    results = [Bar(what, ahead, -MAX_POINTS_BEHIND, " points", at_most=False)]
    for name in FASTER_THAN:
        if name in record["models"]:
            missing = record["models"][name].get("failed") or "its score is never reached"
            what = f"times faster than {label(name)} to its best validation score"
            ratio = times_faster(record, name)
            results.append(Bar(what, ratio, 1.0, " ×", at_most=False, why_missing=missing))
    return results


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Return accuracy and cost, the race to each peer's score, and the bars."""
    on_gpu = record["device_kind"] == "cuda"
    columns = ["model", "test %", "minus hpgmn", "validation %", "before epochs, s", "epoch, s"]
    columns += ["peak, GiB", *(["GPU, GiB"] if on_gpu else []), ""]
    costs = [_cost_row(record, name, on_gpu) for name in record["models"]]
    races = [_race_row(record, name) for name in record["models"] if name != OURS]
    race_columns = ("model", "its best validation %", "reached after, s", "hpgmn after, s")
    return [
        Table(columns, costs),
        Table((*race_columns, "times faster"), races),
        bars_table(bars(record)),
    ]


def _cost_row(record: Mapping[str, Any], name: str, on_gpu: bool) -> list[str]:
    result = record["models"][name]
    if "failed" in result:
        return [label(name), *["–"] * (6 + on_gpu), result["failed"]]
    trial = result["trials"][result["chosen"]]
    test, ours = result["test_accuracy"], record["models"][OURS].get("test_accuracy")
    difference = None if None in (test, ours) or name == OURS else test - ours
    memory = [result["peak_bytes"], *([result["device_peak_bytes"]] if on_gpu else [])]
    return [
        label(name),
        _number(test, ".1f", 100),
        "" if name == OURS else _number(difference, "+.1f", 100),
        _number(trial["val_accuracy"], ".1f", 100),
        _number(trial["preparation_seconds"], ".2f"),
        _number(trial["epoch_seconds"], ".3f"),
        *(f"{part / GIB:.2f}" for part in memory),
        _cuts(result, len(record["settings"]["trials"][name])),
    ]


def _cuts(result: Mapping[str, Any], trials: int) -> str:
    """Say what the time limit cut."""
    trial, cuts = result["trials"][result["chosen"]], []
    if not trial["is_finished"]:
        cuts.append(f"cut after {trial['epochs_trained']} of {trial['epochs']} epochs")
    if len(result["trials"]) < trials:
        cuts.append(f"{len(result['trials'])} of {trials} trials")
    return ", ".join(cuts)


def _race_row(record: Mapping[str, Any], name: str) -> list[str]:
    score = best_validation(record, name)
    if score is None:
        return [label(name), record["models"][name].get("failed", "no epoch"), "–", "–", "–"]
    ours = seconds_to(record, OURS, score)
    return [
        label(name),
        f"{100 * score:.1f}",
        _number(seconds_to(record, name, score), ".1f"),
        "never" if ours is None else f"{ours:.1f}",
        _number(times_faster(record, name), ".2f"),
    ]


def _number(value: float | None, form: str, factor: float = 1.0) -> str:
    return "–" if value is None else format(factor * value, form)
