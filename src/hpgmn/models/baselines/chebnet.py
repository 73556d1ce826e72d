"""ChebNet: every layer is a polynomial of the Laplacian, in Chebyshev's basis."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import DropRate, Noise, column_factors, relu_dropout
from hpgmn.base.settings import setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import GraphSettings, NodeModel, attributes_input
from hpgmn.models.layers import Initialised, Output, draw_glorot, product
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage
from hpgmn.statistics.operators import Statistic, apart, side_by_side


@dataclass(frozen=True, kw_only=True)
class ChebNetSettings(GraphSettings):
    """Everything that can be set about ChebNet."""

    layers: int = setting(2, "number of layers", low=1, high=16)
    order: int = setting(2, "highest order of the Chebyshev polynomials", low=0, high=16)


class ChebyshevConvolution(Initialised):
    """y = Σ_k T_k(L̂)·x·W_k + b for k = 0 … order, with L̂ = -P.

    P = D^-½·A·D^-½ without self-loops, so that L̂ is the Laplacian I - P scaled with λ_max = 2; the
    paper and Kipf's code compute λ_max, which is 2 for a bipartite graph and little less otherwise.
    The weights come before the polynomials and Clenshaw's rule sums them up: every product with P
    is as wide as the output, and nothing is kept for the way back.

    Args:
        replicas: R.
        inputs: width of x.
        outputs: width of y.
        order: the highest order; PyG's K is one more.
    """

    def __init__(self, replicas: int, inputs: int, outputs: int, order: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, inputs, order + 1, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs))

    def reset_parameters(self, noise: Noise, place: str) -> None:
        """Glorot weights for each order, zero biases."""
        draw_glorot(self.weight.transpose(1, 2), noise, f"{place}.weight")
        self.bias.zero_()

    def forward(
        self,
        propagation: SparseMatrix,
        x: Statistic | Tensor,
        columns: Tensor | None = None,
    ) -> Tensor:
        """A statistic's rows, or (R, N, inputs), to (R, N, outputs).

        Args:
            propagation: P, symmetrically normalised, without self-loops.
            x: the input.
            columns: (R, inputs) factors of a statistic's columns, from ``column_factors``.
        """
        replicas, _, terms, _ = self.weight.shape
        wide = product(x, self.weight.flatten(2), columns)
        parts = [side_by_side(part) for part in wide.chunk(terms, dim=-1)]  # each (N, R·D)
        before, last = None, parts[-1]
        for part in reversed(parts[1:-1]):
            term = part.sub(propagation @ last, alpha=2)
            before, last = last, term if before is None else term - before
        if terms > 1:
            result = parts[0] - propagation @ last
            last = result if before is None else result - before
        return apart(last, replicas) + self.bias


class ChebyshevNetwork(nn.Module):
    """Chebyshev convolutions of a statistic, with ReLU and dropout between them.

    Args:
        replicas: R.
        widths: the width of the input, of each hidden layer, and of the output.
        order: the highest order of every layer.
    """

    def __init__(self, replicas: int, widths: Sequence[int], order: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ChebyshevConvolution(replicas, inputs, outputs, order)
            for inputs, outputs in itertools.pairwise(widths)
        )

    def forward(
        self,
        propagation: SparseMatrix,
        statistic: Statistic,
        input_rate: DropRate,
        rate: DropRate,
        noise: Noise | None,
        place: str,
    ) -> Tensor:
        """The statistic's rows to (R, N, widths[-1]).

        Args:
            propagation: P, symmetrically normalised, without self-loops.
            statistic: the input.
            input_rate: dropout of whole columns of the input.
            rate: dropout of the hidden layers.
            noise: the step's random numbers; None in evaluation.
            place: a name unique in the model.
        """
        columns = column_factors(statistic.width, input_rate, noise, f"{place}.columns")
        first, *rest = self.layers
        hidden: Tensor = first(propagation, statistic, columns)
        for number, layer in enumerate(rest, start=1):
            hidden = relu_dropout(hidden, rate, noise, f"{place}.{number}")
            hidden = layer(propagation, hidden)
        return hidden


class ChebNet(NodeModel):
    """H⁽ˡ⁾ = ReLU(Σ_k T_k(L̂)·H⁽ˡ⁻¹⁾·W_lk + b_l), the last one without ReLU; T_k Chebyshev's.

    Nodes are classified as by Kipf and Welling's GCN-Cheby; the paper pools them to classify whole
    graphs. With ``neighbors`` other than "undirected", rows are normalised by the degrees of the
    edges read and columns by those of the edges that lead there.

    Args:
        task: gives widths, classes and the settings of the R replicas.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        settings: list[ChebNetSettings] = task.settings
        first = settings[0]
        hidden = [first.hidden_dim] * (first.layers - 1)
        widths = [task.graph.num_features, *hidden, task.num_classes]
        self.network = ChebyshevNetwork(len(settings), widths, first.order)
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        logits = self.network(
            inputs["propagation"],
            inputs["attributes"],
            self.input_rate,
            self.drop_rate,
            noise,
            "network",
        )
        return Output(logits)


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    propagation = task.statistics.propagation(task.settings[0].neighbors, "symmetric")
    return main_stage(task, ChebNet(task), attributes_input(task) | {"propagation": propagation})


def _floats(graph: Graph, settings: ChebNetSettings) -> tuple[int, int]:
    terms = settings.order + 1
    per_node = settings.hidden_dim * (2 * terms + 2 * settings.layers + 6)
    return graph.num_features * settings.hidden_dim * terms, per_node


ENTRY = ModelEntry(
    "chebnet",
    "graph convolutions with Chebyshev polynomials of the Laplacian",
    "Michaël Defferrard, Xavier Bresson, Pierre Vandergheynst. Convolutional Neural Networks on "
    "Graphs with Fast Localized Spectral Filtering. NeurIPS 2016.",
    ChebNetSettings,
    {"main": _main},
    _floats,
)
