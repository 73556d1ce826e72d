"""Training on several processes or machines: torchrun, or Ray Train."""

from __future__ import annotations

from hpgmn.distributed.ray_train import train_with_ray

__all__ = ["train_with_ray"]
