"""``hpgmn explain`` on a finished run and on other graphs."""

import json
from pathlib import Path

import pytest

from hpgmn.explain import explain_model, explain_node
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.training.saved import SavedModel


def of_split(run, split):
    saved = SavedModel.read(run / "model.safetensors")
    return saved.choose([r for r, one in enumerate(saved.replicas) if one.split == split])


@pytest.mark.parametrize(("option", "split"), [([], 1), (["--split", "0"], 0)])
def test_a_node_is_explained_by_the_seeds_of_one_split(hpgmn, trained, small_graph, option, split):
    saved = of_split(trained, split)
    assert len(saved.replicas) == 2
    expected = explain_node(saved, small_graph, 4)
    answer = hpgmn("explain", trained, "--node", "4", *option)
    assert answer.code == 0, answer.err
    assert answer.out == f"{expected}\n"
    as_json = hpgmn("explain", trained, "--node", 4, "--json", *option)
    assert json.loads(as_json.out) == json.loads(json.dumps(expected.as_dict()))


def test_the_whole_model_is_explained_without_a_node(hpgmn, trained, small_graph):
    expected = explain_model(of_split(trained, 1), small_graph)
    answer = hpgmn("explain", trained)
    assert answer.code == 0, answer.err
    assert answer.out == f"{expected}\n"
    content = json.loads(hpgmn("explain", trained, "--json").out)
    assert content["label_next"][0]["node"] == expected.label_next[0].node


def test_columns_alone_are_printed(hpgmn, trained, small_graph):
    for options, explained in (
        ([], explain_model(of_split(trained, 1), small_graph)),
        (["--node", "4"], explain_node(of_split(trained, 1), small_graph, 4)),
    ):
        answer = hpgmn("explain", trained, "--columns", *options)
        assert answer.code == 0, answer.err
        _, rows = explained.column_section()
        lines = answer.out.splitlines()
        assert lines[0].startswith(explained.summary if options else "Model hpgmn.")
        assert [" ".join(line.split()) for line in lines[3:]] == [" ".join(row) for row in rows]


def test_a_node_of_another_graph(hpgmn, tiny, small_graph, graph_file):
    settings = tiny(statistics="attributes,class_counts")
    trained = hpgmn("train", graph_file, *settings, "--splits", "0", "--out", "run")
    assert trained.code == 0, trained.err
    names = [f"person {v}" for v in range(6)]
    other = Graph(small_graph.x[:6], [[0, 1], [1, 2]], node_ids=names, name="other")
    write_graph(other, Path("other.npz"))
    answer = hpgmn("explain", "run", "--node", "person 1", "--graph", "other.npz", "--json")
    assert answer.code == 0, answer.err
    content = json.loads(answer.out)
    assert content["node"] == "person 1"
    assert {one["node"] for one in content["neighbors"]} == {"person 0", "person 2"}
    wrong = hpgmn("explain", "run", "--node", "persn 1", "--graph", "other.npz")
    assert wrong.code == 2
    assert wrong.out == ""
    assert wrong.err.count("\n") == 1
    assert "person 1" in wrong.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--node", "99"], "0 to 17"),
        (["--node", "4", "--split", "7"], "The run has no split 7. Choose from: 1, 0."),
    ],
)
def test_mistakes_are_one_sentence(hpgmn, trained, options, message):
    answer = hpgmn("explain", trained, *options)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("Error: ")
    assert message in answer.err


def test_a_folder_that_is_no_run(hpgmn, tmp_path):
    answer = hpgmn("explain", tmp_path, "--node", "4")
    assert answer.code == 2
    assert "is not a finished run folder" in answer.err
