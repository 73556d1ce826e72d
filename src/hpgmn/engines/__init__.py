"""Engines that run independent tasks: processes of this machine, or the machines of a Ray cluster.

A task is a function of a module with what it needs. It answers with a value; meanwhile it may tell
or ask the process that started it something.
"""

from hpgmn.engines.tasks import ENGINES, Ended, Engine, Line, Seldom, Share, Task

__all__ = ["ENGINES", "Ended", "Engine", "Line", "Seldom", "Share", "Task"]
