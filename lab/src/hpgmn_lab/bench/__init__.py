"""Benchmarks that anyone can run again: each measures, writes a record, and judges it by bars."""

BENCHMARKS = {
    "growth": "the cost of each stage as the graph grows, up to millions of nodes",
    "peers": "HP-GMN beside other models on one graph: seconds to the same validation score",
    "forms": "diffusion as largest entries or as a sketch, against the exact matrix",
    "batches": "training in batches of rows, against all rows at once",
    "workers": "two workers against one on independent runs of one thread each",
    "shards": "a graph in node ranges: the cost of each kind of work, and of training on rows",
    "deterministic": "what the same bits each time cost on a GPU, model by model",
}
"""Every benchmark and what it measures, in a line."""
