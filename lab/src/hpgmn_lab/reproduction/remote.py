"""A reproduction whose folder is a URL: what is done there is fetched, what is done here is sent.

Any file system that fsspec opens will do. The work itself is in a folder of this machine.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.reproduction.work import CELLS_FOLDER, SEARCH_FOLDER, WORK_FOLDER

_KEPT = (CELLS_FOLDER, SEARCH_FOLDER)
PAUSES = (1.0, 10.0, 30.0)
"""Seconds between tries to send what is done at the end."""


def is_url(folder: str) -> bool:
    """Whether a folder is named by a URL.

    >>> is_url("s3://bucket/table2"), is_url("runs/table2")
    (True, False)
    """
    return "://" in folder


class RemoteFolder:
    """A folder behind a URL, and the folder of this machine that stands for it.

    Args:
        url: as fsspec takes it.
        here: a folder of this machine.
    """

    def __init__(self, url: str, here: Path) -> None:
        self.url, self.here = url.rstrip("/"), here
        try:
            import fsspec
        except ImportError:
            raise HPGMNError(f"--out {url} needs fsspec. Run: pip install fsspec") from None
        try:
            self._system, self._root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError, OSError) as error:
            raise self._refusal(error) from None
        self._sent: dict[str, bytes] = {}

    def fetch(self) -> None:
        """Bring the records and the searches under way here."""
        with self._told():
            for part in _KEPT:
                place = f"{self._root}/{part}"
                names = self._system.ls(place, detail=False) if self._system.exists(place) else []
                for path in (path for path in names if path.endswith(".json")):
                    name = f"{part}/{path.rsplit('/', 1)[-1]}"
                    (self.here / part).mkdir(parents=True, exist_ok=True)
                    self._sent[name] = self._system.cat_file(path)
                    (self.here / name).write_bytes(self._sent[name])

    def send(self) -> None:
        """Send what is new here; searches that are no longer under way go there, too."""
        with self._told():
            found = {}
            for path in sorted(self.here.rglob("*")):
                name = path.relative_to(self.here).as_posix()
                is_own = any(part.startswith(".") for part in name.split("/"))
                if path.is_file() and not is_own and not name.startswith(f"{WORK_FOLDER}/"):
                    found[name] = path.read_bytes()
            for name, content in found.items():
                if self._sent.get(name) != content:
                    self._put(name, content)
            for name in [name for name in self._sent if name not in found]:
                with suppress(FileNotFoundError):
                    self._system.rm_file(f"{self._root}/{name}")
                del self._sent[name]

    def _put(self, name: str, content: bytes) -> None:
        """Write a file whole: under another name first, then moved to its place."""
        place = f"{self._root}/{name}"
        self._system.makedirs(place.rsplit("/", 1)[0], exist_ok=True)
        self._system.pipe_file(f"{place}.unfinished", content)
        self._system.mv(f"{place}.unfinished", place)
        self._sent[name] = content

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except HPGMNError:
            raise
        except Exception as error:  # every file system has its own
            raise self._refusal(error) from None

    def _refusal(self, error: Any) -> HPGMNError:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        return HPGMNError(f"Cannot use the folder {self.url} ({reason}). Choose another --out.")


@contextmanager
def remote_folder(url: str) -> Iterator[RemoteFolder]:
    """A folder behind a URL, with what is done already; what is done here is sent in the end."""
    here = Path(tempfile.mkdtemp(prefix="hpgmn-"))
    try:
        folder = RemoteFolder(url, here)
        folder.fetch()
    except HPGMNError:
        shutil.rmtree(here)
        raise
    try:
        yield folder
    finally:
        _send_all(folder)
        shutil.rmtree(here)


def _send_all(folder: RemoteFolder) -> None:
    """Send what is left, if need be more than once; what cannot be sent stays here."""
    for seconds in PAUSES:
        with suppress(HPGMNError):
            folder.send()
            return
        time.sleep(seconds)
    try:
        folder.send()
    except HPGMNError as error:
        raise HPGMNError(
            f"{error} Nothing is lost: all that was done lies in {folder.here}. Copy it to "
            f"{folder.url}, or go on with --out {folder.here}."
        ) from None
