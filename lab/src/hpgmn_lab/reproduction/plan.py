"""The cells of each experiment: rows, graphs, and the work per cell.

All models of a comparison have the same number of trials
(:func:`hpgmn.runs.trials.planned_trials`) on the first three splits, then all splits once. HP-GMN
with its shipped settings, which come from a larger search, and its average over seeds are rows of
their own.
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
from hpgmn.models import find_model, read_config, settings_for
from hpgmn.statistics import averaged_statistic
from hpgmn_lab import paper
from hpgmn_lab.reproduction.cells import SHIPPED, TUNED, Cell

TRIALS = 16
SOUND_MODELS = ("mlp", "gcn", "gprgnn", "h2gcn", "linkx", "fsgnn", "dirgcn", "hpgmn")

Settings = Mapping[str, Any]
Option = Callable[[Settings], Settings]
"""Returns settings with one change."""


@dataclass(frozen=True)
class Row:
    """A row of a table: graph → cell; an ensemble shows the average over seeds."""

    label: str
    cells: Mapping[str, Cell]
    is_ensemble: bool = False

    @property
    def model(self) -> str:
        """The model of its cells."""
        return next(cell.model for cell in self.cells.values())


Layout = tuple[tuple[str, ...], list[Row]]
"""The graphs and the rows of an experiment."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure: its columns and rows."""

    name: str
    graphs: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def cells(self) -> list[Cell]:
        """Its distinct cells."""
        return list({cell.name: cell for row in self.rows for cell in row.cells.values()}.values())

    def without(self, graphs: Sequence[str]) -> Experiment:
        """Return the experiment without some of its columns."""
        kept = tuple(graph for graph in self.graphs if graph not in graphs)
        rows = [
            dataclasses.replace(row, cells={graph: row.cells[graph] for graph in kept})
            for row in self.rows
        ]
        return dataclasses.replace(self, graphs=kept, rows=tuple(rows))


@dataclass(frozen=True)
class Budget:
    """The work per cell, and the graphs.

    Attributes:
        search_runs: splits, or seeds of a single split, that score a trial.
        splits: most splits of the final run.
        seeds: on the citation graphs' single split.
        epochs: limit for every stage of every model; None: no limit.
        graphs: included graphs; None for all.
    """

    trials: int = TRIALS
    search_runs: int = 3
    splits: int = 10
    seeds: int = 5
    epochs: int | None = None
    graphs: tuple[str, ...] | None = None

    def select(self, graphs: Sequence[str]) -> tuple[str, ...]:
        """Return the included graphs."""
        return tuple(name for name in graphs if self.graphs is None or name in self.graphs)


FULL = Budget()
QUICK = Budget(
    trials=2, search_runs=1, splits=2, seeds=2, epochs=20, graphs=("texas", "cornell", "cora")
)
"""Two minutes on two cores: every table, few graphs, few epochs."""


def experiment(name: str, budget: Budget = FULL) -> Experiment:
    """Return an experiment with its rows and cells."""
    if name not in _MAKERS:
        raise HPGMNError.unknown("experiment", name, [*EXPERIMENTS, "all"])
    graphs, rows = _MAKERS[name](budget)
    return Experiment(name, graphs, tuple(rows))


def tuned(model: str, graph: str, budget: Budget = FULL) -> Cell:
    """Return the cell of a model with settings from the common search."""
    is_single = graph in paper.CITATION
    return Cell(
        graph,
        model,
        TUNED,
        _limit_epochs(model, {}, budget),
        trials=budget.trials,
        search_splits=(0,) if is_single else tuple(range(budget.search_runs)),
        search_seeds=budget.search_runs if is_single else 1,
        **_runs(graph, budget),
    )


def shipped(model: str, graph: str, budget: Budget = FULL) -> Cell:
    """Return the cell of a model with its shipped settings."""
    settings = _limit_epochs(model, settings_for(graph, model), budget)
    return Cell(graph, model, SHIPPED, settings, **_runs(graph, budget))


def _ensemble(model: str, graph: str, budget: Budget) -> Cell:
    seeds = ENSEMBLE * budget.seeds if graph in paper.CITATION else ENSEMBLE
    return dataclasses.replace(shipped(model, graph, budget), variant="ensemble", seeds=seeds)


def _runs(graph: str, budget: Budget) -> dict[str, Any]:
    """Return splits, seeds, metric and protocol of a final run."""
    protocols = [
        protocol.name
        for protocol in PROTOCOLS.values()
        if graph in protocol.graphs and protocol.name != "platonov"
    ]
    is_single = graph in paper.CITATION
    return {
        "splits": (0,) if is_single else tuple(range(budget.splits)),
        "seeds": budget.seeds if is_single else 1,
        "metric": DATASETS[graph].metric,
        "protocol": protocols[0] if protocols else None,
    }


def _limit_epochs(model: str, settings: Settings, budget: Budget) -> dict[str, Any]:
    if budget.epochs is None:
        return dict(settings)
    names = [field.name for field in dataclasses.fields(find_model(model).settings)]
    return {**settings, **{name: budget.epochs for name in names if name.endswith("epochs")}}


# Comparisons of models.


def _comparison(models: Sequence[str], graphs: Sequence[str], budget: Budget) -> Layout:
    chosen = budget.select(graphs)
    ours = [model for model in models if model.startswith("hpgmn")]
    rows = [_row(model, tuned, model, chosen, budget) for model in models]
    rows += [_row(f"{model}, shipped", shipped, model, chosen, budget) for model in ours]
    for model in ours:
        row = _row(f"{model}, shipped, {ENSEMBLE} seeds averaged", _ensemble, model, chosen, budget)
        rows.append(dataclasses.replace(row, is_ensemble=True))
    return chosen, rows


def _row(
    label: str, make: Callable[..., Cell], model: str, graphs: Sequence[str], budget: Budget
) -> Row:
    return Row(label, {graph: make(model, graph, budget) for graph in graphs})


def _sound(budget: Budget) -> Layout:
    sound = budget.select(PROTOCOLS["sound"].graphs)
    defective = [paper.DEFECTIVE[graph] for graph in sound if graph in paper.DEFECTIVE]
    graphs = (*sound, *budget.select(defective))
    return graphs, [_row(model, tuned, model, graphs, budget) for model in SOUND_MODELS]


# Changes of the shipped settings, one at a time.


def _change(**changes: Any) -> Option:
    return lambda settings: {**settings, **changes}


def _change_statistics(change: Callable[[Sequence[str]], Sequence[str]]) -> Option:
    return lambda settings: {
        **settings,
        "statistics": tuple(dict.fromkeys(change(settings["statistics"]))),
    }


def _remove(*removed: str) -> Option:
    """Return an option that removes statistics and their means over neighbours."""
    return _change_statistics(
        lambda names: [name for name in names if (averaged_statistic(name) or name) not in removed]
    )


REGULARISATION: dict[str, Option] = {
    "without-kpattern": _change(kpattern_weight=0.0),
    "without-entropy": _change(entropy_weight=0.0),
    "without-both": _change(kpattern_weight=0.0, entropy_weight=0.0),
}
"""Variant → option, for Figure 3."""

REMOVALS: dict[str, Option] = {
    "without-attributes": _remove("attributes"),
    "without-class-counts": _remove("class_counts"),
    "without-class-means": _remove("class_means"),
    "without-diffusion": _remove("diffusion", "adjacency"),
}
"""Variant → option, for Table 4; adjacency rows replace diffusion in the shipped settings."""

STATISTICS_OPTIONS: dict[str, Option] = {
    "paper-config": lambda settings: read_config("paper")["settings"],
    "without-memory": _change(memory=False),
    "without-gate": _change(gate=False),
    "without-column-dropout": _change(
        attributes_dropout=0.0,
        class_counts_dropout=0.0,
        class_means_dropout=0.0,
        diffusion_dropout=0.0,
        adjacency_dropout=0.0,
    ),
    "diffusion-for-adjacency": _change_statistics(
        lambda names: [*(name for name in names if "adjacency" not in name), "diffusion"]
    ),
    "without-neighbor-means": _change_statistics(
        lambda names: [name for name in names if averaged_statistic(name) is None]
    ),
    "with-neighbor-class-means": _change_statistics(lambda names: [*names, "neighbor_class_means"]),
    "with-neighbor-adjacency": _change_statistics(lambda names: [*names, "neighbor_adjacency"]),
    "with-refinement": _change(refinement=True),
    "without-refinement": _change(refinement=False),
    "with-soft-counts": _change(soft_counts=True),
    "train-labels-only": _change(label_confidence=1.0),
}
"""Variant → option beyond the paper, for HP-GMN on its statistics."""

ENCODER_OPTIONS: dict[str, Option] = {
    "without-memory": _change(memory=False),
    "without-consistency": _change(consistency_weight=0.0),
    "propagation-after": _change(propagation="after"),
    "with-batch-norm": _change(batch_norm=True),
    "without-batch-norm": _change(batch_norm=False),
}
"""Variant → option beyond the paper, for HP-GMN on the representation of an APPNP."""


def _options(
    model: str,
    graphs: Sequence[str],
    options: Mapping[str, Option],
    budget: Budget,
    first: str = SHIPPED,
) -> Layout:
    """Return a row per option; unchanged settings share the cell of the first row."""
    chosen = budget.select(graphs)
    base = {graph: shipped(model, graph, budget) for graph in chosen}
    rows = [Row(first, base)]
    for variant, option in options.items():
        cells = {graph: _with_option(cell, variant, option, budget) for graph, cell in base.items()}
        rows.append(Row(variant.replace("-", " "), cells))
    return chosen, rows


def _with_option(cell: Cell, variant: str, option: Option, budget: Budget) -> Cell:
    kind = find_model(cell.model).settings
    changed = _limit_epochs(cell.model, option(cell.settings), budget)
    if make_settings(kind, changed) == make_settings(kind, cell.settings):
        return cell
    return dataclasses.replace(cell, variant=variant, settings=changed)


_MAKERS: dict[str, Callable[[Budget], Layout]] = {
    "table1": lambda budget: (budget.select((*paper.HETEROPHILOUS, *paper.CITATION)), []),
    "table2": lambda budget: _comparison(list(paper.TABLE_2), paper.HETEROPHILOUS, budget),
    "table3": lambda budget: _comparison(list(paper.TABLE_3), paper.CITATION, budget),
    "figure3": lambda budget: _options("hpgmn", paper.ABLATED, REGULARISATION, budget, "full"),
    "table4": lambda budget: _options("hpgmn", paper.ABLATED, REMOVALS, budget, "full"),
    "sound": _sound,
    "options": lambda budget: _options("hpgmn", paper.HETEROPHILOUS, STATISTICS_OPTIONS, budget),
    "citation-options": lambda budget: _options(
        "hpgmn-appnp", paper.CITATION, ENCODER_OPTIONS, budget
    ),
}
EXPERIMENTS = tuple(_MAKERS)
"""The paper's experiments, the sound protocol, and the options beyond the paper."""
