"""The numbers of an experiment's table as one tidy frame, computed from the records of its cells.

Scores are in percent, differences in points.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.evaluation.scores import Difference, Score
from hpgmn.models import find_model
from hpgmn.runs.compare import difference, is_ours
from hpgmn_lab import paper
from hpgmn_lab.records import NONE, Record, check_run
from hpgmn_lab.reproduction.cells import SHIPPED, TUNED, Cell, CellRecord, Records, plain_values
from hpgmn_lab.reproduction.plan import Experiment, Row

_PLANNED_KEYS = (
    *("graph", "model", "metric", "splits", "seeds"),
    *("trials", "search_splits", "search_seeds"),
)
"""The keys of a cell that must be equal in its record."""

ENSEMBLE, VARIANT = "ensemble", "variant"
"""Kinds of rows besides tuned and shipped: averages over seeds, and changed settings."""

COLUMNS = (
    *("experiment", "row", "kind", "graph", "model", "variant", "metric", "reference"),
    *("printed_mean", "printed_std", "elsewhere_mean", "elsewhere_source"),
    *("is_reached", "short_by", "difference", "difference_low", "difference_high"),
    *("runs", "splits", "seeds", "test_mean", "test_std", "test_low", "test_high", "is_best"),
    *("validation_mean", "validation_minus_test", "seconds", "seconds_search", "peak_memory_mb"),
    *("trials", "version", "device", "created", "is_as_shipped"),
)
"""Of :attr:`Table.numbers`; values that do not apply are NaN.

``difference`` is to the row named ``reference``. ``is_best``: no competing row is higher in the
decimals shown. ``validation_mean``: of single runs; averages over seeds have none. ``seconds``: of
search and final run. ``trials``: without failed ones. ``is_as_shipped``: the option of the row
changes nothing; only the first row has the numbers.
"""

_EQUAL = 1e-4
"""Points within which means of single-precision scores are equal."""


@dataclass(frozen=True)
class Table:
    """The numbers of an experiment.

    Attributes:
        numbers: a line for each row and graph, in the order of the plan; see :data:`COLUMNS`.
        records: (row, graph) → its runs; of an ensemble, the scores of the averages.
        done: name of a cell → its record, if it is of this plan.
        outdated: names of the cells whose record is of another plan and not used.
    """

    plan: Experiment
    numbers: pd.DataFrame
    records: Mapping[tuple[str, str], Record]
    done: Mapping[str, CellRecord]
    outdated: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the cells without a record."""
        known = {*self.done, *self.outdated}
        return tuple(cell.name for cell in self.plan.cells if cell.name not in known)

    @property
    def competing(self) -> pd.DataFrame:
        """The lines that compete for the best of a graph: the tuned ones, else all."""
        tuned = self.numbers[self.numbers["kind"] == TUNED]
        return self.numbers if tuned.empty else tuned


def table(plan: Experiment, records: Records) -> Table:
    """Return the table of an experiment; records of another plan are listed and not used."""
    recorded = {cell.name: records.cell(cell.name) for cell in plan.cells}
    done = {
        cell.name: record
        for cell in plan.cells
        if (record := recorded[cell.name]) is not None and is_as_planned(cell, record)
    }
    outdated = tuple(name for name, record in recorded.items() if record and name not in done)
    runs: dict[tuple[str, str], Record] = {}
    lines = []
    for row in plan.rows:
        repeats = set()
        if row is not plan.rows[0]:
            first = plan.rows[0].cells
            repeats = {graph for graph, cell in row.cells.items() if cell == first.get(graph)}
        kind = _kind(row, is_repeated=len(repeats) == len(row.cells))
        for graph, cell in row.cells.items():
            cell_record = None if graph in repeats else done.get(cell.name)
            if cell_record is not None:
                runs[row.label, graph] = _runs(cell_record, row, records)
            lines.append(
                {
                    "experiment": plan.name,
                    "row": row.label,
                    "kind": kind,
                    "graph": graph,
                    "model": cell.model,
                    "variant": cell.variant,
                    "metric": cell.metric,
                    "is_as_shipped": graph in repeats,
                    **({} if graph in repeats else _published_numbers(cell, row, plan.name)),
                    **_run_numbers(runs.get((row.label, graph)), cell_record, row),
                }
            )
    numbers = pd.DataFrame(lines, columns=list(COLUMNS), dtype=object)
    whole = Table(plan, numbers, runs, done, outdated)
    _compare(whole)
    return whole


def _kind(row: Row, *, is_repeated: bool) -> str:
    variants = {cell.variant for cell in row.cells.values()}
    if row.is_ensemble:
        return ENSEMBLE
    return variants.pop() if variants in ({TUNED}, {SHIPPED}) and not is_repeated else VARIANT


def _published_numbers(cell: Cell, row: Row, experiment: str) -> dict[str, Any]:
    """Return what the paper and others print; the paper has changed settings only in Table 4."""
    numbers: dict[str, Any] = {}
    published = None
    if experiment == "table4":
        published = paper.TABLE_4.get(row.label, {}).get(cell.graph)
    elif row.is_ensemble or cell.variant in (TUNED, SHIPPED):
        published = paper.published(cell.model, cell.graph)
    if published:
        numbers |= {"printed_mean": published.mean, "printed_std": published.std}
    if elsewhere := paper.ELSEWHERE.get(cell.graph):
        numbers |= {"elsewhere_mean": elsewhere.mean, "elsewhere_source": elsewhere.source}
    return numbers


def _run_numbers(record: Record | None, cell_record: CellRecord | None, row: Row) -> dict[str, Any]:
    if record is None or cell_record is None:
        return {}
    metrics, search, mean = record.metrics, cell_record.search, record.score.mean
    low, high = record.against(0.0).interval or (None, None)
    seconds_search = float(search["seconds"]) if search else 0.0
    validation = None if row.is_ensemble else record.validation
    numbers = {
        "runs": len(record.score.values),
        "splits": len(metrics["splits"]),
        "seeds": metrics["seeds"],
        "test_mean": mean,
        "test_std": record.score.std,
        "test_low": low,
        "test_high": high,
        "validation_mean": validation,
        "validation_minus_test": None if validation is None else validation - mean,
        "seconds": float(metrics["seconds"]) + seconds_search,
        "seconds_search": seconds_search,
        "peak_memory_mb": metrics.get("peak_memory_mb"),
        "trials": len(runs_per_trial(search)),
        "version": metrics["version"],
        "device": metrics["hardware"]["device"],
        "created": metrics["created"],
    }
    return {name: value for name, value in numbers.items() if value is not None}


def runs_per_trial(search: Mapping[str, Any] | None) -> list[int]:
    """Return the number of runs that scored each trial; failed trials are left out."""
    trials = search["trials"] if search else []
    return [len(trial["val_score"]) for trial in trials if "val_score" in trial]


def _compare(table: Table) -> None:
    """Fill in the columns that depend on several lines or on the printed numbers."""
    numbers, competing = table.numbers, table.competing
    means = competing["test_mean"].astype(float).round(1)
    is_best = means == means.groupby(competing["graph"]).transform("max")
    references = _references(table)
    for line in numbers.itertuples():
        record = table.records.get((line.row, line.graph))
        reference = references.get(line.graph)
        filled: dict[str, Any] = {"reference": reference}
        if record is not None:
            filled["is_best"] = bool(is_best.get(line.Index, False))
            if pd.notna(line.printed_mean):
                verdict = record.against(line.printed_mean)
                filled |= {"is_reached": verdict.is_reached, "short_by": verdict.short_by}
            if reference not in (None, line.row):
                paired = difference(record.metrics, table.records[reference, line.graph].metrics)
                if paired is not None:
                    ends = {"": paired.mean, "_low": paired.low, "_high": paired.high}
                    filled |= {
                        f"difference{end}": 100 * value
                        for end, value in ends.items()
                        if value is not None
                    }
        for column, value in filled.items():
            numbers.at[line.Index, column] = value


def _references(table: Table) -> dict[str, str]:
    """Return graph → the row that the others are compared with.

    Among tuned rows it is HP-GMN's best by validation; else the first row.
    """
    numbers = table.numbers
    is_candidate = (numbers["kind"] == TUNED) & numbers["model"].map(is_ours)
    if not (numbers["kind"] == TUNED).any():
        is_candidate = numbers["row"] == table.plan.rows[0].label
    scored = numbers[is_candidate & numbers["validation_mean"].notna()]
    best = scored["validation_mean"].astype(float).groupby(scored["graph"]).idxmax()
    return {graph: numbers.at[index, "row"] for graph, index in best.items()}


def is_as_planned(cell: Cell, record: CellRecord) -> bool:
    """Return whether a record has the planned runs and trials, and the best trial's settings.

    Settings are compared with defaults filled in.
    """
    planned = cell.as_dict()
    if any(record.cell.get(key) != planned[key] for key in _PLANNED_KEYS):
        return False
    kind, chosen, search = find_model(cell.model).settings, cell.settings, record.search or {}
    try:
        if cell.trials:
            trials = [trial["settings"] for trial in search["trials"]]
            if trials != [plain_values(trial) for trial in cell.trial_settings()]:
                return False
            chosen = trials[search["best"]]
        recorded = make_settings(kind, record.metrics["config"]["settings"])
        return settings_dict(recorded) == settings_dict(make_settings(kind, chosen))
    except (HPGMNError, LookupError, TypeError):
        return False


def _runs(cell_record: CellRecord, row: Row, records: Records) -> Record:
    """Return the runs of a cell; of an ensemble, with the scores of averages over seeds."""
    name, source, remedy = cell_record.name, records.source, records.remedy(cell_record.name)
    record = check_run(name, cell_record.metrics, source, remedy)
    if not row.is_ensemble:
        return record
    try:
        values = [float(value) for value in record.metrics["ensemble"]["test_score"]]
        mean = 100 * float(record.metrics["ensemble"]["test_score_mean"])
    except (KeyError, TypeError):
        raise HPGMNError(f"{source} ({name}) has no ensemble scores.", remedy) from None
    splits = len(record.metrics["splits"])
    score = Score.of([100 * value for value in values])
    if len(values) % splits or abs(score.mean - mean) > 1e-6:
        raise HPGMNError(
            f"{source} ({name}): count or mean of the ensemble scores is wrong.", remedy
        )
    metrics = {**record.metrics, "test_score": values, "seeds": len(values) // splits}
    return dataclasses.replace(record, score=score, metrics=metrics)


# The order of models on a graph.


@dataclass(frozen=True)
class Standing:
    """The order of models on a graph and the rank of HP-GMN.

    Attributes:
        means: model → mean test score, the highest first.
        lead: the first minus the second.
        ours: the form of HP-GMN that the others are compared with.
        rival: the best other model.
        distance: HP-GMN minus the rival.
    """

    means: Mapping[str, float]
    lead: Difference | None
    ours: str | None
    rival: str | None
    distance: Difference | None

    @property
    def first(self) -> str:
        """The model with the highest mean."""
        return next(iter(self.means))

    def rank(self, model: str | None) -> str:
        """Return the rank of a model, such as "2 of 8"; equal means share the better rank."""
        if model is None or model not in self.means:
            return NONE
        better = sum(mean > self.means[model] + _EQUAL for mean in self.means.values())
        return f"{better + 1} of {len(self.means)}"


def standing(table: Table, graph: str) -> Standing | None:
    """Return the order of the competing models on a graph; None without records."""
    lines = table.competing[table.competing["graph"] == graph]
    records = {
        line.model: table.records[line.row, graph]
        for line in lines.itertuples()
        if (line.row, graph) in table.records
    }
    order = sorted(records, key=lambda model: -records[model].score.mean)
    if not order:
        return None

    def minus(first: str | None, second: str | None) -> Difference | None:
        if first is None or second is None:
            return None
        return difference(records[first].metrics, records[second].metrics)

    ours = next(iter(lines.loc[lines["row"] == lines["reference"], "model"]), None)
    rival = next((model for model in order if not is_ours(model)), None)
    means = {model: records[model].score.mean for model in order}
    lead = minus(order[0], order[1] if len(order) > 1 else None)
    return Standing(means, lead, ours, rival, minus(ours, rival))


def paired_means(table: Table, graphs: tuple[str, str]) -> pd.DataFrame:
    """Return the mean test scores of the competing models that have records on both graphs."""
    lines = table.competing
    means = lines.pivot(index="model", columns="graph", values="test_mean")
    return means.loc[list(dict.fromkeys(lines["model"])), list(graphs)].astype(float).dropna()


def reversed_pairs(means: pd.DataFrame) -> int:
    """Count the pairs of models in opposite order on the two graphs."""
    rows = means.itertuples(index=False)
    return sum(
        (first[0] - second[0]) * (first[1] - second[1]) < 0
        for first, second in combinations(rows, 2)
    )
