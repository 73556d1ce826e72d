"""Pictures of the records in results/, which lie outside the folder of pages.

mkdocs calls the functions by their names (``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

_RECORDS = re.compile(r"(\]\(|src=\")\.\./(results/[^)\"]+)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pictures to the files of the site."""
    for picture in sorted((ROOT / "results").rglob("*.svg")):
        name = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links into results/ at the added pictures; in the repository they start at docs/."""
    return _RECORDS.sub(r"\1\2", markdown)
