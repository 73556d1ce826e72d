"""A trained run that serves predictions on a graph that grows."""
