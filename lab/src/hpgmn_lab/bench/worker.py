"""The measured process: reads what is asked, does it, writes the answer.

    python -m hpgmn_lab.bench.worker ASKED.json ANSWER.json

A mistake of the user and a lack of memory are answers, too: ``{"failed": sentence}``.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import write_text
from hpgmn.base.parsing import read_json

TASKS = {
    "deterministic": ("deterministic", "one_side"),
    "graph": ("graphs", "make"),
    "growth": ("growth", "one_run"),
    "peer": ("trials", "run_trials"),
    "shards": ("ranges", "one_cut"),
    "workers": ("workers", "one_side"),
}
"""What can be asked: module and function."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the task; returns the exit code."""
    asked, answer = map(Path, sys.argv[1:] if arguments is None else arguments)
    request = read_json(asked)
    module, function = TASKS[request["task"]]
    work = getattr(importlib.import_module(f"hpgmn_lab.bench.{module}"), function)
    try:
        content = work(**request["arguments"])
    except KeyboardInterrupt:
        return 130
    except (HPGMNError, MemoryError) as error:
        content = {"failed": str(error) or "out of memory"}
    write_text(answer, json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
