"""Scores over runs and classes, and differences between runs."""
