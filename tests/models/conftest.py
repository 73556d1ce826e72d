"""What the tests of the baselines share: a graph in general position, and a model ready to run."""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, TrainingStage, TrainingTask, make_task

REPLICAS = 2


@dataclass
class Built:
    """The main stage of a model of two replicas, its parameters drawn at random.

    Attributes:
        task: the task behind it.
        stage: the stage.
    """

    task: TrainingTask
    stage: TrainingStage

    @property
    def logits(self):
        """(2, N, C), dropout off."""
        with torch.no_grad():
            found: Tensor = self.stage.model(self.stage.inputs).logits
        return found

    def parameter(self, name, replica):
        """The values of one replica's parameter."""
        return dict(self.stage.model.named_parameters())[name][replica].detach()

    @property
    def x(self):
        """(N, F) the attributes, dense."""
        x = self.task.graph.x
        return torch.from_numpy(x.toarray() if sp.issparse(x) else np.asarray(x))

    def adjacency(self, neighbors="undirected"):
        """(N, N) dense: row v marks the nodes that v reads; no self-loops."""
        return torch.from_numpy(self.task.graph.adjacency(neighbors).toarray())

    @property
    def edge_index(self):
        """(2, E) the undirected graph as PyG takes it."""
        return self.adjacency().nonzero().T.contiguous()


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

    Earlier stages are given the first values of their parameters. All parameters, biases too, are
    drawn anew at random, so that none of them can be left out unnoticed.
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
            for parameter in stage.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        return Built(task, stage)

    return make
