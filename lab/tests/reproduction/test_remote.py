"""A reproduction whose folder is a URL."""

import shutil

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.reproduction import remote
from hpgmn_lab.reproduction.remote import RemoteFolder, is_url, remote_folder

URL = "memory://bucket/table2"


@pytest.fixture
def system():
    import fsspec

    found = fsspec.filesystem("memory")
    found.store.clear()
    yield found
    found.store.clear()


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The pauses that are made between tries; they take no time."""
    made = []
    monkeypatch.setattr(remote.time, "sleep", made.append)
    return made


def files(system):
    return {name: system.cat_file(name) for name in sorted(system.store)}


def test_urls_and_paths_are_distinguished():
    assert [is_url(one) for one in ("s3://a/b", "file:///a", "/a/b", "a:b")] == [True] * 2 + [
        False
    ] * 2


def test_records_are_downloaded_and_new_files_uploaded(system):
    system.pipe_file("/bucket/table2/cells/a.json", b"one")
    system.pipe_file("/bucket/table2/cells/a.json.unfinished", b"half")
    system.pipe_file("/bucket/table2/search/b.json", b"two")
    system.pipe_file("/bucket/table2/table2.md", b"old")
    with remote_folder(URL + "/") as folder:
        local = folder.local
        known = {path.relative_to(local).as_posix() for path in local.rglob("*.*")}
        assert known == {"cells/a.json", "search/b.json"}
        assert (local / "cells/a.json").read_bytes() == b"one"
        (local / "search/b.json").unlink()
        (local / "cells/b.json").write_bytes(b"three")
        folder.upload()
        assert files(system)["/bucket/table2/cells/b.json"] == b"three"
        for name in ("work/b/state", ".lock", "cells/.c.json.1.unfinished/c.json"):
            (local / name).parent.mkdir(parents=True, exist_ok=True)
            (local / name).write_bytes(b"passing")
        (local / "table2.md").write_bytes(b"new")
    assert not local.exists()
    assert files(system) == {
        "/bucket/table2/cells/a.json": b"one",
        "/bucket/table2/cells/a.json.unfinished": b"half",
        "/bucket/table2/cells/b.json": b"three",
        "/bucket/table2/table2.md": b"new",
    }


@pytest.mark.usefixtures("system")
def test_unchanged_files_are_not_uploaded_again(system, tmp_path, monkeypatch):
    sent = []
    genuine = type(system).pipe_file

    def pipe(own, path, content, **options):
        sent.append(path)
        genuine(own, path, content, **options)

    monkeypatch.setattr(type(system), "pipe_file", pipe)
    folder = RemoteFolder(URL, tmp_path)
    (tmp_path / "a.md").write_bytes(b"a")
    folder.upload()
    folder.upload()
    assert [path.rsplit("/", 1)[1] for path in sent] == ["a.md.unfinished"]
    (tmp_path / "a.md").write_bytes(b"b")
    folder.upload()
    assert len(sent) == 2


def test_finished_work_is_uploaded_after_an_error(system):
    def work():
        with remote_folder(URL) as folder:
            (folder.local / "cells").mkdir()
            (folder.local / "cells/a.json").write_bytes(b"one")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert files(system) == {"/bucket/table2/cells/a.json": b"one"}


def test_a_folder_on_disk_may_be_a_url(tmp_path):
    with remote_folder(f"file://{tmp_path}/deep/er") as folder:
        (folder.local / "cells").mkdir()
        (folder.local / "cells/a.json").write_bytes(b"one")
    assert [path.name for path in (tmp_path / "deep/er/cells").iterdir()] == ["a.json"]


def test_urls_that_cannot_be_used_are_reported(tmp_path):
    with pytest.raises(HPGMNError, match="Cannot use the folder nosuch://a"):
        RemoteFolder("nosuch://a", tmp_path)
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(HPGMNError, match="Cannot use the folder file:"),
        remote_folder(f"file://{tmp_path}/file/x") as folder,
    ):
        (folder.local / "a.md").write_bytes(b"a")


class Outage:
    """A file system that takes nothing for a while."""

    def __init__(self, system, monkeypatch, failures):
        self.left, self.genuine = failures, system.pipe_file
        monkeypatch.setattr(type(system), "pipe_file", self.pipe_file)

    def pipe_file(self, *arguments, **options):
        self.left -= 1
        if self.left >= 0:
            raise OSError("no route to the bucket")
        self.genuine(*arguments, **options)


def test_a_short_outage_is_retried(system, pauses, monkeypatch):
    with remote_folder(URL) as folder:
        (folder.local / "cells").mkdir()
        (folder.local / "cells/a.json").write_bytes(b"one")
        Outage(system, monkeypatch, 2)
    assert pauses == [1.0, 10.0]
    assert files(system) == {"/bucket/table2/cells/a.json": b"one"}
    assert not folder.local.exists()


def test_the_local_copy_is_kept_when_the_upload_fails(system, monkeypatch):
    context = remote_folder(URL)
    folder = context.__enter__()
    (folder.local / "cells").mkdir()
    (folder.local / "cells/a.json").write_bytes(b"one")
    Outage(system, monkeypatch, 99)
    with pytest.raises(HPGMNError, match="no route to the bucket") as error:
        context.__exit__(None, None, None)
    assert f"--out {folder.local}" in error.value.render(cli=True)
    assert (folder.local / "cells/a.json").read_bytes() == b"one"
    shutil.rmtree(folder.local)
