"""A model of your own under the same protocol as all others.

hpgmn train texas --model own_model:TwoHop,hpgmn --set rounds=1
"""

import torch
from torch_geometric.nn import GCNConv


class TwoHop(torch.nn.Module):
    """A node's own attributes beside those of its neighbours, one and two steps away."""

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        hidden_dim: int = 32,
        rounds: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.encode = torch.nn.Linear(num_features, hidden_dim)
        self.spread = torch.nn.ModuleList(GCNConv(hidden_dim, hidden_dim) for _ in range(rounds))
        self.dropout = torch.nn.Dropout(dropout)
        self.classify = torch.nn.Linear((rounds + 1) * hidden_dim, num_classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """(N, num_features) and (2, E) to (N, num_classes)."""
        states = [self.dropout(self.encode(x).relu())]
        for layer in self.spread:
            states.append(layer(states[-1], edge_index).relu())
        return self.classify(torch.cat(states, dim=1))
