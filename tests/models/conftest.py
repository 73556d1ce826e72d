"""What the tests of the models share: a graph in general position, and a model ready to run."""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.randomness import DropRate, Noise
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, TrainingStage, TrainingTask, make_task

REPLICAS = 2


@dataclass
class Built:
    """The main stage of a model of two replicas, its parameters drawn at random."""

    task: TrainingTask
    stage: TrainingStage

    @property
    def logits(self):
        """(2, N, C), dropout off."""
        with torch.no_grad():
            return self.stage.model(self.stage.inputs).logits

    @property
    def noise(self):
        """The random numbers of epoch 1."""
        return Noise(self.task.keys("main"), 1)

    @property
    def training_logits(self):
        """(2, N, C) with the dropout of :attr:`noise`."""
        return self.stage.model(self.stage.inputs, self.noise).logits

    def dropout(self, place, shape, rate):
        """(2, *shape): 0, or 1 / (1 - rate), in the pass of :attr:`training_logits`."""
        kept = self.noise.keep(place, shape, DropRate([rate] * REPLICAS))
        assert 0 < kept.sum() < kept.numel()
        return kept / (1 - rate)

    def parameter(self, name, replica):
        """The values of one replica's parameter."""
        return dict(self.stage.model.named_parameters())[name][replica].detach()

    def affine(self, name, x, replica):
        """x·W + b of the layer of that name."""
        return x @ self.parameter(f"{name}.weight", replica) + self.parameter(
            f"{name}.bias", replica
        )

    def mlp(self, name, x, replica, hidden_dropout=1.0):
        """The layers of a StatisticMLP of that name."""
        hidden = self.affine(f"{name}.first", x, replica)
        for number in range(len(self.stage.model.get_submodule(f"{name}.rest.layers"))):
            hidden = hidden.relu() * hidden_dropout
            hidden = self.affine(f"{name}.rest.layers.{number}", hidden, replica)
        return hidden

    def assert_logits(self, expected, found=None):
        """Compare the logits of each replica with ``expected(replica)``."""
        for replica, logits in enumerate(self.logits if found is None else found):
            torch.testing.assert_close(logits, expected(replica), rtol=1e-4, atol=1e-5)

    @property
    def x(self):
        """(N, F) the attributes, dense."""
        x = self.task.graph.x
        return torch.from_numpy(x.toarray() if sp.issparse(x) else np.asarray(x))

    def adjacency(self, neighbors="undirected"):
        """(N, N) dense: row v marks the nodes that v reads; no self-loops."""
        return torch.from_numpy(self.task.graph.adjacency(neighbors).toarray())

    def normalised(self, neighbors="undirected", self_loop=1.0):
        """(N, N) dense: A + self_loop·I divided by the roots of its row and column sums."""
        matrix = self.adjacency(neighbors)
        return normalise(matrix + self_loop * torch.eye(len(matrix)))

    @property
    def edge_index(self):
        """(2, E) the undirected graph as PyG takes it."""
        return self.adjacency().nonzero().T.contiguous()


def normalise(matrix):
    rows, columns = (
        torch.where(total > 0, total.clamp(min=1e-9).rsqrt(), 0.0)
        for total in (matrix.sum(dim=1), matrix.sum(dim=0))
    )
    return rows[:, None] * matrix * columns


@pytest.fixture
def wild_graph():
    """23 nodes of 4 classes with random directed edges: some isolated, some one-way, loops."""
    random = np.random.default_rng(5)
    edges = random.integers(0, 20, (2, 46))
    part = random.permutation(23)
    return Graph(
        random.normal(size=(23, 7)),
        edges,
        np.arange(23) % 4,
        train_mask=part < 10,
        val_mask=(part >= 10) & (part < 16),
        test_mask=part >= 16,
    )


@pytest.fixture
def build(wild_graph):
    """Makes the main stage of a model: ``build("gcn", layers=3)``.

    Earlier stages have the initial values of their parameters. All parameters of the main stage,
    biases too, are drawn at random, so that none of them can be left out unnoticed.
    """

    def make(name, graph=None, **settings):
        entry = MODELS[name]
        chosen = make_settings(entry.settings, {"hidden_dim": 6} | settings)
        graph = graph or wild_graph
        split = graph.split(0)
        replicas = [Replica(0, seed, chosen) for seed in range(REPLICAS)]
        task = make_task(graph, replicas, [(split.train, split.val)] * REPLICAS, "cpu")
        done: dict[str, dict[str, Tensor]] = {}
        for stage_name, builder in entry.stages.items():
            stage = builder(task, done)
            initialise(stage.model, task.keys(stage_name))
            done[stage_name] = {
                key: value.detach().clone() for key, value in stage.model.named_parameters()
            }
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for key, parameter in stage.model.named_parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
                if key.endswith(".variance"):
                    parameter.abs_()
        return Built(task, stage)

    return make
