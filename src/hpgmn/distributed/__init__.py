"""Training on row shards by several processes or machines: torchrun, or Ray Train."""

from __future__ import annotations

from hpgmn.distributed.ray_train import run_with_ray
from hpgmn.distributed.run import run_on_shards, specification

__all__ = ["run_on_shards", "run_with_ray", "specification"]
