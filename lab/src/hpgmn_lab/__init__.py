"""The laboratory: the paper's experiments, benchmarks, and the pages made from their records."""

__version__ = "0.5.0"
