"""Denormals are flushed in the training's own thread; precision and determinism are scoped.

What a GPU makes of them is tested in tests/cuda.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
from hpgmn.statistics.labelwise import class_means_on_device
from hpgmn.training.numerics import (
    deterministic_algorithms,
    matmul_precision,
    run_training_thread,
)
from hpgmn.training.trainer import train

can_flush = pytest.mark.skipif(
    not torch.set_flush_denormal(False), reason="this processor cannot flush denormals"
)


def product() -> float:
    """1e-40, or 0 where denormals are flushed."""
    return float(torch.tensor(1e-40) * 1)


@can_flush
def test_denormals_are_zero_inside_and_stay_outside() -> None:
    assert product() > 0
    assert run_training_thread(lambda _: product()) == 0
    assert product() > 0


@can_flush
def test_gradients_are_flushed() -> None:
    def work(_: threading.Event) -> float:
        weight = torch.tensor(1e-20, requires_grad=True)
        (weight * 1e-20 * 1e-20).backward()
        assert weight.grad is not None
        return float(weight.grad)

    assert work(threading.Event()) > 0
    assert run_training_thread(work) == 0


@can_flush
@pytest.mark.slow
def test_the_workers_of_torch_flush_too() -> None:
    """In a process of its own, as the number of workers is that of a whole process."""
    script = """
import torch
from hpgmn.training.numerics import run_training_thread

def kept():  # how many of so many products that every worker gets some
    return int((torch.full((4_000_000,), 1e-40) * 1).count_nonzero())

assert torch.get_num_threads() == 2
assert kept() == 4_000_000
assert run_training_thread(lambda _: (torch.get_num_threads(), kept())) == (2, 0)
assert kept() == 4_000_000
"""
    environment = os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_work_has_its_own_thread_which_ends() -> None:
    thread = run_training_thread(lambda _: threading.current_thread())
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_without_an_interrupt_the_event_is_not_set() -> None:
    event = run_training_thread(lambda interrupted: interrupted)
    assert not event.is_set()


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_exceptions_pass_through(kind: type[BaseException]) -> None:
    error = kind("mine")

    def work(_: threading.Event) -> None:
        raise error

    with pytest.raises(kind) as caught:
        run_training_thread(work)
    assert caught.value is error


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, even where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_sets_the_event_and_waits_for_the_work_to_end() -> None:
    waiting = threading.main_thread().ident
    assert waiting == threading.get_ident()
    seen: list[object] = []

    def work(interrupted: threading.Event) -> str:
        seen.append(interrupted.wait(0.3))  # the caller is waiting by now
        signal.pthread_kill(waiting, signal.SIGINT)
        seen.append(interrupted.wait(30))
        time.sleep(0.1)
        seen.append("ended")
        return "not handed on"

    with pytest.raises(KeyboardInterrupt):
        run_training_thread(work)
    assert seen == [False, True, "ended"]


@pytest.mark.parametrize(
    ("precision", "device", "inside"),
    [
        ("tf32", "cuda", "high"),
        ("tf32", "cpu", "highest"),
        ("float32", "cuda", "highest"),
        ("bfloat16", "cuda", "highest"),
    ],
)
def test_tf32_is_for_a_gpu_and_for_a_while(precision: str, device: str, inside: str) -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    found = []

    def work() -> None:
        with matmul_precision(precision, torch.device(device)):
            found.append(torch.get_float32_matmul_precision())
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert found == [inside]
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("is_requested", "device"), [(True, "cpu"), (False, "cpu"), (False, "cuda")]
)
def test_nothing_is_done_where_nothing_has_to_be(
    is_requested: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with deterministic_algorithms(is_requested, device):
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.parametrize(
    ("before", "inside"), [(None, ":4096:8"), (":0:0", ":4096:8"), (":16:8", ":16:8")]
)
def test_a_gpu_is_deterministic_inside_the_block_only(
    before: str | None, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before or "")
    with deterministic_algorithms(True, torch.device("cuda")):
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
        real = sparse.csr_matmul

        def multiplied(csr: Tensor, dense: Tensor) -> Tensor:
            self._is_inside = True
            self.ordered += 1
            try:
                return real(csr, dense)
            finally:
                self._is_inside = False

        monkeypatch.setattr(sparse, "csr_matmul", multiplied)

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
    [
        (_means, True),
        *(
            pytest.param(
                _trained(name),
                name != "mlp",
                marks=() if name in ("hpgmn", "mlp", "gcn") else pytest.mark.slow,
            )
            for name in MODELS
        ),
    ],
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
