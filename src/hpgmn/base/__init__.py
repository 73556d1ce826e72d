"""What every other package builds on: errors, files, settings, metrics, random numbers."""
