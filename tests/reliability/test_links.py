"""Links that lead out of a folder: nothing is written or removed through them."""

import shutil

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.spec import RunSpec

SPEC = RunSpec(graph="texas", model="hpgmn", splits=(0,), seeds=1, settings={})


@pytest.fixture
def outside(tmp_path):
    """A folder that belongs to somebody else."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("kept")
    return folder


def assert_kept(outside):
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_text() == "kept"


@pytest.mark.parametrize("choice", [{"resume": True, "overwrite": False}, {"overwrite": True}])
@pytest.mark.parametrize(
    "name",
    ["log.txt", "model.safetensors", "metrics.json.unfinished", "state", "state/state-000", "own"],
)
def test_a_run_folder_with_a_link_is_not_written_to(tmp_path, outside, name, choice):
    folder = tmp_path / "run"
    prepare_folder(folder, SPEC, resume=False, overwrite=False)
    aim = outside if name == "state" else outside / "precious"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(aim)
    before = sorted(folder.rglob("*"))
    with pytest.raises(HPGMNError) as caught:
        prepare_folder(folder, SPEC, **({"resume": False} | choice))
    assert f"{folder} holds a link, {name}" in str(caught.value)
    assert "--out" in caught.value.render(cli=True)
    assert sorted(folder.rglob("*")) == before
    assert_kept(outside)


@pytest.mark.parametrize("choice", [{"resume": True, "overwrite": False}, {"overwrite": True}])
@pytest.mark.parametrize("name", [".replaced", ".replaced/model.safetensors"])
def test_nothing_is_taken_out_of_a_folder_that_a_link_calls_an_earlier_run(tmp_path, name, choice):
    folder, other = tmp_path / "run", tmp_path / "other"
    prepare_folder(folder, SPEC, resume=False, overwrite=False)
    prepare_folder(other, SPEC, resume=False, overwrite=False)
    for file in ("metrics.json", "model.safetensors"):
        (other / file).write_text("theirs")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(other if name == ".replaced" else other / "model.safetensors")
    with pytest.raises(HPGMNError, match="nothing is written through links"):
        prepare_folder(folder, SPEC, **({"resume": False} | choice))
    assert {path.name for path in other.iterdir()} == {
        *("config.yaml", "metrics.json", "model.safetensors")
    }
    assert (folder / name).is_symlink()


def test_a_run_folder_may_itself_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    prepare_folder(tmp_path / "run", SPEC, resume=False, overwrite=False)
    assert (tmp_path / "disk" / "config.yaml").is_file()


def test_files_that_are_replaced_are_not_written_through(tmp_path, outside, small_graph):
    import torch

    from hpgmn.base.files import write_tensors, write_text
    from hpgmn.graph.files import read_graph, write_graph

    for name in ("a.npz", "a.safetensors", "a.txt"):
        (tmp_path / name).symlink_to(outside / "precious")
    write_graph(small_graph, tmp_path / "a.npz")
    write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(1)}, {})
    write_text(tmp_path / "a.txt", "new")
    assert not any((tmp_path / name).is_symlink() for name in ("a.npz", "a.safetensors", "a.txt"))
    assert read_graph(tmp_path / "a.npz").num_nodes == 18
    assert_kept(outside)


def test_a_link_in_the_cache_is_dropped_and_not_what_it_leads_to(tmp_path, outside):
    from hpgmn.statistics.cache import drop, read_entry

    key = "a" * 40
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / key).symlink_to(outside)
    with pytest.raises(OSError, match="No such file"):
        read_entry(cache, key)
    drop(cache / key)
    assert list(cache.iterdir()) == []
    assert_kept(outside)


def test_a_model_that_is_a_link_to_something_else_is_no_model(tmp_path):
    from hpgmn.training.saved import SavedModel

    (tmp_path / "secret").write_text("root:x:0:0: what nobody else may read")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "secret")
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file") as caught:
        SavedModel.read(tmp_path / "model.safetensors")
    assert "root" not in str(caught.value).replace(str(tmp_path), "")


def test_a_graph_folder_may_hold_links_and_they_stay(tmp_path, small_graph):
    """Reading through links is fine: large arrays may lie on another disk."""
    from hpgmn.graph.files import read_graph, write_graph

    write_graph(small_graph, tmp_path / "a.graph")
    shutil.move(tmp_path / "a.graph" / "x.npy", tmp_path / "x.npy")
    (tmp_path / "a.graph" / "x.npy").symlink_to(tmp_path / "x.npy")
    assert read_graph(tmp_path / "a.graph").num_features == 5
    assert (tmp_path / "a.graph" / "x.npy").is_symlink()
