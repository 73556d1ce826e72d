"""``hpgmn train --model`` with several names: run folders, the table, going on, what fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import verify_checksum
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.cli.several import (
    folder_name,
    model_names,
    print_comparison,
    shared_assignments,
    train_one,
    train_several,
)
from hpgmn.graph import Graph
from hpgmn.models import MODELS, find_model
from hpgmn.runs.compare import comparison
from hpgmn.runs.spec import RunSpec

Command = Callable[..., Any]
Contents = Callable[[Path], dict[str, bytes | None]]

SHORT = ("--set", "epochs=3", "--set", "estimator_epochs=3", "--set", "hidden_dim=4")


def metrics_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return found


def test_names_come_with_commas_repeated_or_all() -> None:
    assert model_names(["gcn"]) == ["gcn"]
    assert model_names(["gcn, mlp", "hpgmn", "mlp"]) == ["gcn", "mlp", "hpgmn"]
    assert model_names(["all"]) == list(MODELS)
    assert model_names(["mine:Net,all"]) == [*MODELS, "mine:Net"]
    with pytest.raises(SettingError, match="needs a name"):
        model_names([" , "])


def test_a_setting_goes_to_the_models_that_know_it() -> None:
    pairs = ["lr=0.1", "num_patterns=5", "layers=3"]
    found = shared_assignments(["hpgmn", "mlp"], pairs)
    assert found == {"hpgmn": ["lr=0.1", "num_patterns=5"], "mlp": ["lr=0.1", "layers=3"]}
    assert shared_assignments(["mlp"], ["layers=3"]) == {"mlp": ["layers=3"]}
    with pytest.raises(SettingError, match=r"Unknown setting 'layer'\. Did you mean 'layers'"):
        shared_assignments(["hpgmn", "mlp"], ["layer=3"])


def test_a_setting_with_a_models_name_goes_to_that_model_alone() -> None:
    pairs = ["lr=0.1", "gcn.lr=0.2", "mlp.layers=3"]
    found = shared_assignments(["gcn", "mlp"], pairs)
    assert found == {"gcn": ["lr=0.1", "lr=0.2"], "mlp": ["lr=0.1", "layers=3"]}
    with pytest.raises(SettingError, match=r"Unknown model in --set 'gcm'\. Did you mean 'gcn'"):
        shared_assignments(["gcn", "mlp"], ["gcm.lr=0.2"])
    with pytest.raises(SettingError, match="Unknown model in --set ''"):
        shared_assignments(["gcn", "mlp"], [".lr=0.2"])
    with pytest.raises(SettingError, match="Unknown setting 'self_loop'"):
        shared_assignments(["gcn", "mlp"], ["mlp.self_loop=1"])


def test_a_config_alone_never_makes_code_be_imported(
    hpgmn: Command, graph_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    (tmp_path / "config.yaml").write_text("model: trap:Net\nsettings: {}\n")
    answer = hpgmn("train", graph_file, "--config", "config.yaml")
    assert answer.code == 2
    assert "Add --model trap:Net." in answer.err


def test_an_own_model_has_a_folder_that_every_system_can_write() -> None:
    assert folder_name("a.b:Net") == "a.b-Net"


def test_each_model_has_its_run_folder_and_the_table_compares(
    hpgmn: Command, graph_file: Path, tmp_path: Path
) -> None:
    answer = hpgmn("train", graph_file, "--model", "mlp,hpgmn", *SHORT, "--out", "both")
    assert answer.code == 0, answer.err
    runs = [metrics_of(tmp_path / "both" / name) for name in ("mlp", "hpgmn")]
    content = json.loads((tmp_path / "both" / "comparison.json").read_text(encoding="utf-8"))
    assert content == json.loads(json.dumps(comparison(runs)))
    assert (tmp_path / "both" / "mlp" / "report.html").is_file()
    assert "minus hpgmn (95 %)" in answer.out
    row = next(line for line in answer.out.splitlines() if line.startswith("mlp"))
    gap = 100 * (runs[0]["test_score_mean"] - runs[1]["test_score_mean"])
    assert f"{100 * runs[0]['test_score_mean']:.1f} ± " in row
    assert f"{gap:+.1f} (" in row
    assert "paired over 2 splits" in answer.err
    assert answer.err.count("1 of 18 nodes have no edges") == 1
    assert hpgmn("evaluate", Path("both") / "mlp").code == 0
    answer = hpgmn("evaluate", "both")
    assert answer.code == 2
    assert "runs of several models. Name one of them: both/hpgmn, both/mlp." in answer.err


def test_the_same_run_alone_gives_the_same_numbers(
    hpgmn: Command, graph_file: Path, tmp_path: Path
) -> None:
    both = hpgmn("train", graph_file, "--model", "mlp,gcn", *SHORT[:2], "--out", "both")
    alone = hpgmn("train", graph_file, "--model", "gcn", *SHORT[:2], "--out", "alone")
    assert (both.code, alone.code) == (0, 0)
    one, other = (metrics_of(tmp_path / place) for place in ("both/gcn", "alone"))
    assert one["test_score"] == other["test_score"]
    assert one["config"]["settings"] == other["config"]["settings"]


def test_one_split_is_compared_over_seeds(hpgmn: Command, graph_file: Path) -> None:
    options = ("--splits", "0", "--seeds", "3", "--out", "one")
    answer = hpgmn("train", graph_file, "--model", "mlp,gcn", *SHORT[:2], *options)
    assert answer.code == 0, answer.err
    assert "minus mlp (95 %)" in answer.out
    assert "over seeds (Welch)" in answer.err


def test_a_folder_that_exists_is_refused(hpgmn: Command, graph_file: Path, tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "mine.txt").write_text("keep")
    words = ("train", graph_file, "--model", "mlp,gcn", *SHORT[:2], "--out", "both")
    answer = hpgmn(*words)
    assert answer.code == 2
    assert "--resume" in answer.err
    answer = hpgmn(*words, "--overwrite")
    assert answer.code == 0, answer.err
    assert (tmp_path / "both" / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize("how", [[], ["--resume"], ["--overwrite"]], ids=str)
def test_the_folder_of_one_run_does_not_become_that_of_several(
    hpgmn: Command, graph_file: Path, tmp_path: Path, contents: Contents, how: list[str]
) -> None:
    words = ("train", graph_file, *SHORT[:2], "--splits", "0", "--out", "one")
    assert hpgmn(*words, "--model", "mlp").code == 0
    before = contents(tmp_path / "one")
    answer = hpgmn(*words, "--model", "mlp,gcn", *how)
    assert answer.code == 2
    assert "one is the folder of one run" in answer.err
    assert answer.err.endswith("Choose another --out.\n")
    assert contents(tmp_path / "one") == before


def test_a_run_that_is_kept_aside_is_in_no_table(
    hpgmn: Command, graph_file: Path, tmp_path: Path
) -> None:
    words = ("train", graph_file, *SHORT[:2], "--splits", "0", "--out", "both")
    assert hpgmn(*words, "--model", "mlp,gcn").code == 0
    (tmp_path / "both" / "mlp").rename(tmp_path / "both" / ".replaced")
    assert hpgmn(*words, "--model", "gcn,appnp", "--resume").code == 0
    table = json.loads((tmp_path / "both" / "comparison.json").read_text(encoding="utf-8"))
    assert [row["model"] for row in table["rows"]] == ["gcn", "appnp"]
    answer = hpgmn("predict", "both", "--out", "p.csv")
    assert "Name one of them: both/appnp, both/gcn." in answer.err


def test_an_interrupted_comparison_goes_on_where_it_stopped(
    hpgmn: Command,
    graph_file: Path,
    tmp_path: Path,
    stop_after: Callable[[int | None], None],
    contents: Contents,
) -> None:
    words = ("train", graph_file, "--model", "mlp,gcn", *SHORT[:2])
    assert hpgmn(*words, "--out", "whole").code == 0
    assert hpgmn("train", graph_file, "--model", "mlp", *SHORT[:2], "--out", "both/mlp").code == 0
    finished = contents(tmp_path / "both" / "mlp")
    stop_after(2)
    answer = hpgmn(*words, "--out", "both", "--resume")
    assert answer.code == 130
    assert "--resume --out both" in answer.err
    stop_after(None)
    answer = hpgmn(*words, "--out", "both", "--resume")
    assert answer.code == 0, answer.err
    after = contents(tmp_path / "both" / "mlp")
    assert {k: v for k, v in after.items() if k != "log.txt"} == {
        k: v for k, v in finished.items() if k != "log.txt"
    }
    for model in ("mlp", "gcn"):
        one, other = (metrics_of(tmp_path / place / model) for place in ("whole", "both"))
        assert one["test_score"] == other["test_score"]


def test_a_model_that_fails_does_not_stop_the_others(
    hpgmn: Command, graph_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hpgmn.cli.several as module

    run = module.run_and_report

    def failing(spec: Any, graph: Any, folder: Path) -> Any:
        if spec.model == "mlp":
            raise HPGMNError("It broke. Mend it.")
        return run(spec, graph, folder)

    monkeypatch.setattr(module, "run_and_report", failing)
    answer = hpgmn("train", graph_file, "--model", "mlp,gcn", *SHORT[:2], "--out", "both")
    assert answer.code == 2
    assert "1 of 2 models failed. mlp: It broke. Mend it." in answer.err
    assert "gcn" in answer.out
    assert (tmp_path / "both" / "gcn" / "metrics.json").is_file()


def test_rows_of_models_trained_before_stay_in_the_table(
    hpgmn: Command, graph_file: Path, tmp_path: Path
) -> None:
    words = ("train", graph_file, *SHORT[:2], "--out", "both")
    assert hpgmn(*words, "--model", "mlp,gcn,mixhop").code == 0
    answer = hpgmn(*words, "--model", "gcn,appnp", "--resume")
    assert answer.code == 0, answer.err
    content = json.loads((tmp_path / "both" / "comparison.json").read_text(encoding="utf-8"))
    assert [row["model"] for row in content["rows"]] == ["gcn", "appnp", "mixhop", "mlp"]
    other = hpgmn(*words, "--model", "gcn,appnp", "--resume", "--splits", "0")
    assert other.code == 2  # not the options those runs were started with


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_damaged_run_of_another_model_is_left_out_of_the_table(
    hpgmn: Command, graph_file: Path, tmp_path: Path, content: str
) -> None:
    own = ("train", graph_file, "--set", "epochs=2", "--splits", "0", "--out", "both")
    (tmp_path / "both" / "mlp").mkdir(parents=True)
    (tmp_path / "both" / "mlp" / "metrics.json").write_text(content)
    answer = hpgmn(*own, "--model", "gcn,appnp", "--overwrite")
    assert answer.code == 0, answer.err
    assert "mlp is left out of the table: both/mlp/metrics.json is damaged" in answer.err
    table = json.loads((tmp_path / "both" / "comparison.json").read_text(encoding="utf-8"))
    assert sorted(row["model"] for row in table["rows"]) == ["appnp", "gcn"]


def test_a_config_of_another_model_is_refused(hpgmn: Command, graph_file: Path) -> None:
    answer = hpgmn("train", graph_file, "--model", "gcn", "--config", "paper")
    assert answer.code == 2
    assert "The config is of hpgmn, not of gcn." in answer.err


def test_one_run_each_has_no_interval(hpgmn: Command, graph_file: Path) -> None:
    answer = hpgmn(
        *("train", graph_file, "--model", "mlp,gcn", *SHORT[:2], "--splits", "0", "--out", "one")
    )
    assert "1 run each" in answer.out
    assert "no interval" in answer.err


def test_a_config_is_for_one_model(hpgmn: Command, graph_file: Path) -> None:
    answer = hpgmn("train", graph_file, "--model", "mlp,gcn", "--config", "paper")
    assert answer.code == 2
    assert "one model" in answer.err


def test_a_value_that_one_model_does_not_take_names_that_model(
    hpgmn: Command, graph_file: Path, tmp_path: Path
) -> None:
    words = ("--set", "normalization=none", "--out", "both")
    answer = hpgmn("train", graph_file, "--model", "cpgnn,hpgmn", *words)
    assert answer.code == 2
    assert "hpgmn: Unknown value for 'normalization': 'none'." in answer.err
    assert not (tmp_path / "both").exists()


def test_unknown_models_are_refused_before_any_work(
    hpgmn: Command, graph_file: Path, tmp_path: Path
) -> None:
    answer = hpgmn("train", graph_file, "--model", "mlp,gcm", "--out", "both")
    assert answer.code == 2
    assert "Did you mean 'gcn'" in answer.err
    assert not (tmp_path / "both").exists()


def test_runs_without_an_interval_show_the_difference_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"test_score_mean": 0.8, "test_score_std": 0.0, "val_score_mean": 0.7, "seconds": 1.0}
    gap = {"mean": -0.0314, "low": None, "high": None}
    print_comparison(
        {
            "graph": "toy",
            "metric": "accuracy",
            "splits": [0],
            "seeds": 1,
            "reference": "hpgmn",
            "rows": [
                row | {"model": "hpgmn", "difference": None},
                row | {"model": "mlp", "difference": gap},
            ],
        }
    )
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("mlp")).split() == [
        *("mlp", "80.0", "±", "0.0", "70.0", "-3.1", "1.0")
    ]


@pytest.mark.slow
def test_every_model_trains_on_pubmed_in_three_gibibytes(data_dir: Path, tmp_path: Path) -> None:
    """In a process of its own, two seeds each, with the shipped widths and two epochs a stage.

    The C library keeps freed blocks of up to 32 MiB, by chance a gibibyte of them; asked to give
    back those of 16 MiB, it lets the peak be what the models need.
    """
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**24)}
    stages = ("", "estimator_", "pretraining_", "prior_", "gcnii_", "representation_")
    short = [word for stage in stages for word in ("--set", f"{stage}epochs=2")]
    words = ["train", "pubmed", "--model", "all", "--seeds", "2", *short, "--out", "all"]
    done = subprocess.run(
        [sys.executable, "-m", "hpgmn", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "all" / "comparison.json").read_text(encoding="utf-8"))
    assert [row["model"] for row in content["rows"]] == list(MODELS)
    peaks = {row["model"]: row["peak_memory_mb"] * 1e6 / 2**30 for row in content["rows"]}
    assert max(peaks.values()) < 3, peaks


# On a cluster, of which an engine in this process is the stand-in.


def specifications(*models: str) -> list[RunSpec]:
    made = [make_settings(find_model(name).settings, {"epochs": 3}) for name in models]
    return [
        RunSpec("small", name, settings_dict(own), (0, 1))
        for name, own in zip(models, made, strict=True)
    ]


def test_models_that_a_cluster_cannot_train_are_left_out(
    small_graph: Graph, tmp_path: Path, here_engine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    specs, folder = specifications("mlp", "gcn"), tmp_path / "out"
    broken = here_engine(lost=(str(folder / "gcn"),))
    options: dict[str, Any] = {"resume": False, "overwrite": False, "cluster": broken}
    with pytest.raises(HPGMNError, match=r"1 of 2 models failed\. gcn: Gone\."):
        train_several(specs, small_graph, folder, **options)
    assert "gcn is left out: Gone." in capsys.readouterr().err
    assert (folder / "mlp" / "report.html").exists()
    engine = here_engine()
    again = options | {"resume": True, "cluster": engine}
    train_several(specs, small_graph, folder, **again)
    assert [Path(task.name).name for task in engine.begun] == ["gcn"], "the other one is done"
    assert (folder / "gcn" / "report.html").exists()


def test_one_model_on_a_cluster_goes_on_with_its_report(
    small_graph: Graph, tmp_path: Path, here_engine: Any
) -> None:
    (spec,), folder = specifications("mlp"), tmp_path / "out"
    options: dict[str, Any] = {"resume": False, "overwrite": False}
    with pytest.raises(HPGMNError, match="Gone"):
        train_one(spec, small_graph, folder, **options, cluster=here_engine(lost=(str(folder),)))
    engine = here_engine()
    metrics = train_one(
        spec, small_graph, folder, resume=False, overwrite=True, cluster=engine, choice={"a": 1}
    )
    assert metrics == verify_checksum(metrics_of(folder))
    assert metrics["portfolio"] == {"a": 1}
    (folder / "report.html").unlink()
    train_one(spec, small_graph, folder, resume=True, overwrite=False, cluster=engine)
    assert len(engine.begun) == 1, "only the report was missing"
    assert (folder / "report.html").exists()


def test_ctrl_c_on_a_cluster_says_how_to_go_on(
    small_graph: Graph,
    tmp_path: Path,
    here_engine: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    engine = here_engine()
    monkeypatch.setattr(engine, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_several(
            specifications("mlp", "gcn"),
            small_graph,
            tmp_path / "out",
            resume=False,
            overwrite=False,
            cluster=engine,
        )
    assert f"with --resume --out {tmp_path / 'out'}" in capsys.readouterr().err
