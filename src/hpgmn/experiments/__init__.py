"""Experiments: runs, searches and the tables made from their records."""
