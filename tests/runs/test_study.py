"""The study file of a search: recognised, locked, and refused where it is of another search."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.runs import study as study_file
from hpgmn.runs.study import (
    best_trial,
    claim,
    finished_trials,
    identity_of,
    lock_study,
    open_study,
    refuse_other,
    study_exists,
    trial_counts,
)

IDENTITY: dict[str, Any] = {
    "graph": "texas",
    "model": "mlp",
    "splits": [0, 1],
    "protocol": None,
    "fixed": {},
    "values": {"lr": [0.1, 0.2]},
    "content": "abc",
}


def test_a_study_is_made_kept_and_recognised(tmp_path):
    path = tmp_path / "odd name?%20#.db"
    assert not study_exists(path)
    with open_study(path) as study:
        assert identity_of(study) is None
        claim(study, path, IDENTITY)
        trial = study.ask()
        trial.set_user_attr("place", 0)
        study.tell(trial, 0.5)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert study_exists(path)
    with open_study(path) as study:
        assert identity_of(study) == IDENTITY
        assert [one.value for one in study.trials] == [0.5]
        claim(study, path, IDENTITY)


def test_an_empty_file_and_an_empty_database_become_a_study(tmp_path):
    """What a search leaves that is killed before its first write."""
    path = tmp_path / "a.db"
    path.touch()
    assert not study_exists(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE a (b)")
        database.execute("DROP TABLE a")
        database.commit()
    assert path.stat().st_size > 0
    assert not study_exists(path)


def other_database(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE a (b)")
        database.commit()


def other_empty_studies(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE studies (study_name)")
        database.execute("CREATE TABLE patients (name)")
        database.commit()


def other_study(path):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    optuna.create_study(storage=storage, study_name="theirs")
    storage.remove_session()
    storage.engine.dispose()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("lr: 0.1\n"),
        lambda path: path.write_bytes(b"SQLite format 3\0" + b"x" * 200),
        lambda path: path.mkdir(),
        other_database,
        other_empty_studies,
        other_study,
    ],
    ids=["text", "damaged", "folder", "other database", "other empty studies", "other study"],
)
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path, make):
    path = tmp_path / "a.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(HPGMNError, match="is not a study of hpgmn; nothing was changed"):
        study_exists(path)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    path.touch()

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(HPGMNError, match=r"Cannot read the study .* \(Permission denied\)"):
        study_exists(path)


def test_a_study_of_another_version_of_optuna_is_refused(tmp_path):
    path = tmp_path / "a.db"
    with open_study(path):
        pass
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE version_info SET schema_version = 999")
        database.execute("UPDATE alembic_version SET version_num = 'v999'")
        database.commit()
    with pytest.raises(HPGMNError, match="another version of Optuna"), open_study(path):
        pass


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"graph": "cornell", "content": "x"}, "graph (texas, now cornell)."),
        ({"model": "gcn", "values": {}}, "model (mlp, now gcn)."),
        ({"splits": [0], "protocol": "p"}, "splits (0,1, now 0), protocol (none, now p)."),
        ({"fixed": {"lr": 0.1, "a": ["b", "c"]}}, "fixed settings (none, now lr=0.1 a=b,c)."),
        ({"content": "x"}, "the graph itself (attributes, edges, labels or splits) changed."),
        ({"values": {}}, "the values to try changed."),
    ],
)
def test_another_search_is_refused_by_what_differs(changes, words):
    with pytest.raises(HPGMNError) as caught:
        refuse_other(Path("a.db"), IDENTITY, IDENTITY | changes)
    assert f"The study a.db is of another search: {words}" in str(caught.value)


def test_a_study_is_claimed_once(tmp_path):
    path = tmp_path / "a.db"
    with open_study(path) as study:
        claim(study, path, IDENTITY)
        with pytest.raises(HPGMNError, match="another search"):
            claim(study, path, IDENTITY | {"model": "gcn"})
        assert identity_of(study) == IDENTITY


# One at a time.


def test_two_commands_cannot_write_a_study_at_the_same_time(tmp_path):
    path = tmp_path / "new" / "a.db"
    with lock_study(path):
        with pytest.raises(HPGMNError, match="Another process is searching"), lock_study(path):
            pass
        assert (tmp_path / "new" / "a.db.lock").exists()
    assert list((tmp_path / "new").iterdir()) == []
    with lock_study(path):
        pass


def test_a_killed_command_holds_no_study(tmp_path):
    path = tmp_path / "a.db"
    code = (
        "import os, pathlib, sys\n"
        "from hpgmn.runs.study import lock_study\n"
        "with lock_study(pathlib.Path(sys.argv[1])):\n    os.kill(os.getpid(), 9)"
    )
    source = str(Path(study_file.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=os.environ | {"PYTHONPATH": source},
        check=False,
    )
    assert done.returncode == -9
    assert (tmp_path / "a.db.lock").exists()
    with lock_study(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(HPGMNError) as caught, lock_study(tmp_path / "file" / "a.db"):
        pass
    assert str(caught.value) == (
        f"Cannot write {tmp_path / 'file'} (File exists). Choose a writable path."
    )


@pytest.mark.parametrize("left", [12, 5, 1])
def test_a_study_whose_creation_was_killed_is_completed(tmp_path, left):
    path = tmp_path / "a.db"
    with open_study(path):
        pass
    with closing(sqlite3.connect(path)) as database:
        for name in ("studies", "study_directions"):
            database.execute(f"DELETE FROM {name}")
        names = [
            row[0]
            for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for name in names[left:]:
            database.execute(f"DROP TABLE {name}")
        database.commit()
    assert not study_exists(path)
    with open_study(path) as study:
        assert identity_of(study) is None
    assert study_exists(path)


def test_disk_errors_are_reported(tmp_path, monkeypatch):
    import optuna
    from sqlalchemy.exc import OperationalError

    def full(*_, **__):
        raise OperationalError("INSERT", {}, Exception("database or disk is full"))

    with (
        pytest.raises(HPGMNError, match=r"The disk of the study .* is full"),
        open_study(tmp_path / "a.db"),
    ):
        full()
    with (
        pytest.raises(HPGMNError, match=r"cannot be used any more: gone"),
        open_study(tmp_path / "a.db"),
    ):
        raise optuna.exceptions.StorageInternalError("gone")
    damaged = OperationalError("SELECT", {}, Exception("database disk image is malformed"))
    with (
        pytest.raises(
            HPGMNError, match=r"a\.db is damaged \(.*malformed\)\. Restore it, or choose"
        ),
        open_study(tmp_path / "a.db"),
    ):
        raise damaged
    monkeypatch.setattr(optuna.storages, "RDBStorage", full)
    with pytest.raises(HPGMNError, match="is full"), open_study(tmp_path / "b.db"):
        pass


KILLED_WRITER = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN")
rows = [(1, f"{number}", '"' + "x" * 2000 + '"') for number in range(50)]
query = "INSERT INTO study_user_attributes (study_id, key, value_json) VALUES (?, ?, ?)"
database.executemany(query, rows)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_study_whose_writer_was_killed_in_the_middle_is_recognised(tmp_path):
    """The journal that it leaves is undone, which takes the right to write."""
    path = tmp_path / "study.db"
    with open_study(path) as study:
        study.set_user_attr("mine", 1)
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path)], check=False)
    assert killed.returncode == -9
    assert path.with_name("study.db-journal").stat().st_size > 0
    assert study_exists(path)
    with open_study(path) as study:
        assert study.user_attrs["mine"] == 1
        assert "0" not in study.user_attrs


# Trials.


@pytest.fixture
def trials():
    """A study, and a function that adds a trial."""
    import optuna
    from optuna.trial import TrialState, create_trial

    study = optuna.create_study(direction="maximize")

    def add(score, state="COMPLETE", loss=1.0, **attributes):
        place = len(study.trials)
        record = {"val_score": [score], "val_loss": [loss]}
        attributes = {"place": place, "record": record, **attributes}
        study.add_trial(create_trial(state=TrialState[state], value=score, user_attrs=attributes))

    return study, add


def test_the_best_has_the_highest_score_then_the_lowest_loss_and_is_never_pruned(trials):
    study, add = trials
    add(0.99, "PRUNED")
    assert best_trial(study) is None
    for score, loss in ((0.7, 0.1), (0.8, 0.5), (0.8, 0.4), (0.6, 0.1)):
        add(score, loss=loss)
    assert best_trial(study).number == 3
    assert [trial.number for trial in finished_trials(study)] == [1, 2, 3, 4]


def test_trials_are_counted_by_how_they_ended(trials):
    study, add = trials
    for score, state in ((0.5, "COMPLETE"), (0.5, "COMPLETE"), (0.1, "PRUNED"), (None, "FAIL")):
        add(score, state)
    add(None, "FAIL", error="Too large.")
    add(None, "FAIL", error="Too small.")
    add(None, "RUNNING")
    counts = {"finished": 2, "pruned": 1, "refused": 2, "failed": 1, "running": 1}
    assert trial_counts(study) == counts
