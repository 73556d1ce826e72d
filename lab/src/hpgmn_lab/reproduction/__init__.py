"""The paper's experiments, cell by cell: what they need, the work, and the tables made of it."""
