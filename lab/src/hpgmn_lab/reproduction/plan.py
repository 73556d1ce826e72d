"""Which cells each of the experiments needs: rows, graphs, and how much work a cell is given.

Every model of a comparison gets as many trials (:func:`hpgmn.runs.search.planned_trials`)
on the first three splits, then all splits once. HP-GMN with its shipped settings, which come from a
larger search, is a row of its own; so is the average over seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.evaluation.scores import ENSEMBLE
from hpgmn.graph.datasets import DATASETS, PROTOCOLS
from hpgmn.models import find_model
from hpgmn.models.shipped import settings_for
from hpgmn.statistics import averaged
from hpgmn_lab import paper
from hpgmn_lab.reproduction.cells import SHIPPED, TUNED, Cell
from hpgmn_lab.reproduction.options import ENCODER_OPTIONS, STATISTICS_OPTIONS, Option

EXPERIMENTS = (
    *("table1", "table2", "table3", "figure3", "table4", "sound", "options"),
    "citation-options",
)
"""What can be reproduced: the paper's, the sound protocol, and the options beyond the paper."""

TRIALS = 16
ABLATED = ("texas", "squirrel")
"""The graphs of Figure 3 and Table 4."""

SOUND_MODELS = ("mlp", "gcn", "gprgnn", "h2gcn", "linkx", "fsgnn", "dirgcn", "hpgmn")

REGULARISATION: dict[str, dict[str, Any]] = {
    "without-kpattern": {"kpattern_weight": 0.0},
    "without-entropy": {"entropy_weight": 0.0},
    "without-both": {"kpattern_weight": 0.0, "entropy_weight": 0.0},
}
"""Variant → what Figure 3 changes."""

REMOVED = {
    "without-attributes": ("attributes",),
    "without-class-counts": ("class_counts",),
    "without-class-means": ("class_means",),
    "without-diffusion": ("diffusion", "adjacency"),
}
"""Variant → the statistics that Table 4 takes away, with their means over neighbours; adjacency
rows stand in for diffusion."""


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
        label: what stands before it.
        cells: graph → cell; a graph that is missing has none.
        is_ensemble: whether it shows the average over seeds instead of single runs.
    """

    label: str
    cells: Mapping[str, Cell]
    is_ensemble: bool = False


@dataclass(frozen=True)
class Experiment:
    """One table or figure: its columns and rows."""

    name: str
    graphs: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def cells(self) -> list[Cell]:
        """The work behind it, each cell once."""
        every = [cell for row in self.rows for cell in row.cells.values()]
        return list({cell.name: cell for cell in every}.values())


@dataclass(frozen=True)
class Budget:
    """How much work goes into a cell, and which graphs take part.

    Attributes:
        trials: trials of each search.
        search_runs: splits, or seeds of a single split, that score a trial.
        splits: at most so many splits in the final run.
        seeds: of the citation graphs' single split.
        epochs: no stage of any model is trained for longer; None leaves it to the settings.
        graphs: those that take part; None for all.
    """

    trials: int = TRIALS
    search_runs: int = 3
    splits: int = 10
    seeds: int = 5
    epochs: int | None = None
    graphs: tuple[str, ...] | None = None


FULL = Budget()
QUICK = Budget(
    trials=2, search_runs=1, splits=2, seeds=2, epochs=20, graphs=("texas", "cornell", "cora")
)
"""Two minutes on two cores: every table, few graphs, nothing trained for long."""


def experiment(name: str, budget: Budget = FULL) -> Experiment:
    """An experiment with its rows and cells."""
    makers = {
        "table1": _table1,
        "table2": _table2,
        "table3": _table3,
        "figure3": _figure3,
        "table4": _table4,
        "sound": _sound,
        "options": _statistics_options,
        "citation-options": _citation_options,
    }
    if name not in makers:
        raise HPGMNError.unknown("experiment", name, [*EXPERIMENTS, "all"])
    return makers[name](budget)


def _taking_part(graphs: Sequence[str], budget: Budget) -> tuple[str, ...]:
    return tuple(one for one in graphs if budget.graphs is None or one in budget.graphs)


def _table1(budget: Budget) -> Experiment:
    every = (*paper.HETEROPHILOUS, *paper.CITATION)
    return Experiment("table1", _taking_part(every, budget), ())


def _table2(budget: Budget) -> Experiment:
    return _comparison("table2", list(paper.TABLE_2), paper.HETEROPHILOUS, budget)


def _table3(budget: Budget) -> Experiment:
    return _comparison("table3", list(paper.TABLE_3), paper.CITATION, budget)


def _comparison(
    name: str, models: Sequence[str], graphs: Sequence[str], budget: Budget
) -> Experiment:
    chosen = _taking_part(graphs, budget)
    ours = [model for model in models if model.startswith("hpgmn")]
    rows = [
        Row(model, {graph: tuned(model, graph, budget) for graph in chosen}) for model in models
    ]
    rows += [
        Row(f"{model}, shipped", {graph: shipped(model, graph, budget) for graph in chosen})
        for model in ours
    ]
    rows += [
        Row(
            f"{model}, shipped, {ENSEMBLE} seeds averaged",
            {graph: _ensemble(model, graph, budget) for graph in chosen},
            is_ensemble=True,
        )
        for model in ours
    ]
    return Experiment(name, chosen, tuple(rows))


def _figure3(budget: Budget) -> Experiment:
    return _ablation("figure3", lambda graph: REGULARISATION, budget)


def _table4(budget: Budget) -> Experiment:
    return _ablation("table4", _removals, budget)


def _removals(graph: str) -> dict[str, dict[str, Any]]:
    every = tuple(shipped("hpgmn", graph, FULL).settings["statistics"])
    return {
        variant: {
            "statistics": tuple(one for one in every if (averaged(one) or one) not in removed)
        }
        for variant, removed in REMOVED.items()
    }


def _ablation(
    name: str, changes: Callable[[str], Mapping[str, Mapping[str, Any]]], budget: Budget
) -> Experiment:
    graphs = _taking_part(ABLATED, budget)
    rows = [Row("full", {graph: shipped("hpgmn", graph, budget) for graph in graphs})]
    for variant in changes(ABLATED[0]):
        cells = {
            graph: _changed(shipped("hpgmn", graph, budget), variant, changes(graph)[variant])
            for graph in graphs
        }
        rows.append(Row(variant.replace("-", " "), cells))
    return Experiment(name, graphs, tuple(rows))


def _sound(budget: Budget) -> Experiment:
    sound = _taking_part(PROTOCOLS["sound"].graphs, budget)
    beside = tuple(paper.DEFECTIVE[graph] for graph in sound if graph in paper.DEFECTIVE)
    graphs = (*sound, *_taking_part(beside, budget))
    rows = [
        Row(model, {graph: tuned(model, graph, budget) for graph in graphs})
        for model in SOUND_MODELS
    ]
    return Experiment("sound", graphs, tuple(rows))


def _statistics_options(budget: Budget) -> Experiment:
    return _options("options", "hpgmn", paper.HETEROPHILOUS, STATISTICS_OPTIONS, budget)


def _citation_options(budget: Budget) -> Experiment:
    return _options("citation-options", "hpgmn-appnp", paper.CITATION, ENCODER_OPTIONS, budget)


def _options(
    name: str, model: str, graphs: Sequence[str], options: Mapping[str, Option], budget: Budget
) -> Experiment:
    """A cell that an option leaves as it ships is that of the shipped settings."""
    chosen = _taking_part(graphs, budget)
    base = {graph: shipped(model, graph, budget) for graph in chosen}
    rows = [Row(SHIPPED, base)]
    for variant, option in options.items():
        cells = {graph: _with_option(cell, variant, option, budget) for graph, cell in base.items()}
        rows.append(Row(variant.replace("-", " "), cells))
    return Experiment(name, chosen, tuple(rows))


def _with_option(cell: Cell, variant: str, option: Option, budget: Budget) -> Cell:
    kind = find_model(cell.model).settings
    changed = _capped(cell.model, option(cell.settings), budget)
    if make_settings(kind, changed) == make_settings(kind, cell.settings):
        return cell
    return dataclasses.replace(cell, variant=variant, settings=changed)


def _runs(graph: str, budget: Budget) -> dict[str, Any]:
    """Splits, seeds, metric and protocol of a final run."""
    protocol = next(
        (own for own in PROTOCOLS.values() if graph in own.graphs and own.name != "platonov"), None
    )
    is_single = graph in paper.CITATION
    return {
        "splits": (0,) if is_single else tuple(range(budget.splits)),
        "seeds": budget.seeds if is_single else 1,
        "metric": DATASETS[graph].metric,
        "protocol": None if protocol is None else protocol.name,
    }


def tuned(model: str, graph: str, budget: Budget = FULL) -> Cell:
    """A model with settings from the search that every model gets."""
    is_single = graph in paper.CITATION
    return Cell(
        graph,
        model,
        TUNED,
        _capped(model, {}, budget),
        trials=budget.trials,
        search_splits=(0,) if is_single else tuple(range(budget.search_runs)),
        search_seeds=budget.search_runs if is_single else 1,
        **_runs(graph, budget),
    )


def shipped(model: str, graph: str, budget: Budget = FULL) -> Cell:
    """A model with its shipped settings."""
    settings = _capped(model, settings_for(graph, model), budget)
    return Cell(graph, model, SHIPPED, settings, **_runs(graph, budget))


def _ensemble(model: str, graph: str, budget: Budget) -> Cell:
    cell = shipped(model, graph, budget)
    seeds = ENSEMBLE * budget.seeds if graph in paper.CITATION else ENSEMBLE
    return dataclasses.replace(cell, variant="ensemble", seeds=seeds)


def _changed(cell: Cell, variant: str, change: Mapping[str, Any]) -> Cell:
    return dataclasses.replace(cell, variant=variant, settings={**cell.settings, **change})


def _capped(model: str, settings: Mapping[str, Any], budget: Budget) -> dict[str, Any]:
    """Settings in which no stage is trained for longer than the budget allows."""
    if budget.epochs is None:
        return dict(settings)
    names = {info.name for info in dataclasses.fields(find_model(model).settings)}
    capped = {name: budget.epochs for name in names if name.split("_")[-1] == "epochs"}
    return {**settings, **capped}
