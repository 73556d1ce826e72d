"""A reproduction whose folder is a URL of any file system that fsspec supports.

The work is done in a local folder: records are downloaded first and uploaded after each cell.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn_lab.reproduction.work import CELLS_FOLDER, SEARCH_FOLDER, WORK_FOLDER

RETRY_SECONDS = (1.0, 10.0, 30.0)
"""Pauses between attempts of the last upload."""


def is_url(folder: str) -> bool:
    """Return whether a folder is given as a URL.

    >>> is_url("s3://bucket/table2"), is_url("runs/table2")
    (True, False)
    """
    return "://" in folder


class RemoteFolder:
    """A folder behind a URL and its local copy."""

    def __init__(self, url: str, local: Path) -> None:
        self.url, self.local = url.rstrip("/"), local
        self._uploaded: dict[str, bytes] = {}
        with self._errors():
            import fsspec

            self._system, self._root = fsspec.core.url_to_fs(self.url)

    def download(self) -> None:
        """Fetch the records and unfinished searches."""
        with self._errors():
            for part in (CELLS_FOLDER, SEARCH_FOLDER):
                folder = f"{self._root}/{part}"
                paths = self._system.ls(folder, detail=False) if self._system.exists(folder) else []
                for path in (path for path in paths if path.endswith(".json")):
                    name = f"{part}/{path.rsplit('/', 1)[-1]}"
                    (self.local / part).mkdir(parents=True, exist_ok=True)
                    self._uploaded[name] = self._system.cat_file(path)
                    (self.local / name).write_bytes(self._uploaded[name])

    def upload(self) -> None:
        """Send new and changed files; delete those of finished searches."""
        with self._errors():
            files = {
                path.relative_to(self.local).as_posix(): path.read_bytes()
                for path in sorted(self.local.rglob("[!.]*"))
                if path.is_file() and not _is_temporary(path.relative_to(self.local))
            }
            for name, content in files.items():
                if self._uploaded.get(name) != content:
                    self._write(name, content)
            for name in [name for name in self._uploaded if name not in files]:
                with suppress(FileNotFoundError):
                    self._system.rm_file(f"{self._root}/{name}")
                del self._uploaded[name]

    def _write(self, name: str, content: bytes) -> None:
        """Write under a temporary name and rename."""
        path = f"{self._root}/{name}"
        self._system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        self._system.pipe_file(f"{path}.unfinished", content)
        self._system.mv(f"{path}.unfinished", path)
        self._uploaded[name] = content

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors, which differ between file systems, into one message."""
        try:
            yield
        except Exception as error:
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise HPGMNError(
                f"Cannot use the folder {self.url} ({reason}).",
                Remedy("Choose another folder", option="out"),
            ) from None


def _is_temporary(path: Path) -> bool:
    return path.parts[0] == WORK_FOLDER or any(part.startswith(".") for part in path.parts)


@contextmanager
def remote_folder(url: str) -> Iterator[RemoteFolder]:
    """Open a folder behind a URL with its records; upload the rest at the end."""
    local = Path(tempfile.mkdtemp(prefix="hpgmn-"))
    try:
        folder = RemoteFolder(url, local)
        folder.download()
    except HPGMNError:
        shutil.rmtree(local)
        raise
    try:
        yield folder
    finally:
        _upload_with_retries(folder)
        shutil.rmtree(local)


def _upload_with_retries(folder: RemoteFolder) -> None:
    """Upload, retrying; keep the local copy if that fails."""
    for seconds in RETRY_SECONDS:
        with suppress(HPGMNError):
            return folder.upload()
        time.sleep(seconds)
    try:
        folder.upload()
    except HPGMNError as error:
        raise HPGMNError(
            f"{error.message} All finished work is in {folder.local}.",
            Remedy(f"Copy it to {folder.url}")
            | Remedy("Continue in the local folder", option="out", value=str(folder.local)),
        ) from None
