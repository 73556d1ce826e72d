"""Known datasets and protocols, and loading: by name, from a file, and every mistake in it."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpgmn
from hpgmn.base.errors import DataNotFoundError, GraphError, HPGMNError, SettingError
from hpgmn.base.files import cache_folder
from hpgmn.graph import Graph, Splits
from hpgmn.graph.datasets import DATASETS, PROTOCOLS, find_file, load
from hpgmn.graph.files import read_graph, write_graph
from hpgmn.graph.graph import random_splits
from hpgmn.tables.options import check_column_options

ON_RECORD = [name for name, dataset in DATASETS.items() if dataset.homophily is not None]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """An empty data folder and an empty cache folder, both in use."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    (cache / "hpgmn").mkdir(parents=True)
    monkeypatch.setenv("HPGMN_DATA", str(data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return data, cache / "hpgmn"


def plain_graph(num_nodes=20, with_splits=True, marker=1.0):
    y = np.arange(num_nodes) % 2
    graph = Graph(np.full((num_nodes, 1), marker), [[0], [1]], y)
    return graph.with_splits(random_splits(y, count=2)) if with_splits else graph


@pytest.mark.parametrize("name", ON_RECORD)
def test_known_sizes_are_those_of_the_file(data_dir, name):
    path = data_dir / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{name}.npz is not in the folder of graph files")
    graph, known = read_graph(path), DATASETS[name]
    found = (graph.num_nodes, graph.edge_index.shape[1], graph.num_features, graph.num_classes)
    assert found == (known.num_nodes, known.num_edges, known.num_features, known.num_classes)
    assert (graph.splits is None) == known.random_splits
    if known.download is not None:
        assert graph.directed == known.download.directed


def test_every_dataset_of_a_protocol_is_known_and_has_its_metric():
    for protocol in PROTOCOLS.values():
        assert set(protocol.graphs) <= set(DATASETS)
    assert PROTOCOLS["platonov"].metrics == {
        "minesweeper": "roc_auc",
        "tolokers": "roc_auc",
        "questions": "roc_auc",
        "roman-empire": "accuracy",
        "amazon-ratings": "accuracy",
    }
    assert PROTOCOLS["sound"].metrics["minesweeper"] == "roc_auc"
    assert set(PROTOCOLS["paper-heterophily"].metrics.values()) == {"accuracy"}
    assert {name: protocol.seeds for name, protocol in PROTOCOLS.items() if protocol.seeds > 1} == {
        "paper-homophily": 5
    }


def test_what_pyg_lacks_is_to_be_brought():
    brought = {name for name, dataset in DATASETS.items() if dataset.download is None}
    assert brought == {
        *("cornell", "crocodile", "chameleon-filtered", "squirrel-filtered"),
        *("chameleon-traffic", "squirrel-traffic"),
        *("twitch-gamers", "arxiv-year", "snap-patents", "pokec"),
    }


def test_only_defects_are_warned_of():
    warned = {name for name, dataset in DATASETS.items() if dataset.is_defective}
    assert warned == {"cornell-geomgcn", "chameleon", "squirrel"}
    assert all(DATASETS[name].defects for name in warned)


def test_data_folder_comes_before_the_cache(folders):
    data, cache = folders
    assert find_file("texas") is None
    write_graph(plain_graph(marker=2.0), cache / "texas.npz")
    assert find_file("texas") == cache / "texas.npz"
    assert load("texas").x[0, 0] == 2.0
    write_graph(plain_graph(marker=3.0), data / "texas.npz")
    assert find_file("texas") == data / "texas.npz"
    assert load("texas").x[0, 0] == 3.0


def test_cache_is_used_without_a_data_folder(folders, monkeypatch):
    monkeypatch.setenv("HPGMN_DATA", "")
    write_graph(plain_graph(), folders[1] / "texas.npz")
    assert load("texas").name == "texas"


def test_cache_is_in_the_home_folder_by_default(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "hpgmn"


def test_data_folder_that_is_none_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path / "absent"))
    message = r"HPGMN_DATA names '.*absent', which is not a folder"
    with pytest.raises(HPGMNError, match=message):
        load("texas")
    with pytest.raises(HPGMNError, match=message):
        find_file("texas")


@pytest.mark.usefixtures("folders")
def test_unknown_name_gets_the_nearest():
    message = r"Unknown dataset 'chamelon'\. Did you mean 'chameleon'\? Choose from: texas, "
    with pytest.raises(HPGMNError, match=message):
        load("chamelon")
    with pytest.raises(HPGMNError, match=message):
        find_file("chamelon")


@pytest.mark.usefixtures("folders")
def test_known_but_absent_says_how_to_get_it():
    with pytest.raises(DataNotFoundError) as caught:
        load("texas")
    assert "`hpgmn datasets --download texas`" in str(caught.value)
    assert "put texas.npz into the folder that HPGMN_DATA names" in str(caught.value)
    with pytest.raises(DataNotFoundError, match=r"Put pokec\.npz into the folder") as caught:
        load("pokec")
    assert caught.value.remedy.command is None


def test_a_path_is_read_as_a_file(tmp_path, monkeypatch):
    write_graph(plain_graph(), tmp_path / "mine.npz")
    monkeypatch.chdir(tmp_path)
    for source in ("mine.npz", str(tmp_path / "mine.npz"), tmp_path / "mine.npz"):
        assert load(source).name == "mine"


@pytest.mark.parametrize("source", ["absent.npz", "folder/absent", Path("absent")])
def test_a_missing_file_is_refused(source):
    with pytest.raises(GraphError, match=f"Graph file '{source}' does not exist"):
        load(source)


def test_another_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "nodes").write_text("id,class")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GraphError, match=r"Graph file 'nodes': it is not a \.npz file"):
        load("nodes")


def test_a_graph_folder_is_accepted_as_a_file_is(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_graph(plain_graph(), tmp_path / "mine")
    for source in ("mine", Path("mine"), str(tmp_path / "mine")):
        assert load(source).name == "mine"
    for name in ("pokec.graph", "genius"):
        write_graph(plain_graph(), folders[0] / name)
        assert load(name.removesuffix(".graph")).name == name.removesuffix(".graph")
        assert find_file(name.removesuffix(".graph")) == folders[0] / name
    write_graph(plain_graph(), folders[0] / "pokec.npz")
    assert find_file("pokec") == folders[0] / "pokec.npz"


def write_tables(folder, ages, edges="a,b\n"):
    """A folder of tables: nodes a, b, … with an age and a class, good and bad in turn."""
    folder.mkdir()
    rows = [f"{'abcdefghij'[n]},{age},{('good', 'bad')[n % 2]}" for n, age in enumerate(ages)]
    (folder / "nodes.csv").write_text("\n".join(["id,age,label", *rows, ""]))
    (folder / "edges.csv").write_text(f"source,target\n{edges}")
    return folder


def test_a_folder_of_tables_is_a_graph(tmp_path):
    lines = []
    ages = [str(age) for age in range(10)]
    steps = []
    graph = load(
        write_tables(tmp_path / "mine", ages),
        log=lines.append,
        progress=lambda what, done, total: steps.append(what),
    )
    assert list(dict.fromkeys(steps)) == [
        "Reading the names in nodes.csv",
        "Preparing the attributes in nodes.csv",
        "Counting the edges in edges.csv",
        "Reading the edges in edges.csv",
        "Checking the graph",
    ]
    assert (graph.name, graph.num_nodes, graph.class_names) == ("mine", 10, ("bad", "good"))
    np.testing.assert_allclose(graph.x[:, 0], (np.arange(10) - 4.5) / 8.25**0.5, rtol=1e-6)
    assert len(graph.splits) == 10
    assert lines[0] == "nodes.csv: id is 'id', label is 'label'; 1 more column: age."
    assert lines[-1].startswith("Graph 'mine' has no splits; using 10 random splits 60/20/20")
    raw = load(tmp_path / "mine", prepare=False, directed=False)
    assert raw.x[:, 0].tolist() == list(range(10))
    assert raw.preparation is None
    assert not raw.directed


def test_later_tables_are_prepared_as_the_first(tmp_path):
    first = load(write_tables(tmp_path / "first", ["0", "4"]))
    later = load(write_tables(tmp_path / "later", ["6", "4"]), preparation=first.preparation)
    assert first.x.tolist() == [[-1], [1]]
    assert later.x.tolist() == [[2], [1]]
    assert later.preparation == first.preparation


def test_graphml_is_a_graph(tmp_path):
    networkx = pytest.importorskip("networkx")
    network = networkx.path_graph(4)
    for node in network:
        network.nodes[node].update(age=float(node % 2), city="xy"[node // 2], club="ab"[node % 2])
    networkx.write_graphml(network, tmp_path / "club.graphml")
    graph = load(tmp_path / "club.graphml", label="club")
    assert (graph.name, graph.directed, graph.num_edges) == ("club", False, 3)
    assert graph.x.tolist() == [[0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1]]
    assert graph.y.tolist() == [0, 1, 0, 1]


def test_tables_without_edges_are_a_graph(tmp_path):
    folder = write_tables(tmp_path / "mine", ["1", "2"], edges="")
    assert load(folder).num_edges == 0
    first = load(write_tables(tmp_path / "first", ["0", "4"]))
    assert load(folder, preparation=first.preparation).num_edges == 0


def test_columns_are_said_of_tables_only(tmp_path):
    write_graph(plain_graph(), tmp_path / "plain.npz")
    with pytest.raises(SettingError, match=r"plain\.npz' has no tables.*\(label, drop\)") as error:
        load(tmp_path / "plain.npz", label="kind", drop=["age"])
    assert "(--label)" in error.value.render(cli=True)
    for value in (np.array(["a", "b"]), []):
        with pytest.raises(SettingError, match=r"has no tables.*\(attributes=\.\.\.\)"):
            load(tmp_path / "plain.npz", attributes=value)
    with pytest.raises(SettingError, match="has no tables") as error:
        load(tmp_path / "plain.npz", split="part")
    assert "(--split-column)" in error.value.render(cli=True)
    with pytest.raises(SettingError, match="has no tables") as error:
        load(tmp_path / "plain.npz", directed=False)
    assert "(--directed/--undirected)" in error.value.render(cli=True)
    plain = load(tmp_path / "plain.npz", label=None, drop=[], categories=(), directed=None)
    assert plain.num_nodes == plain_graph().num_nodes


def test_unknown_options_of_columns_are_refused(tmp_path):
    write_graph(plain_graph(), tmp_path / "plain.npz")
    networkx = pytest.importorskip("networkx")
    nodes, edges = {"id": ["a", "b"]}, {"source": ["a"], "target": ["b"]}
    for make in (
        lambda **options: load(tmp_path / "plain.npz", **options),
        lambda **options: load(write_tables(tmp_path / "mine", ["1", "2"]), **options),
        lambda **options: hpgmn.from_tables(nodes, edges, **options),
        lambda **options: hpgmn.from_networkx(networkx.path_graph(3), **options),
    ):
        with pytest.raises(SettingError, match="Unknown option of columns 'lable'") as error:
            make(lable=None)
        assert error.value.remedy.value == "label"


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(HPGMNError, match=r"has no tables nodes and edges .* pass a \.npz file"):
        load(tmp_path)
    with pytest.raises(HPGMNError, match="has no tables nodes and edges"):
        load(str(tmp_path))


def test_defects_are_warned_of(folders, caplog):
    graph = plain_graph(DATASETS["chameleon"].num_nodes)
    write_graph(graph, folders[0] / "chameleon.npz")
    assert len(load("chameleon").splits) == len(graph.splits)
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    message = "near-duplicates shared between train and test; chameleon-filtered"
    assert message in warning.getMessage()


def test_own_graph_of_the_same_name_is_not_warned_of(tmp_path, caplog):
    write_graph(plain_graph(), tmp_path / "squirrel.npz")
    load(tmp_path / "squirrel.npz")
    assert caplog.records == []


def test_crocodile_gets_random_splits(folders):
    graph = plain_graph(DATASETS["crocodile"].num_nodes, with_splits=False)
    write_graph(graph, folders[0] / "crocodile.npz")
    expected = random_splits(graph, count=10, fractions=(0.6, 0.2, 0.2), stratified=False)
    for protocol in (None, "paper-crocodile"):
        splits = load("crocodile", protocol).splits
        np.testing.assert_array_equal(splits.train, expected.train)
        np.testing.assert_array_equal(splits.test, expected.test)


def test_own_graph_without_splits_gets_stratified_ones(tmp_path, caplog):
    graph = plain_graph(with_splits=False)
    write_graph(graph, tmp_path / "mine.npz")
    with caplog.at_level(logging.INFO):
        splits = load(tmp_path / "mine.npz").splits
    np.testing.assert_array_equal(splits.val, random_splits(graph, stratified=True).val)
    assert "Graph 'mine' has no splits; using 10 random splits 60/20/20, strat" in caplog.text


@pytest.mark.parametrize("labels", [[-1] * 6, [0] * 6, [0, 1, -1, -1, -1, -1]])
def test_a_graph_with_too_few_labels_stays_without_splits(tmp_path, labels):
    write_graph(Graph(np.ones((6, 1)), [], labels), tmp_path / "bare.npz")
    assert load(tmp_path / "bare.npz").splits is None


def test_geom_gcn_protocol_takes_the_other_splits(folders):
    graph = plain_graph()
    other = Splits(graph.splits.test, graph.splits.val, graph.splits.train)
    families = {"geom": other}
    both = Graph(graph.x, graph.edge_index, graph.y, alternative_splits=families)
    write_graph(both.with_splits(graph.splits), folders[0] / "cora.npz")
    public, geom = load("cora", "paper-homophily").splits, load("cora", "geom-gcn").splits
    np.testing.assert_array_equal(public.train, graph.splits.train)
    np.testing.assert_array_equal(geom.train, graph.splits.test)


def test_protocol_mistakes_are_refused(folders):
    write_graph(plain_graph(), folders[0] / "cora.npz")
    write_graph(plain_graph(with_splits=False), folders[0] / "pubmed.npz")
    with pytest.raises(HPGMNError, match=r"Unknown protocol 'platon'\. Did you mean 'platonov'\?"):
        load("cora", "platon")
    with pytest.raises(HPGMNError, match=r"'platonov' does not use 'cora'\. Choose from: mines"):
        load("cora", "platonov")
    with pytest.raises(GraphError, match="file of 'cora' has no array 'geom_train_mask'"):
        load("cora", "geom-gcn")
    with pytest.raises(GraphError, match="file of 'pubmed' has no array 'train_mask'"):
        load("pubmed", "paper-homophily")


def test_real_citation_graphs_have_both_families(data_dir):
    found = find_file("cora")
    assert found.samefile(data_dir / "cora.npz")
    public, geom = load("cora", "paper-homophily").splits, load("cora", "geom-gcn").splits
    assert (len(public), len(geom)) == (1, 10)


def test_real_crocodile_is_split_without_regard_to_classes(data_dir):
    assert (data_dir / "crocodile.npz").exists()
    graph = load("crocodile")
    order = np.random.default_rng(4).permutation(11631)
    assert np.flatnonzero(graph.split(4).train).tolist() == sorted(order[:6979])
    assert graph.split(4).val.sum() == 2326
    assert graph.split(4).test.sum() == 2326


@pytest.mark.parametrize(
    ("words", "parts"),
    [(["train"] * 4, "no val"), (["test", "test", "", ""], "no train and no val")],
)
def test_a_split_column_without_a_part_is_refused(tmp_path, words, parts):
    folder = write_tables(tmp_path / "mine", ["1", "2", "3", "4"])
    lines = (folder / "nodes.csv").read_text().splitlines()
    rows = [f"{line},{word}" for line, word in zip(lines, ["split", *words], strict=True)]
    (folder / "nodes.csv").write_text("\n".join([*rows, ""]))
    with pytest.raises(HPGMNError, match=rf"column 'split' has {parts} nodes") as caught:
        load(folder)
    assert "(--split-column '')" in caught.value.render(cli=True)
    assert load(folder, split="").preparation is not None


def test_too_few_labels_for_splits_is_left_to_who_needs_them(tmp_path):
    lines = []
    graph = load(write_tables(tmp_path / "mine", ["1", "2"]), log=lines.append)
    assert graph.splits is None
    assert not [line for line in lines if "fractions" in line]


PEOPLE = ["who,kind,age,code", "a,x,1,7", "b,y,2,8", "c,x,3,7", "d,y,4,8"]
PAYMENTS = ["u,v,paid", "a,b,1", "b,c,2"]


@pytest.fixture
def people(tmp_path):
    folder = tmp_path / "people"
    folder.mkdir()
    (folder / "nodes.csv").write_text("\n".join([*PEOPLE, ""]))
    (folder / "edges.csv").write_text("\n".join([*PAYMENTS, ""]))
    return folder


def test_keywords_say_what_the_columns_are(people):
    named = {"id": "who", "label": "kind", "source": "u", "target": "v", "weight": "paid"}
    named |= {"edge_drop": ["paid"]}
    graph = hpgmn.load(people, **named, drop=["age"], categories=["code"], directed=False)
    assert graph.feature_names.tolist() == ["code=7", "code=8"]
    assert graph.class_names == ("x", "y")
    assert graph.edge_weight is not None
    assert not graph.directed
    assert hpgmn.load(people, **named, attributes=["age"]).num_features == 1


def test_messages_name_keywords(people):
    with pytest.raises(
        GraphError, match=r"column for the id .* who, kind.*\(id=\.\.\.\).*\(target"
    ):
        hpgmn.load(people)
    with pytest.raises(SettingError, match=r"drop takes a list of names\. Pass \['age'\]"):
        hpgmn.load(people, drop="age")
    with pytest.raises(SettingError, match=r"edge_drop takes a list of names\. Pass \['paid'\]"):
        hpgmn.load(people, edge_drop="paid")


def test_later_tables_are_like_the_first_or_added_to_it(people, tmp_path):
    first = hpgmn.load(people, id="who", label="kind", source="u", target="v", weight="paid")
    again = hpgmn.load(people, like=first)
    assert again.fingerprint == first.fingerprint
    (people / "nodes.csv").write_text("who,age,code\ne,9,7\n")
    (people / "edges.csv").write_text("u,v,paid\ne,a,1\n")
    assert hpgmn.load(people, onto=first).num_nodes == 5
    with pytest.raises(SettingError, match="like and onto exclude each other"):
        hpgmn.load(people, like=first, onto=first)
    with pytest.raises(HPGMNError, match=r"trained on 1 of the unknown nodes.*\(onto=\.\.\.\)"):
        hpgmn.load(people, like=first)
    json.dumps(first.preparation)


def test_entries_of_a_config_are_keywords():
    assert check_column_options({"label": "kind"}) == {"label": "kind"}
    with pytest.raises(SettingError, match=r"Unknown entry of tables: 'lable'.*'label'"):
        check_column_options({"lable": "kind"}, "entry of tables:")


def test_a_graph_file_is_loaded_without_the_code_for_tables(tmp_path):
    write_graph(plain_graph(), tmp_path / "mine.npz")
    code = (
        "import sys, hpgmn; hpgmn.load(sys.argv[1]); import hpgmn.statistics\n"
        "assert not [name for name in sys.modules if name.startswith(('hpgmn.tables', 'pyarrow'))]"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "mine.npz"], check=True)
