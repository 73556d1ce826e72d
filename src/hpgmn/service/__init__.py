"""Serve a trained run over HTTP: a growing graph, a journal of what was added, and their routes."""
