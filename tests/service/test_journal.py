"""The journal: durable, in order, of one run, of one process."""

import shutil
import sqlite3

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.runs.run import open_run
from hpgmn.service.journal import JOURNAL_FILE, Journal, JournalError


@pytest.fixture
def run(run_folder):
    return open_run(run_folder)


def node(name, **columns):
    return {"id": name, **columns}


def write(run, *entries):
    journal = Journal(run)
    for nodes, edges in entries:
        journal.append(nodes, edges)
    journal.close()


def test_entries_come_back_in_order_in_few_batches(run):
    entries = [([node(f"a{k}", age=k)], [{"source": f"a{k}"}]) for k in range(50)]
    write(run, *entries)
    journal = Journal(run)
    assert journal.num_entries == 50
    [(nodes, edges)] = journal.batches()
    assert nodes == [row for rows, _ in entries for row in rows]
    assert edges == [row for _, rows in entries for row in rows]
    assert [len(nodes) for nodes, _ in journal.batches(most=10)] == [10] * 5
    journal.close()


def test_values_of_other_kinds_are_not_joined(run):
    write(run, *(([node("a", x=value)], []) for value in (1, 1.5, None, "1", True, 2**60)))
    journal = Journal(run)
    found = [[row["x"] for row in nodes] for nodes, _ in journal.batches()]
    assert found == [[1, 1.5, None], ["1"], [True], [2**60]]
    journal.close()


def test_the_file_is_in_wal_mode_and_synchronous(run):
    journal = Journal(run)
    assert journal._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert journal._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    journal.close()


def test_a_second_owner_is_refused_and_a_reader_is_not(run):
    journal = Journal(run)
    journal.append([node("a")], [])
    with pytest.raises(HPGMNError) as caught:
        Journal(run)
    assert caught.value.remedy.alternatives[0].option == "read_only"
    reader = Journal(run, is_writable=False)
    assert [nodes for nodes, _ in reader.batches()] == [[node("a")]]
    reader.close()
    journal.close()
    write(run, ([node("b")], []))  # the lock is free again


def test_a_reader_needs_no_journal_and_makes_none(run):
    reader = Journal(run, is_writable=False)
    assert list(reader.batches()) == []
    reader.close()
    assert not (run.folder / JOURNAL_FILE).exists()


def test_a_reader_may_stop_early(run):
    write(run, *(([node(f"a{k}")], []) for k in range(4)))
    reader = Journal(run, is_writable=False, num_entries=3)
    assert [len(nodes) for nodes, _ in reader.batches()] == [3]
    reader.close()


def test_the_journal_of_another_run_is_refused(run, tmp_path):
    write(run, ([node("a")], []))
    other = shutil.copytree(run.folder, tmp_path / "other")
    write(open_run(other))  # a copy of the run is the same run
    connection = sqlite3.connect(other / JOURNAL_FILE)
    connection.execute("UPDATE run SET fingerprint = 'x'")
    connection.commit()
    connection.close()
    with pytest.raises(HPGMNError, match="another run") as caught:
        Journal(open_run(other))
    assert caught.value.remedy is not None


@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize("damage", [b"not a database, but long enough" * 9, None])
def test_a_damaged_file_is_a_user_error(run, damage, is_writable):
    path = run.folder / JOURNAL_FILE
    write(run, *(([node("a" * 3000)], []) for _ in range(9)))
    content = path.read_bytes()
    path.write_bytes(damage or content[: len(content) // 2])
    with pytest.raises(HPGMNError) as caught:
        Journal(run, is_writable=is_writable)
    assert caught.value.remedy is not None


def test_a_full_disk_acknowledges_nothing(run):
    journal = Journal(run)
    journal._connection.execute("PRAGMA max_page_count = 8")
    with pytest.raises(JournalError):
        journal.append([node("a" * 100_000)], [])
    journal.append([node("b")], [])
    assert [nodes for nodes, _ in journal.batches()] == [[node("b")]]
    journal.close()
