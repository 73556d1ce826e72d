"""Every mistake a user can make: exit code 2, one line that says what to do, nothing written."""

import numpy as np
import pytest


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
            if x not in warnings and "portfolio is not trained" not in x and "Metric:" not in x
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
        ["Unknown dataset 'chamelon'. Did you mean 'chameleon'? Choose from: texas", "graph file"],
    ),
    "dataset unlike any": (["train", "zzz"], ["Unknown dataset 'zzz'. Choose from: texas, "]),
    "dataset of settings": (["settings", "texs"], ["Did you mean 'texas'?"]),
    "command": (["trian"], ["No such command 'trian'.", "'train'", "See `hpgmn --help`."]),
    "option": (["train", "texas", "--seedz", "3"], ["--seedz", "--seeds", "hpgmn train --help"]),
    "missing argument": (["statistics"], ["Missing argument", "hpgmn statistics --help"]),
    "missing graph": (["train"], ["No graph is given", "config.yaml"]),
    "missing option": (["statistics", "texas"], ["Missing option '--out'", "statistics --help"]),
    "word for a number": (["train", "texas", "--seeds", "x"], ["'--seeds'", "train --help"]),
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
    "choice": (["--set", "class_weights=equal"], "Choose from: none, balanced."),
    "no value": (["--set", "lr"], "(got 'lr'). Give a name and a value (--set lr=0.01)."),
    "metric": (
        ["--metric", "roc"],
        "Did you mean 'roc_auc'? Choose from: accuracy, balanced_accuracy, macro_f1, roc_auc, "
        "average_precision, precision@K",
    ),
    "precision of three": (
        ["--metric", "precision@5"],
        "needs two classes ('small' has 3). Use average precision (--metric average_precision).",
    ),
    "precision of none": (["--metric", "precision@0"], "Give the number of nodes: precision@5"),
    "device": (["--device", "gpu"], "Unknown device 'gpu'. Did you mean 'cpu'?"),
    "protocol": (["--protocol", "platonof"], "Did you mean 'platonov'?"),
    "other protocol": (
        ["--protocol", "platonov"],
        "'platonov' does not use 'small'. Choose from: ",
    ),
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


def test_a_dataset_that_is_not_here_is_told_with_the_remedy(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    line = refused("train", "texas", "--out", "run")
    assert "`hpgmn datasets --download texas`" in line


MASKS = ("train_mask", "val_mask", "test_mask")


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
    "a config of something else": {"config.yaml": "site: mine\n", "thesis.txt": "years of work"},
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
def test_an_unfinished_run_cannot_be_used(refused, own_run, command):
    (own_run / "model.safetensors").unlink()
    name, *options = COMMANDS[command]
    assert "(--resume)" in refused(name, own_run, *options)


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
    assert "of 'graph' are not those of the model: 0, 1, 2." in line


def test_evaluate_needs_test_nodes(hpgmn, refused, write_arrays, tiny):
    path = write_arrays(test_mask=None)
    assert hpgmn("train", path, *tiny(), "--out", "run").code == 0
    assert "has splits without test nodes" in refused("evaluate", "run")


def test_a_training_that_diverges_is_told(hpgmn, graph_file, tiny):
    answer = hpgmn("train", graph_file, *tiny(lr=1e38, estimator_lr=1e38), "--out", "run")
    assert answer.code == 2
    assert "Stage 'estimator' diverged in " in answer.err
    assert "Lower it (--set estimator_lr=...)" in answer.err
