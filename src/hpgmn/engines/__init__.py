"""Engines run independent tasks: in processes of this machine, or on a Ray cluster."""

from hpgmn.engines.processes import ENGINES, Channel, Engine, RateLimiter, Share, Task, TaskResult

__all__ = ["ENGINES", "Channel", "Engine", "RateLimiter", "Share", "Task", "TaskResult"]
