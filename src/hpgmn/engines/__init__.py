"""Engines that run independent tasks: this process, or the machines of a Ray cluster.

A task is a function of a module with what it needs. It answers with a value; meanwhile it may tell
or ask the process that started it something. Whoever starts tasks writes all files, so that the
machines of a cluster need no folder in common.
"""

from hpgmn.engines.tasks import ENGINES, Ended, Engine, Line, Share, Task

__all__ = ["ENGINES", "Ended", "Engine", "Line", "Share", "Task"]
