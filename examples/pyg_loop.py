"""HP-GMN's parts in an ordinary PyTorch Geometric loop: statistics as transforms, your own module.

python pyg_loop.py
"""

import torch
from torch.nn import functional
from torch_geometric.transforms import Compose

import hpgmn
from hpgmn.transforms import AddClassCounts, AddClassMeans

torch.manual_seed(0)
SPLIT = 0  # the built-in graph has ten splits; masks have a column for each

# Any Data object will do. Only labels of train nodes are read by the transforms.
transform = Compose(
    [
        AddClassCounts(neighbors="both", split=SPLIT),  # data.class_counts: (N, 2 · classes)
        AddClassMeans(neighbors="both", split=SPLIT),  # data.class_means
    ]
)
data = transform(hpgmn.trading_network(seed=0).graph.to_pyg())
train, val, test = (data[f"{part}_mask"][:, SPLIT] for part in ("train", "val", "test"))


class Net(torch.nn.Module):
    """An encoder for each statistic, a memory of global patterns, a classifier."""

    def __init__(self, widths: list[int], num_classes: int, dim: int = 32) -> None:
        super().__init__()
        self.encode = torch.nn.ModuleList(torch.nn.Linear(width, dim) for width in widths)
        self.memory = hpgmn.nn.Memory(1, 20, len(widths) * dim)  # one replica, 20 patterns
        self.classify = torch.nn.Linear(2 * len(widths) * dim, num_classes)

    def forward(self, *statistics: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (N, classes), and what the two penalties add to the loss."""
        parts = [layer(rows) for layer, rows in zip(self.encode, statistics, strict=True)]
        query = torch.cat(parts, dim=1).relu()
        value, attention = self.memory(query)  # what each node reads, and from which patterns
        # The patterns stay near the nodes, and all of them are used.
        near = hpgmn.nn.kpattern_penalty(query, self.memory.patterns)
        even = hpgmn.nn.entropy_penalty(attention)
        both = functional.dropout(torch.cat([query, value], dim=1), 0.3, self.training)
        return self.classify(both), 1e-3 * near + 1e-2 * even


inputs = (data.x, data.class_counts, data.class_means)
model = Net([rows.size(1) for rows in inputs], int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _ in range(100):
    model.train()
    optimizer.zero_grad()
    logits, penalty = model(*inputs)
    (functional.cross_entropy(logits[train], data.y[train]) + penalty).backward()
    optimizer.step()
model.eval()
guess = model(*inputs)[0].argmax(dim=1)
for part, mask in (("validation", val), ("test", test)):
    print(f"{part} accuracy {(guess == data.y)[mask].float().mean():.3f}")
