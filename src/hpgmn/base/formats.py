"""The version of the form of files: which one is written, and which are read.

Every kind of file counts the changes of its form on its own; a file that says nothing is of the
first. Older forms are read, newer ones refused in one sentence.
"""

from __future__ import annotations

from typing import Any

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import SEAL, unsealed

RUN_FORMAT = 2
"""Of a run folder: ``config.yaml``, ``metrics.json``, the model, the state and what lies beside
them. 2: the config says what a run was made from and with, and may be all that is given to train
it again."""

GRAPH_FORMAT = 1
"""Of a graph file or folder."""

CELL_FORMAT = 1
"""Of the record of a cell of a reproduction."""

STUDY_FORMAT = 1
"""Of what hpgmn keeps in the study of a search."""


def refuse_newer(what: object, found: object, known: int) -> None:
    """Refuse a file of a form that this version does not know.

    Args:
        what: the file, as the user knows it.
        found: the form that it says it has; None if it says nothing, as the first one did.
        known: the newest form that this version reads.

    >>> refuse_newer("config.yaml", 2, 2)
    >>> refuse_newer("config.yaml", 3, 2)
    Traceback (most recent call last):
      ...
    hpgmn.base.errors.HPGMNError: config.yaml was written by a newer hpgmn (format 3, this one \
reads up to 2). Update hpgmn: pip install -U hpgmn
    """
    if found is None:
        return
    if not isinstance(found, int) or isinstance(found, bool):
        raise HPGMNError(
            f"{what} gives its format as {found!r}, which no version of hpgmn wrote: it is damaged "
            "or not one of ours. Restore it."
        )
    if found > known:
        raise HPGMNError(
            f"{what} was written by a newer hpgmn (format {found}, this one reads up to {known}). "
            "Update hpgmn: pip install -U hpgmn"
        )


def unsealed_of_run(content: Any) -> dict[str, Any]:
    """What a file of a run says, without its checksum; ValueError if it changed or was lost.

    Those of the first form may have none.

    >>> unsealed_of_run({"test_score": [0.5]})
    {'test_score': [0.5]}
    """
    found = unsealed(content)
    if SEAL not in content and found.get("format") not in (None, 1):
        raise ValueError("its checksum is missing")
    return found
