"""Same bits where they are asked for; what a GPU makes of it is in tests/cuda."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpgmn.base import sparse
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import MODELS
from hpgmn.models.stage import Replica, make_task
from hpgmn.statistics.on_device import class_means_on_device
from hpgmn.training.repeatable import repeatable
from hpgmn.training.trainer import train


@pytest.mark.parametrize(("is_asked", "device"), [(True, "cpu"), (False, "cpu"), (False, "cuda")])
def test_nothing_is_done_where_nothing_has_to_be(
    is_asked: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with repeatable(is_asked, device):
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.parametrize(
    ("before", "inside"), [(None, ":4096:8"), (":0:0", ":4096:8"), (":16:8", ":16:8")]
)
def test_a_gpu_is_told_and_let_go(
    before: str | None, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before or "")
    with repeatable(True, torch.device("cuda")):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == inside
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


class Watched(TorchDispatchMode):
    """Counts sparse products, and notes those that do not go the way which keeps to one order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.ordered, self.others, self._is_inside = 0, [], False
        real = sparse.multiplied

        def multiplied(csr: Tensor, dense: Tensor) -> Tensor:
            self._is_inside = True
            self.ordered += 1
            try:
                return real(csr, dense)
            finally:
                self._is_inside = False

        monkeypatch.setattr(sparse, "multiplied", multiplied)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_sparse = any(isinstance(a, Tensor) and a.layout is not torch.strided for a in args)
        if is_sparse and func.overloadpacket.__name__ not in NO_SUMS and not self._is_inside:
            self.others.append(str(func))
        return func(*args, **(kwargs or {}))


NO_SUMS = ("values", "crow_indices", "col_indices", "detach", "alias", "sparse_sampled_addmm")
"""What is done with sparse matrices, and adds nothing up, or each entry on its own."""


def _means() -> None:
    host = sp.random_array((20, 20), density=0.4, format="csr", dtype=np.float32, rng=1)
    host.indices, host.indptr = host.indices.astype(np.int32), host.indptr.astype(np.int32)
    labels = torch.arange(20).view(1, 20) % 3
    class_means_on_device(SparseMatrix(host), torch.ones(20, 2), labels, 3)


def _trained(name: str) -> Callable[[], None]:
    def work() -> None:
        graph, cls = trading_network(120, seed=0).graph, MODELS[name].settings
        known = [info.name for info in fields(cls) if info.name.endswith("epochs")]
        replica = Replica(0, 0, cls(**dict.fromkeys(known, 1)))
        split = graph.split(0)
        train(make_task(graph, [replica], [(split.train, split.val)], "cpu"), MODELS[name])

    return work


@pytest.mark.parametrize(
    ("work", "has_some"),
    [(_means, True), *((_trained(name), name != "mlp") for name in MODELS)],
    ids=["class means", *MODELS],
)
def test_every_sparse_product_goes_the_way_that_keeps_to_one_order(
    work: Callable[[], None], has_some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPGMN_CACHE", "off")
    with Watched(monkeypatch) as watched:
        work()
    assert watched.others == []
    assert (watched.ordered > 0) == has_some
