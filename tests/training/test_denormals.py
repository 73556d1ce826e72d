"""Work without denormals: in its own thread alone, with its errors and interrupts handed on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from hpgmn.training.denormals import without_denormals

can_flush = pytest.mark.skipif(
    not torch.set_flush_denormal(False), reason="this processor cannot flush denormals"
)


def product() -> float:
    """1e-40, or 0 where denormals are flushed."""
    return float(torch.tensor(1e-40) * 1)


@can_flush
def test_denormals_are_zero_inside_and_stay_outside() -> None:
    assert product() > 0
    assert without_denormals(lambda _: product()) == 0
    assert product() > 0


@can_flush
def test_gradients_are_flushed() -> None:
    def work(_: threading.Event) -> float:
        weight = torch.tensor(1e-20, requires_grad=True)
        (weight * 1e-20 * 1e-20).backward()
        assert weight.grad is not None
        return float(weight.grad)

    assert work(threading.Event()) > 0
    assert without_denormals(work) == 0


@can_flush
def test_the_workers_of_torch_flush_too() -> None:
    """In a process of its own, as the number of workers is that of a whole process."""
    script = """
import torch
from hpgmn.training.denormals import without_denormals

def kept():  # how many of so many products that every worker gets some
    return int((torch.full((4_000_000,), 1e-40) * 1).count_nonzero())

assert torch.get_num_threads() == 2
assert kept() == 4_000_000
assert without_denormals(lambda _: (torch.get_num_threads(), kept())) == (2, 0)
assert kept() == 4_000_000
"""
    environment = os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_work_has_its_own_thread_which_ends() -> None:
    thread = without_denormals(lambda _: threading.current_thread())
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_without_an_interrupt_the_event_is_not_set() -> None:
    event = without_denormals(lambda interrupted: interrupted)
    assert not event.is_set()


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_exceptions_pass_through(kind: type[BaseException]) -> None:
    error = kind("mine")

    def work(_: threading.Event) -> None:
        raise error

    with pytest.raises(kind) as caught:
        without_denormals(work)
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
        without_denormals(work)
    assert seen == [False, True, "ended"]
