"""Training: stages of replicas, one loop, one saved state."""
