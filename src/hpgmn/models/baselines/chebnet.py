"""ChebNet: every layer is a Chebyshev polynomial of the Laplacian (Defferrard et al., 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    Baseline,
    GraphSettings,
    layer_widths,
    propagation_inputs,
    single_stage,
    stack_layers,
)
from hpgmn.models.layers import NodeModel, Output, TermWeights, product
from hpgmn.models.stage import ModelEntry, TrainingTask
from hpgmn.statistics.operators import Statistic, join_replicas, split_replicas


@dataclass(frozen=True, kw_only=True)
class ChebNetSettings(GraphSettings):
    """Settings of ChebNet."""

    layers: int = setting(2, "number of layers", low=1, high=16)
    order: int = setting(2, "highest order of the Chebyshev polynomials", low=0, high=16)


class ChebyshevConvolution(TermWeights):
    """y = Σ_k T_k(L̂)·x·W_k + b for k = 0 … order, with L̂ = -P.

    P = D^-½·A·D^-½ without self-loops, so that L̂ is the Laplacian I - P scaled with λ_max = 2; the
    paper and Kipf's code compute λ_max, which is 2 for a bipartite graph and little less otherwise.
    The weights come before the polynomials and Clenshaw's rule sums them up: every product with P
    is as wide as the output, and nothing is stored for the backward pass. PyG's K is order + 1.
    """

    def __init__(self, replicas: int, inputs: int, outputs: int, order: int) -> None:
        super().__init__(replicas, inputs, outputs, order + 1, outputs)

    def forward(
        self, propagation: SparseMatrix, x: Statistic | Tensor, columns: Tensor | None = None
    ) -> Tensor:
        """A statistic's rows, or (R, N, inputs), to (R, N, outputs)."""
        replicas, _, terms, _ = self.weight.shape
        wide = product(x, self.weight.flatten(2), columns)
        parts = [join_replicas(part) for part in wide.chunk(terms, dim=-1)]  # each (N, R·D)
        before, last = None, parts[-1]
        for part in reversed(parts[1:-1]):
            term = part.sub(propagation @ last, alpha=2)
            before, last = last, term if before is None else term - before
        if terms > 1:
            result = parts[0] - propagation @ last
            last = result if before is None else result - before
        return split_replicas(last, replicas) + self.bias


class ChebNet(Baseline, NodeModel):
    """H⁽ˡ⁾ = ReLU(Σ_k T_k(L̂)·H⁽ˡ⁻¹⁾·W_lk + b_l), the last one without ReLU; T_k Chebyshev's.

    Nodes are classified as by Kipf and Welling's GCN-Cheby; the paper pools them to classify whole
    graphs. With ``neighbors`` other than "undirected", rows are normalised by the degrees of the
    edges read and columns by those of the edges that lead there.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        layer = partial(ChebyshevConvolution, order=task.settings[0].order)
        layers = stack_layers(layer, len(task.replicas), layer_widths(task))
        self.network = nn.ModuleDict({"layers": layers})  # saved parameters have these names

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        attributes, propagation = inputs["attributes"], inputs["propagation"]
        layers: Any = self.network["layers"]
        names = {"columns": "network.columns", "hidden": "network"}
        return Output(self.apply_layers(layers, propagation, attributes, noise, **names))


def _floats(graph: Graph, settings: ChebNetSettings) -> tuple[int, int]:
    terms = settings.order + 1
    per_node = settings.hidden_dim * (2 * terms + 2 * settings.layers + 6)
    return graph.num_features * settings.hidden_dim * terms, per_node


ENTRY = ModelEntry("chebnet", ChebNetSettings, single_stage(ChebNet, propagation_inputs), _floats)
