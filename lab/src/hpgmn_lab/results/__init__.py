"""``docs/RESULTS.md`` and the records behind it."""
