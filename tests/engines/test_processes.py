"""Tasks on this machine: in this process, and in processes that are lost, stopped or left alone."""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hpgmn
from hpgmn.base.errors import HPGMNError
from hpgmn.engines import RateLimiter, Share, Task, TaskResult
from hpgmn.engines import processes as local
from hpgmn.engines.processes import LocalEngine, PipeChannel, run_safely, work

SOURCE = Path(hpgmn.__file__).parents[1]


def adds(argument, shared, line):
    line.send(("begun", argument))
    return argument + int(line.request(("half of", argument))), int(shared.sum()), line.share


def fails(argument, shared, line):
    raise HPGMNError("Too large.") if argument else ZeroDivisionError("one\ntwo")


# One process.


def test_tasks_here_give_values_and_ask(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    waiting = iter([Task(f"task {number}", adds, number, np.arange(4)) for number in (2, 4)])
    ended: list[TaskResult] = []
    heard = []

    def answer(name, message):
        heard.append((name, message))
        return message[1] // 2

    LocalEngine(8).run(lambda: next(waiting, None), ended.append, on_message=answer, max_tasks=1)
    assert [(one.name, one.value) for one in ended] == [
        ("task 2", (3, 6, Share(3, 1.0))),
        ("task 4", (6, 6, Share(3, 1.0))),
    ]
    assert heard == [
        (f"task {number}", (word, number)) for number in (2, 4) for word in ("begun", "half of")
    ]


def test_tasks_here_fail_with_a_reason():
    waiting = iter([Task("a", fails, 1), Task("b", fails, 0)])
    ended: list[TaskResult] = []
    LocalEngine().run(lambda: next(waiting, None), ended.append)
    assert ended[0] == TaskResult("a", reason="Too large.")
    assert ended[1].reason == "ZeroDivisionError: one"
    assert ended[1].trace.startswith("Traceback")


def test_what_is_asked_to_stop_begins_no_task():
    ended: list[TaskResult] = []
    with pytest.raises(KeyboardInterrupt):
        LocalEngine().run(lambda: None, ended.append, should_stop=lambda: True)

    def stops(argument, shared, line):
        assert line.should_stop()
        raise KeyboardInterrupt

    asked = iter([False, True])
    tasks = iter([Task("a", stops, 1), Task("b", stops, 1)])
    with pytest.raises(KeyboardInterrupt):
        LocalEngine().run(lambda: next(tasks, None), ended.append, should_stop=lambda: next(asked))
    assert ended == []
    assert next(tasks).name == "b"


# The worker's side, called here.


@pytest.fixture
def as_before(monkeypatch):
    """A worker changes its process: here that of the tests."""
    handler, threads = signal.getsignal(signal.SIGINT), torch.get_num_threads()
    handlers = list(logging.getLogger("hpgmn").handlers)
    monkeypatch.setattr(local, "_end_with_parent", lambda: None)
    yield
    signal.signal(signal.SIGINT, handler)
    torch.set_num_threads(threads)
    logging.getLogger("hpgmn").handlers[:] = handlers


def hear(*sent):
    """Send a worker each of these after its answer to the one before; returns the answers."""
    near, far = multiprocessing.Pipe()
    heard = []

    def talk():
        for one in sent:
            near.send(one)
            heard.append(near.recv())
        near.close()

    talking = threading.Thread(target=talk)
    talking.start()
    work(far, Share(1, 0.25))
    talking.join()
    return heard


def doubled(argument, shared, line):
    return argument * shared, line.share.memory, torch.get_num_threads()


def asks(argument, shared, line):
    return [line.request(argument), line.request(argument + 1)]


def cannot_be_sent(argument, shared, line):
    return (one for one in [argument])


@pytest.mark.usefixtures("as_before")
def test_a_worker_keeps_what_tasks_share():
    heard = hear((doubled, 3, True, 2), (doubled, 4, False, None), (doubled, 4, True, 3))
    assert heard == [("ended", ((number, 0.25, 1), "", "")) for number in (6, 8, 12)]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("as_before")
def test_a_worker_asks_and_lives_on_after_failures():
    heard = hear((asks, 1, False, None), 10, 20, (fails, 1, False, None), (fails, 0, False, None))
    assert heard[:3] == [("request", 1), ("request", 2), ("ended", ([10, 20], "", ""))]
    assert heard[3] == ("ended", (None, "Too large.", ""))
    assert heard[4][1][:2] == (None, "ZeroDivisionError: one")
    (value, reason, trace) = hear((cannot_be_sent, 1, False, None))[0][1]
    assert value is None
    assert "generator" in reason
    assert trace.startswith("Traceback")


def waits(argument, shared, line):
    while not line.should_stop():
        time.sleep(0.001)
    raise KeyboardInterrupt


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("function", [asks, waits])
def test_a_worker_that_is_left_alone_ends(function):
    near, far = multiprocessing.Pipe()
    near.send((function, 1, False, None))
    near.close()
    work(far, Share())


def test_a_line_that_is_broken_is_the_sign_to_stop():
    near, far = multiprocessing.Pipe()
    line = PipeChannel(far, Share())
    assert not line.should_stop()
    near.close()
    assert line.should_stop()
    with pytest.raises(KeyboardInterrupt):
        line.send("anybody")
    far.close()
    assert line.should_stop()


def test_a_worker_ends_with_the_first_process(monkeypatch):
    ours, theirs = multiprocessing.Pipe()
    codes: list[int] = []
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: SimpleNamespace(sentinel=ours))
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", codes.append)
    watcher = threading.Thread(target=local._end_with_parent)
    watcher.start()
    watcher.join(0.05)
    assert codes == []
    theirs.close()  # as when the first process is gone
    watcher.join(10)
    assert codes == [1]
    ours.close()


# Processes. What they run is in a file of its own, which they can import.


TASKS = """
import os, signal, sys, tempfile, time
from pathlib import Path
from hpgmn.engines import Task
from hpgmn.engines.processes import LocalEngine

def adds(argument, shared, line):
    line.send("begun")
    return os.getpid(), argument + line.request(argument) + shared[0], line.share

def dies(argument, shared, line):
    with Path(argument).open("a") as file:
        file.write("x")
    if len(Path(argument).read_text()) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return "lives"

def long(argument, shared, line):
    with tempfile.TemporaryDirectory() as folder:
        line.send((os.getpid(), folder))
        until = time.monotonic() + 60
        while time.monotonic() < until:
            time.sleep(0.01)
            if argument != "stubborn" and line.should_stop():
                raise KeyboardInterrupt
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    (tmp_path / "tasks_for_processes.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(SOURCE)]))
    import tasks_for_processes

    yield tasks_for_processes
    del sys.modules["tasks_for_processes"]


@pytest.mark.slow
def test_processes_share_the_work(tasks, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    shared = [100]
    waiting = iter([Task(str(number), tasks.adds, number, shared) for number in range(6)])
    ended: list[TaskResult] = []
    heard = []

    def answer(name, message):
        heard.append((name, message))
        return 10 * int(name)

    LocalEngine(2).run(lambda: next(waiting, None), ended.append, on_message=answer)
    found = {one.name: one.value for one in ended}
    assert {name: value[1] for name, value in found.items()} == {
        str(number): 11 * number + 100 for number in range(6)
    }
    assert len({value[0] for value in found.values()} - {os.getpid()}) == 2
    assert {value[2] for value in found.values()} == {Share(2, 0.5)}
    assert len(heard) == 12
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.parametrize("tries", [2, 3])
def test_a_task_whose_process_is_gone_is_begun_again(tasks, tmp_path, tries):
    every = [Task("one", tasks.dies, str(tmp_path / "begun")), Task("two", tasks.adds, 1, [0])]
    waiting = iter(every)
    ended: list[TaskResult] = []
    lost: list[str] = []
    LocalEngine(2).run(
        lambda: next(waiting, None),
        ended.append,
        on_message=lambda *_: 5,
        tries=tries,
        on_lost=lost.append,
    )
    assert lost == ["one"] * (tries - 1)
    assert len((tmp_path / "begun").read_text()) == tries
    by_name = {one.name: one for one in ended}
    one = by_name["one"]
    assert one.is_lost is (tries == 2)
    assert one.value == (None if tries == 2 else "lives")
    remedy = "Its process was ended by signal 9 (perhaps for lack of memory). Retry"
    assert one.reason.startswith(remedy) is (tries == 2)
    assert by_name["two"].value[1] == 6


@pytest.mark.slow
def test_what_is_asked_to_stop_leaves_nothing(tasks, monkeypatch):
    monkeypatch.setattr(local, "GRACE_SECONDS", 1.0)
    waiting = iter([Task(name, tasks.long, name) for name in ("obedient", "stubborn", "third")])
    begun: dict[str, tuple[int, str]] = {}
    with pytest.raises(KeyboardInterrupt):
        LocalEngine(2).run(
            lambda: next(waiting, None),
            lambda ended: None,
            on_message=lambda name, message: begun.update({name: message}),
            should_stop=lambda: len(begun) == 2,
        )
    assert [task.name for task in waiting] == ["third"]
    assert not multiprocessing.active_children()
    assert not Path(begun["obedient"][1]).exists(), "it was to tidy up"
    assert Path(begun["stubborn"][1]).exists(), "it was killed"


ALONE = """
if __name__ == "__main__":
    import sys
    from tasks_for_processes import *
    waiting = iter([Task(name, long, name) for name in ("obedient", "stubborn")])
    def answer(name, message):
        print(message[0], flush=True)
    LocalEngine(2).run(lambda: next(waiting, None), print, on_message=answer)
"""


@pytest.mark.slow
def test_processes_end_when_the_first_is_killed(tasks, tmp_path):
    (tmp_path / "alone.py").write_text(ALONE)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "alone.py"], stdout=subprocess.PIPE, text=True
    )
    numbers = [int(process.stdout.readline()) for _ in range(2)]
    process.kill()
    process.communicate()  # ends when no worker holds its output open any more
    assert process.returncode == -signal.SIGKILL
    until = time.monotonic() + 10
    while any(Path(f"/proc/{number}").exists() for number in numbers):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_that_ends_by_itself_is_told():
    process = SimpleNamespace(join=lambda: None, exitcode=3)
    worker = SimpleNamespace(process=process, line=multiprocessing.Pipe()[0])
    words = local._Worker.describe_exit(worker)  # type: ignore[arg-type]
    assert words == "Its process ended with exit code 3. Retry with fewer workers."
    local._Worker.send(worker, "nothing")  # type: ignore[arg-type]  # a closed line: no error


def test_a_task_gives_a_value_or_a_reason():
    def divides(argument, shared, line):
        if shared < 0:
            raise HPGMNError("Too small.")
        return argument / shared

    assert run_safely(divides, 6, 2, None) == (3.0, "", "")
    assert run_safely(divides, 6, -1, None) == (None, "Too small.", "")
    value, reason, trace = run_safely(divides, 6, 0, None)
    assert (value, reason) == (None, "ZeroDivisionError: division by zero")
    assert trace.startswith("Traceback")


def test_progress_is_told_seldom(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    is_time = RateLimiter(0.5)
    assert [is_time(), is_time()] == [True, False]
    now += 0.4
    assert not is_time()
    now += 0.2
    assert [is_time(), is_time()] == [True, False]
