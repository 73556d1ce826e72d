"""``docs/RESULTS.md`` from the records in ``results/``: run by ``make results``.

Reads ``runs/*/metrics.json`` (what ``hpgmn train`` wrote), ``search/*.jsonl`` (every trial of the
searches, with the round it belongs to) and ``notes.yaml`` (what was tried on a row that stays short
of the paper). The same records always give the same page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.config import make_settings, read_yaml, settings_dict
from hpgmn.datasets import DATASETS
from hpgmn.errors import HPGMNError
from hpgmn.evaluation import Score
from hpgmn.experiments import paper
from hpgmn.experiments.run import METRICS_FILE, write_text
from hpgmn.models import MODELS, find_model
from hpgmn.shipped import settings_for

PAGE = "RESULTS.md"
RUNS, SEARCH, NOTES = "runs", "search", "notes.yaml"
ROUNDS = ("first", "second", "finalists")

_CITATION_MODELS = ("hpgmn-gcn", "hpgmn-appnp")
_NEEDED = (
    *("graph", "model", "metric", "splits", "seeds", "test_score", "test_score_mean"),
    *("test_score_std", "val_score", "label_estimator", "seconds", "version", "config"),
    *("hardware", "created"),
)
_ONLY_DIFFUSION = {"diffusion", "teleport", "heat_time", "normalization"}


@dataclass(frozen=True)
class Record:
    """One run folder: its name, its test scores in percent and its whole ``metrics.json``."""

    folder: str
    graph: str
    model: str
    score: Score  # split by split, seeds inside
    metrics: Mapping[str, Any]

    def against(self, published_mean: float) -> paper.Verdict:
        """The verdict over independent runs."""
        splits, seeds = len(self.metrics["splits"]), int(self.metrics["seeds"])
        values = paper.independent_values(self.score.values, splits, seeds)
        return paper.reached(self.graph, values, published_mean)


Rows = dict[tuple[str, str], Record | None]
"""The lines of a table: (graph, model) → the record, None where the run is still missing."""


def read_records(folder: Path) -> list[Record]:
    """Every run under a folder, checked: as many scores as runs, and the mean they have."""
    if not folder.is_dir():
        raise HPGMNError(f"There is no folder {folder}. Train with --out {folder}/GRAPH-MODEL.")
    return [_record(path) for path in sorted(folder.glob(f"*/{METRICS_FILE}"))]


def _record(path: Path) -> Record:
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise HPGMNError(f"{path} is not valid JSON ({error}).") from None
    if missing := [name for name in _NEEDED if name not in metrics]:
        raise HPGMNError(f"{path} lacks {', '.join(missing)}. Train that run again.")
    runs = len(metrics["splits"]) * metrics["seeds"]
    for name in ("test_score", "val_score"):
        if len(metrics[name]) != runs:
            raise HPGMNError(f"{path} must hold {runs} values of {name} ({len(metrics[name])}).")
    score = Score.of([100 * value for value in metrics["test_score"]])
    for name, ours in (("test_score_mean", score.mean), ("test_score_std", score.std)):
        if abs(100 * metrics[name] - ours) > 1e-6:
            raise HPGMNError(f"{path}: {name} is not that of its scores. Train that run again.")
    return Record(path.parent.name, metrics["graph"], metrics["model"], score, metrics)


def read_trials(folder: Path) -> list[dict[str, Any]]:
    """Every trial of the searches; a folder that does not exist has none."""
    trials = []
    for path in sorted(folder.glob("*.jsonl")):
        for place, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if not line.strip():
                continue
            try:
                trial = json.loads(line)
                missing = {"graph", "model", "round", "trial", "val_score", "val_loss"} - set(trial)
            except (ValueError, TypeError):
                raise HPGMNError(f"{path} line {place} is not a JSON object.") from None
            if missing:
                raise HPGMNError(f"{path} line {place} lacks {', '.join(sorted(missing))}.")
            trials.append(trial)
    return trials


def read_notes(path: Path, rows: Rows) -> dict[str, str]:
    """What was tried, by row (GRAPH-MODEL); every row short of the paper must have its note."""
    content = read_yaml(path) if path.exists() else {}
    notes = {str(name): " ".join(str(text).split()) for name, text in content.items()}
    unknown = sorted(set(notes) - {f"{graph}-{model}" for graph, model in rows})
    if unknown:
        raise HPGMNError(f"{path} speaks of {', '.join(unknown)}, which no table has.")
    missing = [name for name in short_rows(rows) if not notes.get(name)]
    if missing:
        raise HPGMNError(
            f"Short of the paper without a note: {', '.join(missing)}. Say in {path} what was "
            "tried, as 'GRAPH-MODEL: sentence'."
        )
    return notes


def verdict_of(record: Record) -> paper.Verdict | None:
    """The verdict against the paper; None where it has no such cell."""
    cell = paper.published(record.model, record.graph)
    return record.against(cell.mean) if cell else None


def short_rows(rows: Rows) -> dict[str, paper.Verdict]:
    """The rows that do not reach the paper: GRAPH-MODEL → verdict."""
    found = {f"{graph}-{model}": verdict_of(one) for (graph, model), one in rows.items() if one}
    return {name: verdict for name, verdict in found.items() if verdict and not verdict.is_reached}


def table_rows(records: Sequence[Record]) -> tuple[Rows, Rows, list[Record]]:
    """The rows of the two tables, and the records that are in neither.

    A row takes a record of all the paper's splits: the public one of a citation graph, ten of any
    other. Where there are several such records, it takes that of the folder GRAPH-MODEL.
    """
    heterophily: Rows = {}
    for graph in _in_order({*paper.HETEROPHILOUS, *(record.graph for record in records)}):
        record = _row_record(records, graph, "hpgmn")
        if graph not in paper.CITATION and (record or graph in paper.HETEROPHILOUS):
            heterophily[graph, "hpgmn"] = record
    citation: Rows = {
        (graph, model): _row_record(records, graph, model)
        for model in _CITATION_MODELS
        for graph in paper.CITATION
    }
    used = {one.folder for one in (*heterophily.values(), *citation.values()) if one}
    return heterophily, citation, [one for one in records if one.folder not in used]


def _row_record(records: Sequence[Record], graph: str, model: str) -> Record | None:
    splits = list(range(1 if graph in paper.CITATION else 10))
    asked = (graph, model, splits)
    whole = [one for one in records if (one.graph, one.model, one.metrics["splits"]) == asked]
    if len(whole) < 2:
        return whole[0] if whole else None
    for record in whole:
        if record.folder == f"{graph}-{model}":
            return record
    folders = ", ".join(record.folder for record in whole)
    raise HPGMNError(
        f"{folders} are all {model} on {graph}: name the folder of the row {graph}-{model}."
    )


def _in_order(graphs: Iterable[str]) -> list[str]:
    """Graphs in the registry's order, unknown ones last."""
    order = {name: place for place, name in enumerate(DATASETS)}
    return sorted(graphs, key=lambda graph: (order.get(graph, len(order)), graph))


def command(record: Record) -> str:
    """The command that repeats a run: whatever is not shipped or default is spelt out."""
    config = record.metrics["config"]
    graph, model, splits = config["graph"], config["model"], list(config["splits"])
    parts = ["hpgmn train", graph]
    if model != "hpgmn":
        parts.append(f"--model {model}")
    if config.get("protocol"):
        parts.append(f"--protocol {config['protocol']}")
    if graph in DATASETS and config["metric"] != DATASETS[graph].metric:
        parts.append(f"--metric {config['metric']}")
    if splits == list(range(10)):
        parts.append("--splits all")
    elif splits != [0] or graph not in paper.CITATION:  # these have the public split alone
        parts.append(f"--splits {','.join(str(split) for split in splits)}")
    if config["seeds"] != 1:
        parts.append(f"--seeds {config['seeds']}")
    shipped = settings_for(graph if graph in DATASETS else None, model)
    parts += [f"--set {name}={_word(value)}" for name, value in _unlike(record, shipped).items()]
    return " ".join(parts)


def _unlike(record: Record, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that differ from those of a mapping and its defaults."""
    settings = find_model(record.model).settings
    own = settings_dict(make_settings(settings, record.metrics["config"]["settings"]))
    others = settings_dict(make_settings(settings, values))
    return {
        name: value for name, value in own.items() if value != others[name] and _matters(name, own)
    }


def _matters(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a setting has any effect; that of an unused statistic or loss has none."""
    if name in ("consistency_passes", "consistency_temperature"):
        return bool(settings["consistency_weight"])
    owner = "diffusion" if name in _ONLY_DIFFUSION else name.split("_")[0]
    used = settings.get("statistics", [owner])
    return owner not in ("diffusion", "adjacency") or owner in used


def place_in_search(record: Record, trials: Sequence[Mapping[str, Any]]) -> str:
    """Where a run's settings stand, by validation score, among the trials that decided.

    Those are the finalists, or without finalists all trials that were scored on the most runs.

    Args:
        record: the run.
        trials: the search of its model on its graph.
    """
    last = [one for one in trials if one["round"] == "finalists"]
    deciding = last or trials
    if not deciding:
        return "no search"
    most = max(np.size(one["val_score"]) for one in deciding)
    deciding = [one for one in deciding if np.size(one["val_score"]) == most]
    ranked = sorted(
        deciding, key=lambda one: (-np.mean(one["val_score"]), np.mean(one["val_loss"]))
    )
    what = f"{len(ranked)} {'finalists' if last else 'trials'}"
    settings = record.metrics["config"]["settings"]
    for place, one in enumerate(ranked, start=1):
        every = one.get("settings", one["trial"])
        varied = {name: value for name, value in every.items() if _matters(name, settings)}
        if varied == {name: settings.get(name) for name in varied}:
            return f"best of {what}" if place == 1 else f"number {place} of {what}"
    return f"not among the {what}"


# The page, section by section.


def page(results: Path) -> str:
    """The text of ``docs/RESULTS.md`` for a folder of records."""
    records = read_records(results / RUNS)
    trials = read_trials(results / SEARCH)
    heterophily, citation, further = table_rows(records)
    rows = heterophily | citation
    notes = read_notes(results / NOTES, rows)
    sections = [
        _INTRO,
        "## Heterophilous graphs",
        _results_table(heterophily),
        _next_best(),
        _commands(heterophily.values()),
        "## Citation graphs",
        _results_table(citation),
        _commands(citation.values()),
        *_further(further),
        "## When a number counts as reached",
        _RULE,
        "## Where a row stays short",
        _short(rows, notes),
        "## Settings",
        _settings(rows, trials),
        "## What the data hides",
        _defects(rows),
        "## How these numbers were made",
        _METHOD,
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


_INTRO = """# Results

This page is generated by `make results` from the records in `results/` and is not edited by hand.
It sets our test scores beside the paper's and beside the best published elsewhere for the same
splits, in percent, as mean ± sample standard deviation over runs. A run is one training on one
split with one seed."""

_RULE = f"""\
Our mean is at least as high; or it is at most {paper.WEBKB_MARGIN:g} point lower
({", ".join(paper.WEBKB)}) or {paper.MARGIN:g} points lower (the others), and the published
mean is inside our {100 * paper.CONFIDENCE:.0f} % interval over runs: Student's interval of the
mean over splits, the seeds of a split averaged first; with one split, over its seeds."""

_METHOD = """\
- Settings and epochs were chosen on validation scores alone, ties by the lower validation loss.
- The test labels of a run are read once, when all its splits and seeds are trained; the settings
  were fixed before. A search computes no test score. Every reading is a record in `results/runs`.
- The search spaces start from an earlier study of the model that had looked at test scores (which
  neighbours a graph wants, how strong a dropout). Inside them validation alone decided.
- The standard deviation is the sample one, over all runs of a row; the interval of the rule above
  is over splits, because the seeds of one split are not independent.
- Seeds count from 0, and random numbers are a function of seed, split, stage and epoch: the command
  repeats the run. Another device or version of PyTorch rounds differently and may move single runs.
- The label estimator is the network on attributes alone that guesses the labels of the
  neighbourhoods; its test accuracy says what the graph adds.
- Seconds are those of the whole run: statistics, training of all splits and seeds, and scoring."""


def _grid(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))


def _results_table(rows: Rows) -> str:
    header = ["graph", "model", "ours", "runs = splits × seeds", "the paper", "reached?"]
    header += ["best published elsewhere", "validation", "label estimator", "seconds"]
    return _grid(header, [_line(graph, model, one) for (graph, model), one in rows.items()])


def _line(graph: str, model: str, record: Record | None) -> list[str]:
    cell, best = paper.published(model, graph), paper.ELSEWHERE.get(graph)
    theirs = f"{cell.mean:.1f} ± {cell.std:.1f}" if cell else "–"
    elsewhere = f"{best.mean:.1f}, {best.source}" if best else "–"
    if record is None:
        return [graph, model, "–", "–", theirs, "no record yet", elsewhere, "–", "–", "–"]
    metrics, verdict = record.metrics, verdict_of(record)
    if best:
        elsewhere += f" ({_answer(record.against(best.mean))})"
    estimator = metrics["label_estimator"]
    return [
        graph if metrics["metric"] == "accuracy" else f"{graph} ({metrics['metric']})",
        model,
        f"**{_test(record)}**",
        _runs(record),
        theirs,
        _answer(verdict) if verdict else "not in the paper",
        elsewhere,
        _validation(record),
        f"{100 * estimator['test_accuracy_mean']:.1f}" if estimator else "–",
        f"{metrics['seconds']:.0f}",
    ]


def _test(record: Record) -> str:
    return f"{record.score.mean:.1f} ± {record.score.std:.1f}"


def _validation(record: Record) -> str:
    return f"{100 * float(np.mean(record.metrics['val_score'])):.1f}"


def _runs(record: Record) -> str:
    splits, seeds = len(record.metrics["splits"]), record.metrics["seeds"]
    return f"{len(record.score.values)} = {splits} × {seeds}"


def _answer(verdict: paper.Verdict) -> str:
    if not verdict.is_reached:
        return f"short by {verdict.short_by:.2f}"
    return f"reached, {verdict.short_by:.2f} lower" if verdict.short_by else "reached"


def _next_best() -> str:
    parts = [
        f"{graph} {' '.join(map(str, found.next_best))}"
        for graph, found in paper.ELSEWHERE.items()
        if found.next_best
    ]
    return (
        f"Next best elsewhere: {', '.join(parts)}. Higher claims exist under other splits or with "
        "validation labels in training; they do not count."
    )


def _commands(records: Iterable[Record | None]) -> str:
    """How each run was made."""
    lines = []
    for record in filter(None, records):
        metrics, hardware = record.metrics, record.metrics["hardware"]
        device = hardware["device"]
        if device == "cpu":
            device = f"{hardware['processor']}, {hardware['threads']} threads"
        versions = f"hpgmn {metrics['version']}, torch {hardware['torch']}"
        date = str(metrics["created"])[:10]
        lines.append([record.folder, f"`{command(record)}`", device, versions, date])
    return _grid(("run", "command", "device", "versions", "date"), lines) if lines else ""


def _further(records: Sequence[Record]) -> list[str]:
    """Readings of test scores that are in neither table; none is left out."""
    if not records:
        return []
    header = ("run", "test", "runs = splits × seeds", "validation")
    lines = [[one.folder, _test(one), _runs(one), _validation(one)] for one in records]
    return ["## Further runs", _grid(header, lines), _commands(records)]


def _short(rows: Rows, notes: Mapping[str, str]) -> str:
    lines = []
    for name, verdict in short_rows(rows).items():
        interval = "a single run has no interval"
        if verdict.interval:
            low, high = verdict.interval
            interval = f"95 % interval {low:.2f} to {high:.2f} over {verdict.count} values"
        lines.append(
            f"- **{name}**: {verdict.mean:.2f} against {verdict.published_mean:.2f}, short by "
            f"{verdict.short_by:.2f} ({interval}). {notes[name]}"
        )
    if not lines:
        lines.append("No row with a record is short of the paper.")
    absent = [f"{graph}-{model}" for (graph, model), record in rows.items() if record is None]
    if absent:
        lines.append(f"\nNo record yet: {', '.join(absent)}.")
    return "\n".join(lines)


def _settings(rows: Rows, trials: Sequence[Mapping[str, Any]]) -> str:
    lines = ["What differs from the defaults that `hpgmn settings --model MODEL` lists:", ""]
    for record in filter(None, rows.values()):
        differing = _unlike(record, settings_for(None, record.model))
        values = [f"`{name}={_word(value)}`" for name, value in differing.items()]
        lines.append(f"- **{record.graph}-{record.model}**: {', '.join(values) or 'nothing'}.")
    return "\n\n".join([_SEARCH, _search_table(rows, trials), "\n".join(lines)])


_SEARCH = """\
A trial is one draw of settings, trained and scored on validation nodes only. The first round draws
from a wide space, the second from one narrowed to what the first left worth trying; finalists are
good trials of both, trained again on more runs (`hpgmn.experiments.spaces` and `search`). The
highest mean validation score wins, ties go to the lower validation loss. The last column says where
the settings of the row stand by that rule among the finalists, or without finalists among the
trials with the most runs."""


def _search_table(rows: Rows, trials: Sequence[Mapping[str, Any]]) -> str:
    rounds = [*ROUNDS, *sorted({str(one["round"]) for one in trials} - set(ROUNDS))]
    own: dict[tuple[str, str], list[Mapping[str, Any]]] = {
        pair: [] for pair, record in rows.items() if record
    }
    for one in trials:
        own.setdefault((one["graph"], one["model"]), []).append(one)
    lines = []
    for model in MODELS:
        for graph in _in_order(graph for graph, other in own if other == model):
            found, record = own[graph, model], rows.get((graph, model))
            counts = [_count([one for one in found if one["round"] == name]) for name in rounds]
            lines.append([graph, model, *counts, place_in_search(record, found) if record else "–"])
    return _grid(("graph", "model", *rounds, "settings of the row"), lines)


def _count(trials: Sequence[Mapping[str, Any]]) -> str:
    """How many trials, and on how many runs each was scored."""
    if not trials:
        return "–"
    runs = sorted({int(np.size(one["val_score"])) for one in trials})
    each = str(runs[0]) if len(runs) == 1 else f"{runs[0]}–{runs[-1]}"
    return f"{len(trials)} × {each} run{'' if each == '1' else 's'}"


def _word(value: Any) -> str:
    """A value as ``--set`` takes it."""
    if isinstance(value, list):
        return ",".join(value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _defects(rows: Rows) -> str:
    lines = ["Known before trusting a score (`hpgmn datasets` lists the same):", ""]
    for graph in _in_order({graph for graph, _ in rows}):
        if graph in DATASETS and DATASETS[graph].defects:
            lines.append(f"- **{graph}**: {DATASETS[graph].defects}")
    right, copied = rows.get(("cornell", "hpgmn")), rows.get(("cornell-geomgcn", "hpgmn"))
    if right and copied:
        lines.append(
            f"- With its own attributes and labels (`cornell`) HP-GMN has {_test(right)}, with "
            f"those of texas (`cornell-geomgcn`) {_test(copied)}."
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page; a fault in the records is told in a sentence, exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m hpgmn.experiments.results")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the records")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where the page goes")
    given = parser.parse_args(arguments)
    try:
        text = page(given.results)
    except HPGMNError as error:
        parser.exit(2, f"Error: {error}\n")
    given.docs.mkdir(parents=True, exist_ok=True)
    write_text(given.docs / PAGE, text)


if __name__ == "__main__":
    main()
