"""Training: stages of replicas, one loop, one saved state."""

import torch

# Probabilities and squared gradients of a well-fitted model underflow; arithmetic on denormal
# numbers made whole runs 30 times slower on a CPU (texas, 2 cores). Numbers below 1e-38 become 0.
torch.set_flush_denormal(True)
