"""The plan of the reproduction against the paper's tables, written out by hand."""

import dataclasses

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.models import find_model, read_config, settings_for
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn_lab.reproduction import plan
from hpgmn_lab.reproduction.plan import ENCODER_OPTIONS, FULL, QUICK, STATISTICS_OPTIONS, experiment

HETEROPHILOUS = ("texas", "wisconsin", "cornell-geomgcn", "chameleon", "squirrel", "crocodile")
CITATION = ("cora", "citeseer", "pubmed")
SOUND = ("chameleon-filtered", "squirrel-filtered", "cornell", "actor", "minesweeper")


def every_cell(budget=FULL):
    return [cell for name in plan.EXPERIMENTS for cell in experiment(name, budget).cells]


def labels(name, budget=FULL):
    return [row.label for row in experiment(name, budget).rows]


def test_table_2_has_the_papers_rows_and_graphs():
    found = experiment("table2")
    assert found.graphs == HETEROPHILOUS
    assert labels("table2") == [
        *("mlp", "gcn", "mixhop", "gcn-jk", "appnp", "gprgnn", "bmgcn", "mmp", "hpgmn"),
        *("hpgmn, shipped", "hpgmn, shipped, 5 seeds averaged"),
    ]
    assert all(tuple(row.cells) == HETEROPHILOUS for row in found.rows)
    assert [row.is_ensemble for row in found.rows] == [False] * 10 + [True]
    assert len(found.cells) == 11 * 6


def test_table_3_has_the_papers_rows_and_graphs():
    found = experiment("table3")
    assert found.graphs == CITATION
    assert labels("table3")[:7] == [
        *("mlp", "gcn", "mixhop", "gcn-jk", "appnp", "hpgmn-gcn", "hpgmn-appnp")
    ]
    assert len(found.rows) == 7 + 2 + 2
    assert all(tuple(row.cells) == CITATION for row in found.rows)


def test_table_1_is_about_all_nine_graphs_and_trains_nothing():
    assert experiment("table1").graphs == HETEROPHILOUS + CITATION
    assert experiment("table1").cells == []


def test_every_tuned_model_of_a_graph_gets_the_same_search_and_the_same_final_runs():
    tuned = [cell for cell in every_cell() if cell.variant == "tuned"]
    in_sound = 8 * 5 + 4 * 3  # on graphs with defects, four of the models are in Table 2 already
    assert len({cell.name for cell in tuned}) == 9 * 6 + 7 * 3 + in_sound
    for graph in {cell.graph for cell in tuned}:
        own = [cell for cell in tuned if cell.graph == graph]
        work = {
            (cell.trials, cell.search_splits, cell.search_seeds, cell.splits, cell.seeds)
            for cell in own
        }
        assert len(work) == 1, graph
        assert {(cell.metric, cell.protocol) for cell in own} == {
            ("roc_auc" if graph == "minesweeper" else "accuracy", own[0].protocol)
        }
        (found,) = work
        if graph in CITATION:
            assert found == (16, (0,), 3, (0,), 5)
        else:
            assert found == (16, (0, 1, 2), 1, tuple(range(10)), 1)
        assert all(cell.settings == {} for cell in own)


@pytest.mark.parametrize(
    ("graph", "protocol"),
    [
        ("texas", "paper-heterophily"),
        ("crocodile", "paper-crocodile"),
        ("cora", "paper-homophily"),
        ("minesweeper", "sound"),
        ("cornell", "sound"),
    ],
)
def test_a_graph_is_split_as_its_table_says(graph, protocol):
    assert plan.tuned("gcn", graph).protocol == protocol


def test_figure_3_takes_regularisers_away_from_the_shipped_settings():
    found = experiment("figure3")
    assert found.graphs == ("texas", "squirrel")
    shipped = settings_for("squirrel", "hpgmn")
    own = {row.label: row.cells["squirrel"].settings for row in found.rows}
    assert own == {
        "full": shipped,
        "without kpattern": shipped | {"kpattern_weight": 0.0},
        "without entropy": shipped | {"entropy_weight": 0.0},
        "without both": shipped | {"kpattern_weight": 0.0, "entropy_weight": 0.0},
    }


@pytest.mark.parametrize("graph", ["texas", "squirrel"])
def test_table_4_takes_one_statistic_away_each_time(graph):
    shipped = settings_for(graph, "hpgmn")
    own = {row.label: row.cells[graph].settings for row in experiment("table4").rows}
    assert own.pop("full") == shipped
    gone = {
        "without attributes": {"attributes"},
        "without class counts": {"class_counts"},
        "without class means": {"class_means", "neighbor_class_means"},
        "without diffusion": {"diffusion", "adjacency"},
    }
    assert list(own) == list(gone)
    for label, settings in own.items():
        left = set(shipped["statistics"]) - gone[label]
        assert left < set(shipped["statistics"]), label
        assert set(settings["statistics"]) == left
        assert {**settings, "statistics": 0} == {**shipped, "statistics": 0}


def test_the_sound_protocol_stands_beside_the_graphs_with_defects():
    found = experiment("sound")
    assert found.graphs == (*SOUND, "chameleon", "squirrel", "cornell-geomgcn")
    assert labels("sound") == ["mlp", "gcn", "gprgnn", "h2gcn", "linkx", "fsgnn", "dirgcn", "hpgmn"]


def test_averages_are_over_five_seeds_of_each_value_of_the_table():
    rows = {row.label: row for name in ("table2", "table3") for row in experiment(name).rows}
    heterophilous = rows["hpgmn, shipped, 5 seeds averaged"].cells["texas"]
    assert (heterophilous.splits, heterophilous.seeds) == (tuple(range(10)), 5)
    citation = rows["hpgmn-gcn, shipped, 5 seeds averaged"].cells["cora"]
    assert (citation.splits, citation.seeds) == ((0,), 25)
    shipped = rows["hpgmn, shipped"].cells["texas"]
    assert heterophilous == dataclasses.replace(shipped, variant="ensemble", seeds=5)


def test_the_options_start_from_the_shipped_settings():
    found = experiment("options")
    assert found.graphs == HETEROPHILOUS
    rows = {row.label: row.cells for row in found.rows}
    assert rows["shipped"]["texas"].settings == settings_for("texas", "hpgmn")
    cell = rows["without gate"]["texas"]
    assert cell.settings == settings_for("texas", "hpgmn") | {"gate": False}
    assert cell.variant == "without-gate"
    citation = experiment("citation-options")
    assert citation.graphs == CITATION
    after = {row.label: row.cells for row in citation.rows}["propagation after"]["cora"]
    assert after.settings == settings_for("cora", "hpgmn-appnp") | {"propagation": "after"}
    for one in (found, citation):
        assert all(tuple(row.cells) == one.graphs for row in one.rows)


def test_an_option_that_changes_nothing_is_not_trained_again():
    rows = {row.label: row.cells for row in experiment("options").rows}
    plain = [g for g in HETEROPHILOUS if "neighbor" not in str(settings_for(g)["statistics"])]
    assert plain
    for graph in HETEROPHILOUS:
        same = rows["without neighbor means"][graph] == rows["shipped"][graph]
        assert same == (graph in plain)


@pytest.mark.parametrize("budget", [FULL, QUICK])
def test_cells_of_one_name_are_the_same_in_every_experiment(budget):
    cells = {}
    for cell in every_cell(budget):
        assert cells.setdefault(cell.name, cell) == cell


@pytest.mark.parametrize("budget", [FULL, QUICK])
def test_every_cells_settings_are_ones_its_model_takes(budget):
    for cell in every_cell(budget):
        make_settings(find_model(cell.model).settings, cell.settings)


def test_quick_means_few_graphs_few_runs_and_no_stage_beyond_twenty_epochs():
    assert {cell.graph for cell in every_cell(QUICK)} == {"texas", "cornell", "cora"}
    stages = set()
    for cell in every_cell(QUICK):
        settings = dataclasses.asdict(make_settings(find_model(cell.model).settings, cell.settings))
        epochs = {name: value for name, value in settings.items() if name.endswith("epochs")}
        stages |= set(epochs)
        assert set(epochs.values()) == {20}, cell.name
        assert cell.trials in (0, 2)
        assert len(cell.splits) <= 2
        assert cell.seeds in (1, 2, 5, 10)
    assert {"epochs", "estimator_epochs", "pretraining_epochs"} <= stages


def test_an_unknown_experiment_is_told_with_the_nearest():
    with pytest.raises(HPGMNError, match=r"Unknown experiment 'tabel2'. Did you mean 'table2'\?"):
        experiment("tabel2")


# Options beyond the paper.

BASE = {
    "statistics": ("attributes", "class_means", "adjacency", "neighbor_class_means"),
    "refinement": True,
    "lr": 0.5,
}


@pytest.mark.parametrize(
    ("variant", "change"),
    [
        ("without-memory", {"memory": False}),
        ("without-gate", {"gate": False}),
        (
            "diffusion-for-adjacency",
            {"statistics": ("attributes", "class_means", "neighbor_class_means", "diffusion")},
        ),
        ("without-neighbor-means", {"statistics": ("attributes", "class_means", "adjacency")}),
        ("with-neighbor-class-means", {}),
        ("with-neighbor-adjacency", {"statistics": (*BASE["statistics"], "neighbor_adjacency")}),
        ("with-refinement", {}),
        ("without-refinement", {"refinement": False}),
        ("with-soft-counts", {"soft_counts": True}),
        ("train-labels-only", {"label_confidence": 1.0}),
    ],
)
def test_an_option_changes_what_it_names(variant, change):
    assert STATISTICS_OPTIONS[variant](BASE) == BASE | change


def test_without_column_dropout_no_statistic_is_thinned_out():
    changed = STATISTICS_OPTIONS["without-column-dropout"](BASE)
    rates = {name: value for name, value in changed.items() if name.endswith("_dropout")}
    assert set(rates) == {
        f"{name}_dropout"
        for name in ("attributes", "class_counts", "class_means", "diffusion", "adjacency")
    }
    assert set(rates.values()) == {0.0}
    assert changed.keys() - rates.keys() == BASE.keys()


def test_the_papers_config_is_the_papers_on_every_graph():
    """What ``hpgmn train GRAPH --config paper`` trains, whatever ships for the graph."""
    [row] = [row for row in experiment("options").rows if row.label == "paper config"]
    expected = make_settings(HPGMNSettings, read_config("paper")["settings"])
    for cell in row.cells.values():
        assert make_settings(HPGMNSettings, cell.settings) == expected


@pytest.mark.parametrize(
    ("variant", "change"),
    [
        ("without-memory", {"memory": False}),
        ("without-consistency", {"consistency_weight": 0.0}),
        ("propagation-after", {"propagation": "after"}),
        ("with-batch-norm", {"batch_norm": True}),
        ("without-batch-norm", {"batch_norm": False}),
    ],
)
def test_encoder_options_change_what_they_name(variant, change):
    assert ENCODER_OPTIONS[variant](BASE) == BASE | change
