"""``hpgmn train`` and ``hpgmn demo``: what a run folder holds, configs, resuming, overwriting."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

import hpgmn as package
from hpgmn.base.errors import HPGMNError
from hpgmn.cli import main
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph

RUN_FILES = {
    *("config.yaml", "metrics.json", "history.jsonl", "predictions.parquet"),
    *("model.safetensors", "report.html", "log.txt", "audit.json", "understanding.json"),
    *("explorer.json", "graph.npz"),
}
# The keys that INTERFACE.md promises.
PROMISED = {
    *("model", "graph", "splits", "seeds", "metric", "test_score_mean", "test_score_std"),
    *("test_score", "val_score", "test_accuracy_mean", "test_accuracy_std", "seconds"),
    *("seconds_statistics", "seconds_training", "epochs", "peak_memory_mb", "version", "config"),
}
SCARCE = (
    "Classes '0', '1', '2' have fewer than 3 train nodes in 2 of 2 splits: too few to learn "
    "from. Label more nodes, or merge classes."
)
SCORES = ("test_score", "val_score", "epochs", "test_score_mean", "test_score_std")


def metrics_of(run):
    def refuse(constant):
        raise AssertionError(f"metrics.json holds {constant}, which is not JSON")

    text = (run / "metrics.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def rows_of(run):
    return list(pq.read_table(run / "predictions.parquet").to_pylist())


def config_of(run):
    content: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    return content


def assert_same_results(one, other):
    """The same weights, predictions and scores, bit for bit."""
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    assert rows_of(one) == rows_of(other)
    before, after = metrics_of(one), metrics_of(other)
    assert {key: before[key] for key in SCORES} == {key: after[key] for key in SCORES}
    assert (one / "history.jsonl").read_text() == (other / "history.jsonl").read_text()


# What a run leaves behind.


def test_a_run_folder_holds_exactly_the_promised_files(trained):
    assert {path.name for path in trained.iterdir()} == RUN_FILES
    assert (trained / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "1 of 18 nodes have no edges" in (trained / "log.txt").read_text(encoding="utf-8")


def test_metrics_have_every_promised_key(trained):
    metrics = metrics_of(trained)
    assert set(metrics) >= PROMISED
    assert metrics["model"] == "hpgmn"
    assert metrics["graph"] == "small"
    assert metrics["splits"] == [1, 0]
    assert metrics["seeds"] == 2
    assert metrics["metric"] == "accuracy"
    assert metrics["version"] == package.__version__
    written = config_of(trained)
    assert written.pop("format") == metrics["format"] == 3
    assert written.pop("made_with")["torch"] == metrics["hardware"]["torch"]
    assert metrics["config"] == written
    assert metrics["seconds"] >= metrics["seconds_training"] > 0
    assert metrics["seconds_statistics"] > 0
    assert metrics["peak_memory_mb"] > 10
    assert metrics["warnings"] == ["1 of 18 nodes have no edges (self-loops do not count).", SCARCE]


def accuracies(run, role):
    """The accuracy of each run on the nodes of a role, split by split, seeds inside."""
    rows, metrics = rows_of(run), metrics_of(run)
    found = []
    for split in metrics["splits"]:
        for seed in range(metrics["seeds"]):
            chosen = [
                row["label"] == row["prediction"]
                for row in rows
                if (row["split"], row["seed"], row["role"]) == (split, seed, role)
            ]
            found.append(sum(chosen) / len(chosen))
    return found


def test_metrics_are_those_of_the_predictions(trained):
    metrics = metrics_of(trained)
    test = accuracies(trained, "test")
    assert metrics["test_score"] == pytest.approx(test, abs=1e-6)
    assert metrics["val_score"] == pytest.approx(accuracies(trained, "val"), abs=1e-6)
    assert metrics["test_score_mean"] == pytest.approx(np.mean(test), abs=1e-6)
    assert metrics["test_score_std"] == pytest.approx(np.std(test, ddof=1), abs=1e-6)
    assert metrics["test_accuracy_mean"] == metrics["test_score_mean"]
    assert metrics["test_accuracy_std"] == metrics["test_score_std"]


def test_the_best_epochs_are_those_of_the_history(trained):
    metrics = metrics_of(trained)
    lines = [json.loads(line) for line in (trained / "history.jsonl").read_text().splitlines()]
    runs = [(split, seed) for split in (1, 0) for seed in range(2)]
    for place, run in enumerate(runs):
        own = [
            line
            for line in lines
            if (line["split"], line["seed"]) == run and line["stage"] == "main"
        ]
        assert [line["epoch"] for line in own] == list(range(1, 7))
        best = max(own, key=lambda line: (line["val_score"], -line["val_loss"]))
        assert metrics["epochs"][place] == best["epoch"]
        assert metrics["val_score"][place] == best["val_score"]
    assert {line["stage"] for line in lines} == {"estimator", "main"}


def test_nodes_without_a_label_or_a_role_are_unlabelled(hpgmn, tiny, write_arrays, small_graph):
    y = small_graph.y.copy()
    assert small_graph.splits is not None
    test = small_graph.splits.test.copy()
    hidden = int(np.flatnonzero(test[:, 0])[0])
    y[hidden] = -1
    masks = {f"{p}_mask": getattr(small_graph.splits, p)[:, :1].copy() for p in ("train", "val")}
    test = test[:, :1]
    test[hidden] = False
    answer = hpgmn("train", write_arrays(y=y, test_mask=test, **masks), "--out", "run", *tiny())
    assert answer.code == 0, answer.err
    row = rows_of(Path("run"))[hidden]
    assert (row["role"], row["label"]) == ("unlabelled", None)


def test_the_scores_are_printed(hpgmn, tiny, graph_file):
    answer = hpgmn("train", graph_file, "--splits", "0", "--out", "run", *tiny())
    assert answer.code == 0
    metrics = metrics_of(Path("run"))
    assert f"accuracy {100 * metrics['test_score_mean']:.1f}" in answer.out
    told = [line for line in answer.err.splitlines() if not line.endswith("…")]  # steps, if slow
    assert told.pop(0).startswith("Metric: accuracy, because no class is rare (")
    assert told == [
        "The portfolio is not trained, because settings are given.",
        "Warning: 1 of 18 nodes have no edges (self-loops do not count).",
        f"Warning: {SCARCE.replace('2 of 2 splits', 'the split')}",
        "Run folder: run",
    ]


def test_without_test_nodes_a_model_is_trained_but_not_scored(hpgmn, tiny, write_arrays):
    answer = hpgmn("train", write_arrays(test_mask=None), "--out", "run", *tiny())
    assert answer.code == 0, answer.err
    metrics = metrics_of(Path("run"))
    assert metrics["test_score"] == []
    assert metrics["test_score_mean"] is None
    assert len(metrics["val_score"]) == 2
    assert "–" in answer.out


# Odd graphs that work.


def test_a_graph_without_edges_is_trained_with_a_warning(hpgmn, tiny, write_arrays):
    path = write_arrays(edge_index=np.empty((2, 0), np.int64))
    answer = hpgmn("train", path, "--out", "run", *tiny())
    assert answer.code == 0, answer.err
    line = "Graph 'graph' has no edges; only the attributes can help."
    assert f"Warning: {line}" in answer.err.splitlines()
    metrics = metrics_of(Path("run"))
    assert metrics["warnings"] == [line, SCARCE]
    assert metrics["graph_summary"]["homophily"] is None
    assert hpgmn("evaluate", "run").code == 0


# Settings and configs.


def test_settings_reach_the_run(hpgmn, tiny, graph_file):
    options = [*tiny(lr=0.5, gate="no", memory_dim="none"), "--out", "run"]
    assert hpgmn("train", graph_file, *options).code == 0
    settings = config_of(Path("run"))["settings"]
    assert settings["lr"] == 0.5
    assert settings["gate"] is False
    assert settings["memory_dim"] is None
    assert settings["statistics"] == ["attributes", "class_counts", "class_means", "diffusion"]


def test_the_config_of_a_run_repeats_it_bit_for_bit(hpgmn, trained, shelf):
    config = ["--config", trained / "config.yaml"]
    answer = hpgmn("train", shelf / "small.npz", *config, "--out", "again")
    assert answer.code == 0, answer.err
    assert config_of(Path("again")) == config_of(trained)
    assert_same_results(Path("again"), trained)


def test_options_beat_the_config(hpgmn, trained, shelf):
    config = ["--config", trained / "config.yaml"]
    options = ["--splits", "0", "--seeds", "1", "--set", "epochs=2"]
    assert hpgmn("train", shelf / "small.npz", *config, *options, "--out", "run").code == 0
    found = config_of(Path("run"))
    assert (found["splits"], found["seeds"], found["settings"]["epochs"]) == ([0], 1, 2)
    assert found["settings"]["hidden_dim"] == 6


# Resuming and overwriting.


def test_an_interrupted_run_goes_on_to_the_same_bits(hpgmn, trained, shelf, tiny, stop_after):
    first = ["train", shelf / "small.npz", *tiny(), "--splits", "1,0", "--seeds", "2"]
    first += ["--device", "cpu", "--out", "run"]
    stop_after(3)
    answer = hpgmn(*first)
    assert answer.code == 130
    assert answer.err.splitlines()[-2:] == [
        "To continue, repeat the command with --resume --out run",
        "Interrupted.",
    ]
    assert not Path("run/metrics.json").exists()
    assert hpgmn(*first, "--resume").code == 130  # three more epochs
    stop_after(None)
    assert hpgmn(*first, "--resume").code == 0
    assert {path.name for path in Path("run").iterdir()} == RUN_FILES
    assert_same_results(Path("run"), trained)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (["--set", "lr=0.5"], ["lr (0.01, now 0.5)"]),
        (
            ["--set", "epochs=7", "--set", "gate=no"],
            ["epochs (6, now 7)", "gate (True, now False)"],
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("epochs", [8])
def test_a_run_is_not_continued_with_other_options(
    hpgmn, graph_file, tiny, stop_after, contents, epochs, change, told
):
    first = ["train", graph_file, *tiny(lr=0.01, gate="yes"), "--out", "run"]
    stop_after(epochs)
    assert hpgmn(*first).code == 130
    before = contents(Path("run"))
    answer = hpgmn(*first, *change, "--resume")
    assert answer.code == 2
    assert all(part in answer.err for part in told)
    assert "(--overwrite)" in answer.err
    assert contents(Path("run")) == before


def test_resuming_a_finished_run_says_where_to_read(hpgmn, own_run, shelf, contents):
    before = contents(own_run)
    config = ["--config", own_run / "config.yaml"]
    answer = hpgmn("train", shelf / "small.npz", *config, "--out", own_run, "--resume")
    assert answer.code == 2
    assert f"The run in {own_run} is finished: see {own_run}/metrics.json" in answer.err
    assert contents(own_run) == before


def test_a_run_killed_before_its_report_is_finished_by_resume(hpgmn, own_run, trained, shelf):
    (own_run / "report.html").unlink()
    draft = own_run / f".report.html.{'7' * 32}.unfinished"
    draft.mkdir()
    (draft / "report.html").write_text("half a page")
    (own_run / "state").mkdir()
    config = ["--config", own_run / "config.yaml"]
    answer = hpgmn("train", shelf / "small.npz", *config, "--out", own_run, "--resume")
    assert answer.code == 0, answer.err
    assert {path.name for path in own_run.iterdir()} == RUN_FILES
    assert (own_run / "report.html").read_bytes() == (trained / "report.html").read_bytes()


@pytest.mark.parametrize("present", [[], [f".config.yaml.{'7' * 32}.unfinished"]], ids=str)
def test_resume_starts_a_run_that_never_began(hpgmn, graph_file, tiny, present):
    Path("run").mkdir()
    for name in present:
        (Path("run") / name).mkdir()
        (Path("run") / name / "config.yaml").write_text("gra")
    options = ["--splits", "0", "--out", "run", "--resume"]
    assert hpgmn("train", graph_file, *tiny(), *options).code == 0
    assert {path.name for path in Path("run").iterdir()} == RUN_FILES


def test_overwrite_replaces_a_run_and_keeps_what_is_not_ours(hpgmn, own_run, graph_file, tiny):
    (own_run / "notes.txt").write_text("mine")
    options = ["--splits", "0", "--out", own_run, "--overwrite"]
    assert hpgmn("train", graph_file, *tiny(), *options).code == 0
    assert {path.name for path in own_run.iterdir()} == RUN_FILES | {"notes.txt"}
    assert (own_run / "notes.txt").read_text() == "mine"
    assert metrics_of(own_run)["splits"] == [0]


@pytest.mark.parametrize("end", [HPGMNError("The disk is full. Make room."), KeyboardInterrupt()])
def test_a_run_whose_replacement_fails_is_kept_until_that_goes_on(
    hpgmn, own_run, graph_file, tiny, end, monkeypatch
):
    before = {path.name: path.read_bytes() for path in own_run.iterdir()}
    command = ["train", graph_file, *tiny(), "--splits", "0", "--out", own_run]

    def failing(*_, **__):
        raise end

    with monkeypatch.context() as patch:
        patch.setattr("hpgmn.runs.fit.fit_replicas", failing)
        answer = hpgmn(*command, "--overwrite")
    assert answer.code == (2 if isinstance(end, HPGMNError) else 130)
    kept = own_run / ".replaced"
    words = f"The replaced run is kept in {kept} until the new one is finished"
    assert ("repeat the command with --resume" in answer.err) == (answer.code == 130)
    assert words in " ".join(answer.err.split())
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert words in " ".join(hpgmn("predict", own_run, "--out", "p.csv").err.split())
    assert hpgmn("predict", kept, "--out", "p.csv").code == 0
    assert hpgmn(*command, "--resume").code == 0
    assert {path.name for path in own_run.iterdir()} == RUN_FILES
    assert metrics_of(own_run)["splits"] == [0]


# Real graphs.


@pytest.mark.slow
def test_texas_is_trained_on_all_splits(hpgmn, tiny, data_dir):
    texas = package.load("texas")
    assert (texas.num_nodes, texas.num_features, texas.num_classes) == (183, 1703, 5)
    options = ["--set", "epochs=3", "--set", "estimator_epochs=3", "--out", "run"]
    answer = hpgmn("train", "texas", *options)
    assert answer.code == 0, answer.err
    metrics = metrics_of(Path("run"))
    assert metrics["splits"] == list(range(10))
    assert len(metrics["test_score"]) == 10
    assert metrics["test_score"] == pytest.approx(accuracies(Path("run"), "test"), abs=1e-6)
    bare = [
        split
        for split in range(10)
        if len(np.unique(texas.y[texas.split(split).train])) < texas.num_classes
    ]
    assert bare
    for split in bare:
        assert f"Split {split}: no train node of class" in answer.err


# Metrics, skewed classes, probabilities.


def skewed(graph, rare):
    """A hundred nodes, some of them of a rare class, with a split that has both classes."""
    random = np.random.default_rng(0)
    y = (np.arange(100) < rare).astype(int)
    role = np.arange(100) % 3
    masks = {f"{part}_mask": role == at for at, part in enumerate(("train", "val", "test"))}
    names = ["usual", "rare"]
    x = random.normal(size=(100, 3)) + y[:, None]
    return Graph(x, random.integers(0, 100, (2, 300)), y, name="skewed", class_names=names, **masks)


@pytest.mark.parametrize(("rare", "options", "told"), [(15, [], True), (20, [], False)])
def test_skewed_classes_get_a_suggestion(hpgmn, tiny, small_graph, rare, options, told):
    write_graph(skewed(small_graph, rare), "skewed.npz")
    answer = hpgmn("train", "skewed.npz", *tiny(epochs=1), *options, "--out", "run")
    assert answer.code == 0, answer.err
    assert f"{options[1] if options else 'accuracy'} " in answer.out
    assert told == (
        "85 % of the labelled nodes are of class 'usual', so accuracy says little. Use the metric "
        "average_precision.\n" in answer.err
    )


def test_the_suggestion_can_be_followed(hpgmn, tiny, small_graph):
    write_graph(skewed(small_graph, 15), "skewed.npz")
    options = [*tiny(class_weights="balanced"), "--metric", "balanced_accuracy"]
    answer = hpgmn("train", "skewed.npz", *options, "--out", "run")
    assert answer.code == 0, answer.err
    assert "Try --metric" not in answer.err
    assert "balanced_accuracy" in answer.out
    metrics = metrics_of(Path("run"))
    assert metrics["metric"] == "balanced_accuracy"
    assert metrics["config"]["settings"]["class_weights"] == "balanced"
    rows = [row for row in rows_of(Path("run")) if row["role"] == "test"]
    recalls = [
        np.mean([row["prediction"] == name for row in rows if row["label"] == name])
        for name in ("usual", "rare")
    ]
    assert metrics["test_score"][0] == pytest.approx(np.mean(recalls), abs=1e-6)


@pytest.mark.slow
def test_probabilities_may_stay_as_they_are(hpgmn, tiny, graph_file):
    options = [*tiny(), "--splits", "0"]
    assert hpgmn("train", graph_file, *options, "--no-calibration", "--out", "plain").code == 0
    assert hpgmn("train", graph_file, *options, "--out", "scaled").code == 0
    assert config_of(Path("plain"))["calibrate"] is False
    assert metrics_of(Path("plain"))["calibration"]["temperature"] == [1.0]
    assert metrics_of(Path("scaled"))["calibration"]["temperature"] != [1.0]
    assert "--no-calibration" in Path("plain/report.html").read_text(encoding="utf-8")
    # A run's config repeats it, unless an option says otherwise.
    again = ["train", graph_file, "--config", "plain/config.yaml"]
    assert hpgmn(*again, "--out", "again").code == 0
    assert_same_results(Path("plain"), Path("again"))
    assert hpgmn(*again, "--calibration", "--out", "other").code == 0
    assert_same_results(Path("scaled"), Path("other"))
    answer = hpgmn("train", graph_file, *options, "--out", "plain", "--resume")
    assert "calibrate (False, now True)" in answer.err


def test_the_report_tells_of_graph_and_model(trained):
    page = (trained / "report.html").read_text(encoding="utf-8")
    for name in ("health", "calibration", "statistics", "memory", "label-next"):
        assert f'<section id="{name}"' in page
    learned = json.loads((trained / "understanding.json").read_text(encoding="utf-8"))
    assert f"The memory has {len(learned['patterns'])} patterns" in page
    found = json.loads((trained / "audit.json").read_text(encoding="utf-8"))
    assert f"{found['homophily']['adjusted']:.3f}" in page


def test_the_report_shows_the_calibration_error(trained):
    error = metrics_of(trained)["calibration"]["ece_by_class_after_mean"]
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert "Calibration error" in page
    assert f"{100 * error:.2f}%" in page


def test_what_was_said_of_the_tables_is_kept(hpgmn, tiny, tmp_path):
    rows = [
        f"u{number},{number % 7},a long text that {number} wrote about life and trade,"
        + ("fraud" if number % 10 == 0 else "honest")
        for number in range(60)
    ]
    folder = tmp_path / "people"
    folder.mkdir()
    (folder / "nodes.csv").write_text("\n".join(["id,age,bio,label", *rows]) + "\n")
    edges = [f"u{number},u{(number + 1) % 60}" for number in range(60)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    answer = hpgmn("train", folder, *tiny(), "--splits", "0", "--out", "run")
    assert answer.code == 0, answer.err
    told = [
        "nodes.csv: 'bio': free text or names, left out.",
        "90 % of the labelled nodes are of class 'honest', so accuracy says little. Use the metric "
        "average_precision.",
    ]
    log = Path("run/log.txt").read_text(encoding="utf-8")
    for line in told:
        assert answer.err.count(f"Warning: {line}") == 1
        assert any(line in warning for warning in metrics_of(Path("run"))["warnings"])
        assert f"WARNING {line}" in log
    assert "id is 'id', label is 'label'" in log
    assert "using 10 random splits" in log
    assert "accuracy says little" in Path("run/report.html").read_text(encoding="utf-8")


def test_the_skew_is_said_before_the_training(hpgmn, small_graph, monkeypatch):
    write_graph(skewed(small_graph, 15), "skewed.npz")

    def stop(*_, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("hpgmn.runs.pool.train_pool", stop)
    answer = hpgmn("train", "skewed.npz", "--out", "run")
    assert answer.code == 130
    assert "accuracy says little" in answer.err


def test_the_label_estimator_is_scored_in_the_metric_of_the_run(hpgmn, tiny, small_graph):
    write_graph(skewed(small_graph, 20), "skewed.npz")
    out = hpgmn("train", "skewed.npz", *tiny(), "--metric", "macro_f1", "--out", "one").out
    metrics = metrics_of(Path("one"))
    estimator = metrics["label_estimator"]
    assert estimator["test_score_mean"] != estimator["test_accuracy_mean"]
    assert f"{100 * estimator['test_score_mean']:.1f}" in out
    assert f"{100 * estimator['test_accuracy_mean']:.1f}" not in out


def test_curves_are_recorded_while_training(graph_file, tmp_path, tiny, capsys):
    pytest.importorskip("tensorboard")
    logs, curves, out = tmp_path / "logs", tmp_path / "curves.csv", tmp_path / "run"
    recorders = ["--tensorboard", str(logs), "--csv", str(curves)]
    assert main(["train", str(graph_file), *tiny(), "--out", str(out), *recorders]) == 0
    lines = (out / "history.jsonl").read_text().splitlines()
    assert len(curves.read_text().splitlines()) == 1 + len(lines)
    assert {path.parent.name for path in logs.rglob("events*")} == {"model"}
    kept = curves.read_text()
    again = ["train", str(graph_file), *tiny(), "--out", str(tmp_path / "again")]
    assert main([*again, "--csv", str(curves)]) == 2
    assert main([*again, "--csv", str(tmp_path)]) == 2
    assert main([*again, "--tensorboard", str(curves)]) == 2
    assert curves.read_text() == kept
    assert not (tmp_path / "again").exists()
    models = ["--model", "mlp,gcn", "--out", str(tmp_path / "two"), "--csv", "other.csv"]
    capsys.readouterr()
    assert main(["train", str(graph_file), *models]) == 2
    assert "--model" in capsys.readouterr().err
