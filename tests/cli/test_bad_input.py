"""Every mistake a user can make: exit code 2, one line that says what to do, nothing written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[..., Any]
Tiny = Callable[..., list[str]]
WriteArrays = Callable[..., Path]
Contents = Callable[[Path], dict[str, bytes | None]]


@pytest.fixture
def refused(hpgmn, tmp_path, contents):
    """Runs a command that must be refused without a trace; returns its one line."""

    def run(*arguments):
        before = contents(tmp_path)
        answer = hpgmn(*arguments)
        assert answer.code == 2, answer
        assert answer.out == ""
        warnings = [line for line in answer.err.splitlines() if line.startswith("Warning: ")]
        lines = [
            x
            for x in answer.err.splitlines()
            if x not in warnings and "portfolio is not tried" not in x
        ]
        assert len(lines) == 1, answer.err
        assert lines[0].startswith("Error: ")
        assert lines[0].endswith((".", "`"))
        assert contents(tmp_path) == before, "something was written"
        return str(lines[0].removeprefix("Error: "))

    return run


# Names, options and values.

UNKNOWN = {
    "dataset": (
        ["train", "chamelon"],
        ["Unknown dataset 'chamelon'. Did you mean 'chameleon'? Choose from: texas, ", ".npz"],
    ),
    "dataset unlike any": (["train", "zzz"], ["Unknown dataset 'zzz'. Choose from: texas, "]),
    "dataset to download": (
        ["datasets", "--download", "chamelon"],
        ["Unknown dataset 'chamelon'. Did you mean 'chameleon'?"],
    ),
    "dataset of settings": (["settings", "texs"], ["Did you mean 'texas'?"]),
    "command": (["trian"], ["No such command 'trian'.", "'train'", "See `hpgmn --help`."]),
    "option": (["train", "texas", "--seedz", "3"], ["--seedz", "--seeds", "hpgmn train --help"]),
    "missing argument": (["statistics"], ["Missing argument", "hpgmn statistics --help"]),
    "missing graph": (["train"], ["No graph is given", "config.yaml"]),
    "missing option": (["statistics", "texas"], ["Missing option '--out'", "statistics --help"]),
    "word for a number": (["train", "texas", "--seeds", "x"], ["'--seeds'", "train --help"]),
    "model of settings": (["settings", "--model", "hpgm"], ["Did you mean 'hpgmn'?"]),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_name_is_answered_with_the_nearest(refused, case):
    arguments, told = UNKNOWN[case]
    line = refused(*arguments)
    for part in told:
        assert part in line


OPTIONS = {
    "model": (["--model", "hpgm"], "Unknown model 'hpgm'. Did you mean 'hpgmn'?"),
    "setting": (["--set", "hiden_dim=3"], "Unknown setting 'hiden_dim'. Did you mean 'hidden_dim'"),
    "name": (["--set", "neighbors=inn"], "'inn'. Did you mean 'in'? Choose from: out, in, "),
    "member": (["--set", "statistics=attribute"], "Did you mean 'attributes'?"),
    "no member": (["--set", "statistics="], "takes distinct names, at least one"),
    "number": (["--set", "lr=fast"], "Setting 'lr' takes a number (got 'fast')."),
    "not finite": (["--set", "lr=nan"], "takes a finite number"),
    "whole number": (["--set", "epochs=2.5"], "Setting 'epochs' takes a whole number"),
    "too low": (["--set", "epochs=0"], "Setting 'epochs' must be at least 1 (got 0)."),
    "too high": (["--set", "dropout=1"], "Setting 'dropout' must be 0 to below 1 (got 1)."),
    "truth": (["--set", "gate=maybe"], "Setting 'gate' takes true or false"),
    "no value": (["--set", "lr"], "(got 'lr'). Give a name and a value (--set lr=0.01)."),
    "split": (["--splits", "2"], "Unknown split 2: 'small' has splits 0 to 1."),
    "negative split": (["--splits", "-1"], "Unknown split -1: 'small' has splits 0 to 1."),
    "word split": (["--splits", "first"], "Unknown splits 'first'"),
    "split twice": (["--splits", "0,0"], "A split is named twice"),
    "no seeds": (["--seeds", "0"], "(--seeds)"),
    "metric": (
        ["--metric", "roc"],
        "Did you mean 'roc_auc'? Choose from: accuracy, balanced_accuracy, macro_f1, roc_auc, "
        "average_precision, precision@K.",
    ),
    "precision of three": (
        ["--metric", "precision@5"],
        "needs two classes ('small' has 3). Use average precision (--metric average_precision).",
    ),
    "precision of none": (["--metric", "precision@0"], "Give the number of nodes: precision@5"),
    "class weights": (["--set", "class_weights=equal"], "Choose from: none, balanced."),
    "device": (["--device", "gpu"], "Unknown device 'gpu'. Did you mean 'cpu'?"),
    "protocol": (["--protocol", "platonof"], "Did you mean 'platonov'?"),
    "other protocol": (
        ["--protocol", "platonov"],
        "'platonov' does not use 'small'. Choose from: ",
    ),
    "config": (["--config", "papr"], "Did you mean 'paper'?"),
    "config file": (["--config", "no.yaml"], "The config file no.yaml does not exist. Check the"),
    "both": (["--resume", "--overwrite"], "exclude each other"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_wrong_option_is_refused_before_anything_is_written(refused, graph_file, tiny, case):
    options, told = OPTIONS[case]
    assert told in refused("train", graph_file, *tiny(), *options, "--out", "run")


def test_cuda_is_refused_where_there_is_none(refused, graph_file, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = refused("train", graph_file, "--device", "cuda", "--out", "run")
    assert "No CUDA device is available" in line
    assert "--device cpu" in line


CONFIGS = {
    "broken": (
        "a: [1,\nb: 2",
        "is not valid YAML at line 2. Correct it. Write lines such as 'lr: 0.01'.",
    ),
    "a list": ("- lr", "must hold 'name: value' lines"),
    "empty": ("", "must hold 'name: value' lines"),
    "not text": ("\x00", "is not valid YAML"),
    "settings": ("settings: 4", "'settings' must be a mapping of settings to values (got 4)."),
    "setting": ("lrr: 0.1", "Unknown setting 'lrr'. Did you mean 'lr'?"),
    "number": ("1: 2", "1 is not the name of a setting."),
    "no list": ("statistics: 5", "Setting 'statistics' takes a list of names (got 5)."),
    "list of numbers": ("statistics: [1]", "Unknown value for 'statistics': '1'. Choose from: "),
    "entry": ("modle: hpgmn\nsettings: {}", "Unknown entry 'modle'. Did you mean 'model'?"),
    "splits": (
        "splits: first\nsettings: {}",
        "'splits' must be a list of split numbers (got 'first').",
    ),
    "no splits": ("splits: []\nsettings: {}", "'splits' must be a list of split numbers (got [])."),
    "far split": ("splits: [0, 7]\nsettings: {}", "Unknown split 7: 'small' has splits 0 to 1."),
    "seeds": ("seeds: true\nsettings: {}", "'seeds' must be a whole number (got True)."),
    "model": ("model: hpgm\nsettings: {}", "Unknown model 'hpgm'. Did you mean 'hpgmn'?"),
    "device": ("device: gpu\nsettings: {}", "Unknown device 'gpu'."),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_bad_config_file_is_refused(refused, graph_file, tmp_path, case):
    text, told = CONFIGS[case]
    (tmp_path / "mine.yaml").write_text(text)
    assert told in refused("train", graph_file, "--config", "mine.yaml", "--out", "run")


# Graph files.


def test_a_missing_file_is_named(refused):
    line = refused("train", "graphs/mine.npz", "--out", "run")
    assert line == "Graph file 'graphs/mine.npz' does not exist. Check the path."


def test_a_dataset_that_is_not_here_is_told_with_the_remedy(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    line = refused("train", "texas", "--out", "run")
    assert "`hpgmn datasets --download texas`" in line


@pytest.mark.parametrize("kept", [0, 1, 30, 0.5, 0.99])
def test_a_truncated_file_is_refused(refused, graph_file, kept):
    content = graph_file.read_bytes()
    graph_file.write_bytes(content[: int(kept * len(content)) if kept < 1 else int(kept)])
    line = refused("train", graph_file, "--out", "run")
    assert "again" in line or "write_graph" in line


def spoilt(graph, case):
    """One changed array of the small graph."""
    assert graph.splits is not None
    x, y, train = graph.x.copy(), graph.y, graph.splits.train.copy()
    if case == "pickle":
        return {"y": np.array([{"a": 1}] * 18, dtype=object)}
    if case in ("nan", "inf"):
        x[4, 2] = float(case)
        return {"x": x}
    if case == "one class":
        train[y != 0, 0] = False
        return {"train_mask": train}
    if case == "x too short":
        return {"x": x[:17], "edge_index": graph.edge_index[:, graph.edge_index.max(axis=0) < 17]}
    nothing = np.zeros_like(train)
    rest: dict[str, dict[str, Any]] = {
        "absent nodes": {"edge_index": np.array([[0, 1], [1, 18]])},
        "negative nodes": {"edge_index": np.array([[0, -1], [1, 2]])},
        "half labels": {"y": y + 0.5},
        "negative labels": {"y": y - 5},
        "no train nodes": {"train_mask": nothing},
        "no val nodes": {"val_mask": nothing},
        "no val mask": {"val_mask": None},
        "mask too short": {"val_mask": graph.splits.val[:17]},
        "overlap": {"val_mask": graph.splits.train},
        "no x": {"x": None},
        "no edges": {"edge_index": None},
        "edges turned": {"edge_index": graph.edge_index.T},
        "text": {"x": np.full((18, 5), "a")},
        "no labels": {"y": np.full(18, -1), **dict.fromkeys(MASKS)},
        "one label": {"y": np.zeros(18, np.int64), **dict.fromkeys(MASKS)},
    }
    return rest[case]


MASKS = ("train_mask", "val_mask", "test_mask")
GRAPHS = {
    "pickle": "holds pickled Python objects",
    "nan": "x holds nan at node 4, attribute 2. Replace NaN and infinity",
    "inf": "x holds inf at node 4, attribute 2. Replace NaN and infinity",
    "absent nodes": "Edge 1 runs from 1 to 18, but nodes are numbered 0 to 17. Remove such edges",
    "negative nodes": "Edge 1 runs from -1 to 2, but nodes are numbered 0 to 17.",
    "half labels": "array 'y' has type float64",
    "negative labels": "Number the classes 0, 1, 2, …; use -1 for unknown.",
    "one class": "Split 0 of 'graph' has train nodes of 1 class only; classification needs at le",
    "no train nodes": "Split 0 of 'graph' has no train nodes. Give it some, or let hpgmn.random_sp",
    "no val nodes": "Split 0 of 'graph' has no val nodes. Give it some, or let hpgmn.random_splits",
    "no val mask": "Split 0 of 'graph' has no val nodes. Give it some",
    "x too short": "y must have one label per node, 17 (got 18). Use -1 for unknown.",
    "mask too short": "val_mask must have 18 rows, one per node",
    "overlap": "train, val and test must not overlap",
    "no x": "array 'x' is missing",
    "no edges": "array 'edge_index' is missing",
    "edges turned": "edge_index must have shape (2, E) (got (53, 2)). Transpose it.",
    "text": "array 'x' has type <U1",
    "no labels": "has no splits and too few labels to make some. Give at least two classes",
    "one label": "has no splits and too few labels to make some. Give at least two classes",
}


@pytest.mark.parametrize("case", GRAPHS)
def test_a_bad_graph_is_refused(refused, write_arrays, small_graph, tiny, case):
    path = write_arrays(**spoilt(small_graph, case))
    assert GRAPHS[case] in refused("train", path, *tiny(), "--out", "run")


@pytest.mark.parametrize("case", ["no train nodes", "no labels"])
def test_labels_are_not_estimated_without_train_nodes(refused, write_arrays, small_graph, case):
    path = write_arrays(**spoilt(small_graph, case))
    line = refused("statistics", path, "--labels", "estimated", "--out", "s.npz")
    assert "random_splits(graph)" in line


# Run folders.


def test_resume_needs_the_folder(refused, graph_file):
    line = refused("train", graph_file, "--resume")
    assert "interrupted run" in line
    assert "(--out)" in line


def test_a_run_is_not_replaced_unasked(refused, own_run, graph_file, tiny):
    line = refused("train", graph_file, *tiny(), "--out", own_run)
    assert line.startswith(f"The folder {own_run} exists.")
    assert all(option in line for option in ("--resume", "--overwrite", "--out"))


FOREIGN = {
    "any file": {"thesis.txt": "years of work"},
    "a config of something else": {"config.yaml": "site: mine\n", "thesis.txt": "years of work"},
    "a broken config": {"config.yaml": "a: [1,\n"},
    "a config and a state": {"config.yaml": "model: hpgmn\n", "state/data.txt": "mine"},
    "only a log": {"log.txt": "mine"},
}


@pytest.mark.parametrize("option", ["--overwrite", "--resume"])
@pytest.mark.parametrize("case", FOREIGN)
def test_a_folder_that_is_no_run_folder_is_never_touched(
    refused, graph_file, tmp_path, tiny, case, option
):
    for name, text in FOREIGN[case].items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    line = refused("train", graph_file, *tiny(), "--out", "folder", option)
    assert line.startswith("folder is not a run folder")
    assert "--out" in line


@pytest.mark.parametrize("option", [[], ["--overwrite"], ["--resume"]], ids=str)
def test_a_file_in_the_place_of_the_folder_stays(refused, graph_file, tiny, option):
    assert "Choose a writable path" in refused(
        "train", graph_file, *tiny(), "--out", graph_file, *option
    )


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("small.npz/run", "(Not a directory). Choose a writable path."),
        (
            "/proc/hpgmn/run",
            "(No such file or directory). Create its folder, or choose another path.",
        ),
    ],
)
def test_an_unwritable_folder_is_told(refused, graph_file, tiny, folder, why):
    line = refused("train", graph_file, *tiny(), "--out", folder)
    assert line == f"Cannot write {folder} {why}"


COMMANDS = {"evaluate": ["evaluate"], "predict": ["predict", "--out", "p.csv"]}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("folder", ["nowhere", ".", "small.npz"])
def test_what_is_no_run_folder_cannot_be_used(refused, graph_file, command, folder):
    name, *options = COMMANDS[command]
    line = refused(name, folder, *options)
    assert line.startswith(f"{folder} is not a finished run folder: config.yaml is missing.")
    assert "is not a finished run folder" in line


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unfinished_run_cannot_be_used(refused, own_run, command):
    (own_run / "model.safetensors").unlink()
    name, *options = COMMANDS[command]
    assert "(--resume)" in refused(name, own_run, *options)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("text", ["graph: small\n", "a: [1,\n", "- 1\n"])
def test_a_damaged_config_is_told(refused, own_run, command, text):
    (own_run / "config.yaml").write_text(text)
    name, *options = COMMANDS[command]
    assert "config.yaml" in refused(name, own_run, *options)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kept", [0, 7, 100, 0.5, 0.999])
def test_a_truncated_model_is_told(refused, own_run, command, kept):
    path = own_run / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if kept < 1 else int(kept)])
    name, *options = COMMANDS[command]
    line = refused(name, own_run, *options)
    assert line.startswith(f"The file {path} is damaged or not an hpgmn file (")
    assert line.endswith("Restore it, or train again (--overwrite).")


def test_no_damaged_byte_of_a_model_goes_unnoticed(hpgmn, own_run):
    """A flipped byte anywhere is told; only blanks after the header may change without harm."""
    path = own_run / "model.safetensors"
    content = path.read_bytes()
    header = int.from_bytes(content[:8], "little")
    random = np.random.default_rng(0)
    places = [*random.integers(0, 8 + header, 40), *random.integers(8 + header, len(content), 20)]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        answer = hpgmn("predict", own_run, "--out", "p.csv")
        if content[place] != ord(" "):
            assert answer.code == 2, place
            assert "Traceback" not in answer.err
            assert not Path("p.csv").exists()


def test_predict_refuses_a_split_the_run_does_not_have(refused, trained):
    line = refused("predict", trained, "--split", "7", "--out", "p.csv")
    assert line == "The run has no split 7. Choose from: 1, 0."


@pytest.mark.parametrize(
    ("command", "name", "told"),
    [
        ("predict", "p.txt", "--out must end in .csv or .parquet (got 'p.txt')."),
        ("predict", "no/p.csv", "Create its folder, or choose another path."),
        ("predict", "/proc/p.csv", "choose another path."),
        ("predict", "/proc/p.parquet", "choose another path."),
        ("statistics", "s.txt", "--out must end in .npz (got 's.txt')."),
        ("statistics", "no/s.npz", "The folder no does not exist."),
        ("statistics", "/proc/s.npz", "choose another path."),
    ],
)
def test_a_place_that_cannot_be_written_is_told(refused, trained, shelf, command, name, told):
    source = trained if command == "predict" else shelf / "small.npz"
    assert told in refused(command, source, "--out", name)


def test_statistics_take_true_or_estimated_labels(refused, graph_file):
    line = refused("statistics", graph_file, "--labels", "guessed", "--out", "s.npz")
    assert line == (
        "Unknown value for --labels: 'guessed'. Did you mean 'estimated'? "
        "Choose from: true, estimated."
    )


OTHER_GRAPHS = {
    "attributes": (
        {"x": np.zeros((18, 4))},
        "was trained on 5 attributes; graph 'graph' has 4. Give the same columns in the same order",
    ),
    "identity": (
        {"x": np.ones((18, 5))},
        "shares no node_ids with them. Give both graphs node_ids that are the same for the same "
        "node, or train with sketched diffusion (--set diffusion_form=sketch).",
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", OTHER_GRAPHS)
def test_a_graph_that_does_not_fit_the_model_is_refused(
    refused, trained, write_arrays, command, case
):
    arrays, told = OTHER_GRAPHS[case]
    name, *options = COMMANDS[command]
    assert told in refused(name, trained, write_arrays(**arrays), *options)


def test_evaluate_needs_labels_and_the_same_classes(refused, trained, write_arrays):
    path = write_arrays(y=None, **dict.fromkeys(MASKS))
    assert "has no labels to score against" in refused("evaluate", trained, path)
    path = write_arrays(class_names=np.array(["a", "b", "c"]))
    line = refused("evaluate", trained, path)
    assert "The classes of 'graph' are not those of the model: 0, 1, 2." in line


def test_evaluate_needs_test_nodes(hpgmn, refused, write_arrays, tiny):
    path = write_arrays(test_mask=None)
    assert hpgmn("train", path, *tiny(), "--out", "run").code == 0
    assert "has splits without test nodes" in refused("evaluate", "run")


def test_a_training_that_diverges_is_told(hpgmn, graph_file, tiny):
    answer = hpgmn("train", graph_file, *tiny(lr=1e38, estimator_lr=1e38), "--out", "run")
    assert answer.code == 2
    assert "Stage 'estimator' diverged in " in answer.err
    assert "Lower it (--set estimator_lr=...)" in answer.err
