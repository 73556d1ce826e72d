"""Statistics of large graphs as row shards, built by tasks of bounded memory.

A task reads what one range of nodes needs and writes the rows of that range, so any engine may run
it and finished tasks are kept. :func:`shard` writes shards, :class:`Shards` reads them.
"""

from hpgmn.shards.build import Outcome, note_origin, shard
from hpgmn.shards.reading import ESTIMATOR_FILE, Shards

__all__ = ["ESTIMATOR_FILE", "Outcome", "Shards", "note_origin", "shard"]
