"""Runs: training into a run folder, and using, comparing and tuning runs."""
