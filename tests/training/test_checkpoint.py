"""Saved states come back bit for bit; what is damaged or foreign is refused."""

import copy
import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from hpgmn.base.errors import HPGMNError
from hpgmn.training import checkpoint
from hpgmn.training.checkpoint import read_tensors, write_tensors
from hpgmn.training.state import read_seconds, read_state, write_state
from hpgmn.training.trainer import HISTORY, StageState, TrainState


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parameters(replicas, seed):
    return {
        "encode.attributes.first.weight": normal(replicas, 4, 3, seed=seed),
        "head.memory.patterns": normal(replicas, 2, 3, seed=seed + 1),
    }


def make_state(*, finished=False):
    """Three replicas with one stage done, and a second done or under way with two replicas left."""
    state = TrainState(seconds={"statistics": 1 / 3, "training": math.pi})
    for number, stage in enumerate(("estimator", "main") if finished else ("estimator",)):
        state.done[stage] = parameters(3, 10 * number)
        state.best_score[stage] = normal(3, seed=number)
        state.best_loss[stage] = normal(3, seed=number + 5)
        state.best_epoch[stage] = torch.tensor([3, 1, 2]) + number
        state.history[stage] = {key: normal(4, 3, seed=n) for n, key in enumerate(HISTORY)}
    if not finished:
        state.current = StageState(
            name="main",
            epoch=2,
            live=[0, 2],
            parameters=parameters(2, 30),
            first=parameters(2, 40),
            second=parameters(2, 50),
            best=parameters(3, 60),
            best_score=normal(3, seed=70),
            best_loss=torch.tensor([0.5, math.inf, math.nan]),
            best_epoch=torch.tensor([2, 0, 1]),
            overflowed=torch.tensor([False, False, True]),
            history={key: [normal(3), torch.tensor([1.0, math.nan, -0.0])] for key in HISTORY},
        )
    return state


def bits(value):
    """Anything with its tensors as (type, shape, bytes), so that even a NaN can be compared."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, list):
        return [bits(part) for part in value]
    return bits(vars(value)) if isinstance(value, TrainState | StageState) else value


def test_tensors_and_their_description_come_back_exactly(tmp_path):
    tensors = {
        "float": torch.tensor([1 / 3, -0.0, math.inf, math.nan, 1e-30]),
        "double": normal(2, 3).double(),
        "whole": torch.tensor([-(2**63), 2**63 - 1]),
        "flag": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
        "number": torch.tensor(7.0),
        "turned": normal(3, 2).T,
    }
    about = {"words": "ein ‖ Wort", "number": 1 / 3, "list": [1, None, True], "map": {"a": []}}
    write_tensors(tmp_path / "file", tensors, about)
    found, said = read_tensors(tmp_path / "file")
    assert bits(found) == bits(tensors)
    assert said == about


def test_nothing_but_the_file_is_left_behind(tmp_path):
    write_tensors(tmp_path / "file", {"a": normal(3)}, {})
    write_tensors(tmp_path / "file", {"a": normal(3)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("finished", [True, False])
def test_a_state_comes_back_exactly(tmp_path, finished):
    state = make_state(finished=finished)
    before = copy.deepcopy(state)
    write_state(tmp_path / "state", state, "me")
    assert bits(state) == bits(before)  # writing changed nothing
    found = read_state(tmp_path / "state", "me")
    assert bits(found) == bits(state)
    assert list(found.done) == list(state.done)


def test_a_state_without_any_stage_comes_back(tmp_path):
    write_state(tmp_path / "state", TrainState(), "me")
    assert bits(read_state(tmp_path / "state", "me")) == bits(TrainState())


def test_stages_whose_names_begin_alike_are_kept_apart(tmp_path):
    state = make_state(finished=True)
    for part in (state.done, state.best_score, state.best_loss, state.best_epoch, state.history):
        part["main2"] = copy.deepcopy(part["estimator"])
    write_state(tmp_path / "state", state, "me")
    assert bits(read_state(tmp_path / "state", "me")) == bits(state)


def test_a_state_of_another_training_is_refused(tmp_path):
    write_state(tmp_path / "state", make_state(), "me")
    with pytest.raises(
        HPGMNError, match="started with other settings, graph, splits, seeds or code"
    ):
        read_state(tmp_path / "state", "you")


def test_a_missing_file_is_named(tmp_path):
    for read in (read_tensors, lambda path: read_state(path, "me")):
        with pytest.raises(HPGMNError, match=r"gone.safetensors does not exist"):
            read(tmp_path / "gone.safetensors")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path, share):
    path = tmp_path / "state"
    write_state(path, make_state(), "me")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
        read_state(path, "me")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_who_may_read_a_new_file_may_read_a_model(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(1)}, {})
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == mode


def test_a_file_that_is_something_else_is_refused(tmp_path):
    path = tmp_path / "state"
    for content in (b"not a safetensors file at all", b"\x00" * 64, b"\xff" * 64, b"{}"):
        path.write_bytes(content)
        with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
            read_state(path, "me")


@pytest.mark.parametrize("place", [0, 4, 9, 40])
def test_a_damaged_header_is_refused(tmp_path, place):
    path = tmp_path / "state"
    write_state(path, make_state(), "me")
    content = bytearray(path.read_bytes())
    content[place] = 0xFF
    path.write_bytes(content)
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
        read_state(path, "me")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"about": "{unfinished"}])
def test_tensors_of_another_program_are_refused(tmp_path, metadata):
    save_file({"a": normal(3)}, tmp_path / "state", metadata=metadata)
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
        read_state(tmp_path / "state", "me")


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": None},
        {"stages": None},
        {"stages": ["main"]},
        {"current": 7},
        {"current": {"name": "main", "epoch": 2}},
        {"current": {"name": "main", "epoch": 2, "live": [0, 2], "best": {}}},
    ],
)
def test_a_state_that_does_not_go_together_is_refused(tmp_path, change):
    """Its checksum is right, as one that was put together by hand may have it."""
    path = tmp_path / "state"
    write_state(path, make_state(), "me")
    tensors, about = read_tensors(path)
    about |= change
    write_tensors(path, tensors, {key: value for key, value in about.items() if value is not None})
    with pytest.raises(HPGMNError, match=r"state is damaged.*Restore it, or train again"):
        read_state(path, "me")
    if "seconds" in change:
        with pytest.raises(HPGMNError, match=r"state is damaged"):
            read_seconds(path)


def test_a_state_without_a_tensor_is_refused(tmp_path):
    path = tmp_path / "state"
    write_state(path, make_state(), "me")
    tensors, about = read_tensors(path)
    for name in tensors:
        if name.count("/") < 2 or "history" in name:  # the names of the others, the model knows
            rest = {key: value for key, value in tensors.items() if key != name}
            write_tensors(path, rest, about)
            with pytest.raises(HPGMNError, match=r"state is damaged"):
                read_state(path, "me")


def test_a_state_of_the_first_form_did_not_look_for_overflow(tmp_path):
    path = tmp_path / "state"
    write_state(path, make_state(), "me")
    tensors, about = read_tensors(path)
    del tensors["current/overflowed"], about["format"]
    write_tensors(path, tensors, about)
    found = read_state(path, "me").current
    assert found is not None
    assert found.overflowed.tolist() == [False] * 3


def test_the_seconds_of_a_state_are_added_up(tmp_path):
    write_state(tmp_path / "state", make_state(), "me")
    assert read_seconds(tmp_path / "state") == pytest.approx(1 / 3 + math.pi)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("step", ["save_file", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "state"
    old, new = make_state(), make_state(finished=True)
    write_state(path, old, "me")

    def fail(*arguments, **_):
        if step == "save_file":  # a disk that fills up half way
            Path(arguments[1]).write_bytes(b"half a file")
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        raise OSError(28, "No space left on device")

    place = checkpoint if step == "save_file" else os
    with monkeypatch.context() as patch:
        patch.setattr(place, step, fail)
        with pytest.raises(HPGMNError, match=r"No space left.*Free disk space"):
            write_state(path, new, "me")
    assert [file.name for file in tmp_path.iterdir()] == ["state"]
    assert bits(read_state(path, "me")) == bits(old)
    write_state(path, new, "me")
    assert bits(read_state(path, "me")) == bits(new)


def test_the_description_is_plain_json(tmp_path):
    write_state(tmp_path / "state", make_state(), "me")
    content = (tmp_path / "state").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    about = json.loads(header["__metadata__"]["about"])
    assert about["identity"] == "me"
    assert about["stages"] == ["estimator"]
    assert about["current"] == {"name": "main", "epoch": 2, "live": [0, 2]}
