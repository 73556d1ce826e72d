"""A graph cut into node ranges: its statistics as row shards, made by tasks of bounded memory.

A task is a function of files: it reads what one range of nodes needs and writes that range's rows.
So any engine may run it, here, in several processes or on a cluster, and what is finished stays
finished. :func:`shard` does all of it, :class:`Shards` reads what it wrote.
"""

from hpgmn.shards.build import Outcome, note_origin, shard
from hpgmn.shards.reading import ESTIMATOR_FILE, Shards

__all__ = ["ESTIMATOR_FILE", "Outcome", "Shards", "note_origin", "shard"]
