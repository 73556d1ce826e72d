"""HP-GMN: graph memory networks for node classification on heterophilous graphs."""

__version__ = "0.1.0"
