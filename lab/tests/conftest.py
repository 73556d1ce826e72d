"""Made-up records for the tests of tables and pages."""

import dataclasses
import json
import zlib
from pathlib import Path

import numpy as np
import pytest


def _write_run(results, graph, model, scores, /, *, splits=10, name=None, settings=None, **changes):
    """Append a run, made up around its test scores (percent), to ``runs.jsonl``."""
    from hpgmn.base.settings import make_settings, settings_dict
    from hpgmn.models import find_model, settings_for

    chosen = settings_for(graph, model) | (settings or {})
    values = settings_dict(make_settings(find_model(model).settings, chosen))
    fractions = [score / 100 for score in scores]
    seeds = len(scores) // splits
    about = {"graph": graph, "model": model, "metric": "accuracy", "seeds": seeds}
    metrics = about | {
        "splits": list(range(splits)),
        "test_score": fractions,
        "test_score_mean": float(np.mean(fractions)),
        "test_score_std": float(np.std(fractions, ddof=1)),
        "val_score": [fraction + 0.02 for fraction in fractions],
        "label_estimator": {"test_accuracy_mean": 0.4321} if model == "hpgmn" else None,
        "seconds": 12.3,
        "nodes": {"train": [48] * splits, "val": [32] * splits, "test": [20] * splits},
        "version": "9.8.7",
        "config": about | {"splits": list(range(splits)), "protocol": None, "settings": values},
        "hardware": {
            "processor": "A Processor",
            "threads": 2,
            "device": "cpu",
            "torch": "2.0.1",
            "python": "3.12.3",
        },
        "created": "2030-01-02T03:04:05+00:00",
    }
    path = results / "runs.jsonl"
    results.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        run = {"name": name or f"{graph}-{model}", "record": metrics | changes}
        file.write(json.dumps(run) + "\n")
    return path


@pytest.fixture
def write_run():
    """Return a function that appends a run with given test scores (percent)."""
    return _write_run


def _cells(text, *start):
    """The cells of the first table line that starts with the given ones."""
    found = [line for line in text.splitlines() if line.startswith(f"| {' | '.join(start)} |")]
    assert found, start
    return [cell.strip() for cell in found[0].strip("|").split("|")]


@pytest.fixture
def cells():
    """Return a function that finds a line of a Markdown table by its first cells."""
    return _cells


# Records of cells, as ``hpgmn reproduce`` writes them.

NODES = {"train": 48, "val": 32, "test": 20}
FACTS = {
    "graph": "texas",
    "identity": "x",
    "nodes": 183,
    "edges": 325,
    "attributes": 1703,
    "classes": 5,
    "homophily": 0.1079,
    "edge_counts": {"edges as listed": 325},
    "homophilies": {"node homophily": 0.1079},
    "printed": {"nodes": 183, "edges": 309, "attributes": 1703, "classes": 5, "homophily": 0.11},
    "explanations": {"edges": "self-loops are counted", "homophily": "printed 0.11 = node"},
}


def _made_record(
    cell,
    scores=None,
    *,
    mean=70.0,
    val=None,
    average=None,
    created="2030-01-02T03:04:05+00:00",
    **changes,
):
    """A record around test scores (percent); without scores they are drawn around a mean.

    Args:
        cell: the cell.
        scores: split by split, seeds inside.
        mean: around which scores are drawn; the name of the cell is the seed.
        val: the validation scores; a number is what they are higher by.
        average: the scores of the averages over seeds of an ensemble.
        created: the moment.
        changes: of the metrics.
    """
    from hpgmn.base.settings import to_plain
    from hpgmn.evaluation.scores import Score
    from hpgmn.runs.trials import planned_trials
    from hpgmn_lab.reproduction.cells import CellRecord

    runs = len(cell.splits) * cell.seeds
    if scores is None:
        random = np.random.default_rng(zlib.crc32(cell.name.encode()))
        scores = [float(one) for one in random.normal(mean, 1.5, runs).round(2)]
    assert len(scores) == runs
    higher = 2.0 if val is None else val
    validation = [one + higher for one in scores] if isinstance(higher, float) else list(higher)
    fractions = [one / 100 for one in scores]
    about = {"graph": cell.graph, "model": cell.model, "metric": cell.metric, "seeds": cell.seeds}
    planned = planned_trials(cell.model, cell.graph, cell.trials) if cell.trials else [{}]
    settings = [
        {name: to_plain(own) for name, own in {**trial, **cell.settings}.items()}
        for trial in planned
    ]
    metrics = about | {
        "splits": list(cell.splits),
        "test_score": fractions,
        "test_score_mean": float(np.mean(fractions)),
        "test_score_std": Score.of(fractions).std,
        "val_score": [one / 100 for one in validation],
        "label_estimator": None,
        "seconds": 12.3,
        "peak_memory_mb": 345.6,
        "nodes": {part: [count] * len(cell.splits) for part, count in NODES.items()},
        "version": "9.8.7",
        "config": about | {"splits": list(cell.splits), "settings": settings[0]},
        "hardware": {"processor": "A Processor", "threads": 2, "device": "cpu", "torch": "2.0.1"},
        "created": created,
    }
    if cell.seeds > 1:
        size = cell.seeds if len(cell.splits) > 1 else min(cell.seeds, 5)
        groups = [scores[start : start + size] for start in range(0, runs, size)]
        own = average or [float(np.mean(group)) + 1.0 for group in groups]
        shares = [one / 100 for one in own]
        metrics["ensemble"] = {
            "seeds": size,
            "test_score": shares,
            "test_score_mean": float(np.mean(shares)),
            "test_score_std": Score.of(shares).std,
        }
    search = None
    if cell.trials:
        scored = {"val_score": [0.5] * len(cell.search_splits) * cell.search_seeds}
        trials = [scored | {"settings": own} for own in settings]
        search = {"identity": "s", "defaults": {}, "best": 0, "seconds": 100.0, "trials": trials}
    return CellRecord(cell.as_dict(), "identity", search, metrics | changes)


def _fill(folder, experiment, means=None):
    """Records for every cell of an experiment; ``means`` by name of a cell, model or variant."""
    from hpgmn_lab.reproduction.cells import write_cell

    given = means or {}
    for cell in experiment.cells:
        keys = (cell.name, f"{cell.graph}-{cell.model}", cell.variant, cell.model)
        mean = next((given[key] for key in keys if key in given), 70.0)
        write_cell(folder, _made_record(cell, mean=mean))


def _write_facts(folder, graph="texas", **changes):
    """The facts of a graph for Table 1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{graph}-facts.json").write_text(json.dumps(FACTS | {"graph": graph} | changes))


@pytest.fixture
def make_record():
    """Return a function that makes a record around test scores (percent)."""
    return _made_record


@pytest.fixture
def fill_cells():
    """Return a function that writes a record for every cell of an experiment."""
    return _fill


@pytest.fixture
def make_facts():
    """Return a function that writes the facts of a graph."""
    return _write_facts


@pytest.fixture
def as_records():
    """Return a function that turns cell records into the records of a reproduction."""
    from hpgmn_lab.reproduction.cells import Records

    def collect(*records):
        contents = {record.name: dataclasses.asdict(record) for record in records}
        return Records(Path("some/cells"), contents)

    return collect
