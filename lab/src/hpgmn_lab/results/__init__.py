"""``docs/RESULTS.md``, made from the records in ``lab/results``."""
