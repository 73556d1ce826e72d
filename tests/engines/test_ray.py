"""Tasks on a Ray cluster: values, messages, lost machines, and the end of everything."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.engines import Share, Task, TaskResult
from hpgmn.engines import ray as cluster
from hpgmn.engines.ray import Mailbox, RayEngine, connect_ray, require_ray, work

# Without Ray.


def test_without_ray_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        HPGMNError,
        match=r"The engine 'ray' needs Ray, which is not installed. Run: pip install 'hpgmn\[ray",
    ):
        require_ray()


@pytest.mark.parametrize("address", ["nowhere", ":6379", "host:port"])
def test_an_address_is_a_host_and_a_port(address):
    with pytest.raises(
        HPGMNError, match=f"address of a Ray cluster must be HOST:PORT or auto .got '{address}'"
    ):
        cluster._check_address(address)


def test_a_cluster_that_does_not_answer_is_told():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        for one in (address, f"ray://{address}"):
            with pytest.raises(
                HPGMNError, match=f"Cannot connect to a Ray cluster at {one} .*`ray start"
            ):
                cluster._check_address(one)


def test_some_addresses_need_no_look():
    for address in ("local", "auto"):
        cluster._check_address(address)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        cluster._check_address(f"127.0.0.1:{listening.getsockname()[1]}")


class FakeRay(SimpleNamespace):
    """Ray that tells of machines, and remembers how it was begun."""

    def nodes(self):
        return [{"Alive": True, "Resources": node} for node in self.machines] + [
            {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        ]


def engine(*machines, device="cpu", workers=None):
    return RayEngine(FakeRay(machines=machines), device, workers)  # type: ignore[arg-type]


def test_there_are_as_many_workers_as_cores_or_gpus():
    machines = [{"CPU": 4.0}, {"CPU": 12.0, "GPU": 2.0}, {"memory": 1.0}]
    assert engine(*machines).workers == 16
    assert engine(*machines, device="cuda").workers == 2
    assert engine(*machines, workers=3).workers == 3
    assert repr(engine(*machines)) == "Ray: 2 machines, 16 cores, 2 GPUs; 16 at a time"
    assert repr(engine({"CPU": 2.0})) == "Ray: 1 machine, 2 cores; 2 at a time"


@pytest.mark.parametrize(
    ("at_a_time", "threads", "memory"),
    # Two machines of 4 and 12 cores; the larger one holds as many tasks as it has cores for.
    [(16, 1, 1 / 12), (8, 2, 1 / 6), (4, 4, 1 / 3), (2, 6, 1 / 2), (1, 12, 1.0), (40, 1, 1 / 12)],
)
def test_cores_are_divided_and_fit_every_machine(at_a_time, threads, memory):
    share, resources = engine({"CPU": 4.0}, {"CPU": 12.0}).share(at_a_time)
    assert share == Share(threads, memory)
    assert resources == {"num_cpus": threads}


@pytest.mark.parametrize(
    ("at_a_time", "threads", "part"), [(2, 4, 1.0), (1, 8, 1.0), (3, 2, 0.5), (6, 1, 1 / 3)]
)
def test_tasks_on_one_gpu_have_the_same_part(at_a_time, threads, part):
    found = engine({"CPU": 8.0, "GPU": 2.0}, device="cuda").share(at_a_time)
    assert found == (Share(threads, part), {"num_cpus": threads, "num_gpus": part})


def test_as_many_tasks_as_asked_for_find_room():
    """Three machines of four cores, four tasks: three cores each would leave room for three."""
    share, resources = engine(*[{"CPU": 4.0}] * 3).share(4)
    assert (share.threads, resources) == (2, {"num_cpus": 2})


def test_machines_without_a_gpu_take_none_from_those_with_one():
    many = engine({"CPU": 8.0, "GPU": 8.0}, {"CPU": 56.0}, device="cuda")
    assert many.share(8) == (Share(1, 1.0), {"num_cpus": 1, "num_gpus": 1.0})
    few = engine({"CPU": 4.0, "GPU": 8.0}, device="cuda")
    assert few.share(8) == (Share(1, 1.0), {"num_cpus": 0.5, "num_gpus": 1.0})


@pytest.mark.parametrize(
    ("resources", "memory", "words"),
    [
        ({"num_cpus": 4}, None, None),
        ({"num_cpus": 5}, None, r"needs 5 CPU cores\. Add a machine"),
        ({"num_cpus": 1}, 2**31, r"1 CPU cores, 2\.0 GiB\. .*memory="),
        ({"num_cpus": 1, "num_gpus": 0.5}, 2**20, None),
        ({"num_cpus": 2, "num_gpus": 1.0}, None, r"needs 2 CPU cores, 1 GPU\. Add"),
    ],
)
def test_a_task_for_which_no_machine_has_room_is_refused(resources, memory, words):
    """A machine that is gone, with room for all of them, does not count."""
    machines = [{"CPU": 4.0, "memory": 2.0**30}, {"CPU": 1.0, "GPU": 1.0, "memory": 2.0**30}]
    task = Task("one", print, 1, memory=memory)
    if words is None:
        engine(*machines)._check_room(task, resources)
        return
    with pytest.raises(HPGMNError, match=words):
        engine(*machines)._check_room(task, resources)


def test_a_cluster_that_cannot_work_is_refused():
    with pytest.raises(HPGMNError, match=r"has no GPU. .*device="):
        engine({"CPU": 8.0}, device="cuda")
    with pytest.raises(HPGMNError, match="no machine with a CPU core"):
        engine({"memory": 1.0})


class Starting(FakeRay):
    """Ray that is begun, and perhaps cannot be."""

    def init(self, **options):
        self.options = options
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray takes it
        if self.error:
            raise self.error

    def is_initialized(self):
        return bool(self.was_there)

    def shutdown(self):
        self.downs += 1


@pytest.fixture
def starting(monkeypatch):
    fake = Starting(error=None, was_there=False, downs=0, options=None)
    monkeypatch.setattr(cluster, "require_ray", lambda: fake)
    monkeypatch.setattr(cluster, "_check_address", lambda address: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return fake


def test_ray_is_started_here_where_no_address_is_known(starting):
    before = signal.getsignal(signal.SIGTERM)
    with connect_ray(num_cpus=3):
        assert starting.options["address"] == "local"
        assert starting.options["num_cpus"] == 3
        assert starting.options["include_dashboard"] is False
        assert signal.getsignal(signal.SIGTERM) is before
        assert starting.downs == 0
    assert starting.downs == 1


def test_an_address_goes_before_that_of_the_environment(starting, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "there:1")
    for given, used in ((None, "there:1"), ("here:2", "here:2")):
        with connect_ray(given, num_cpus=3):
            assert starting.options["address"] == used
            assert "num_cpus" not in starting.options


def test_a_connection_that_is_there_is_left_as_it_is(starting):
    starting.was_there = True
    with connect_ray() as ray:
        assert ray is starting  # type: ignore[comparison-overlap]
    assert (starting.options, starting.downs) == (None, 0)


def test_a_cluster_that_refuses_is_told(starting):
    before = signal.getsignal(signal.SIGTERM)
    starting.error = RuntimeError("Version mismatch: ray 1\nmore")
    with (
        pytest.raises(
            HPGMNError,
            match=r"connect to a Ray cluster at here:2 \(Version mismatch: ray 1\)\. Start",
        ),
        connect_ray("here:2"),
    ):
        pass
    assert signal.getsignal(signal.SIGTERM) is before


def test_messages_are_taken_together_and_answered_to_who_asked():
    async def talk():
        desk = Mailbox()
        first = asyncio.create_task(desk.take())
        await asyncio.sleep(0)
        assert not first.done()
        await desk.send(1, "a")
        asked = [asyncio.create_task(desk.request(2, word)) for word in ("b", "c")]
        heard = await first
        while len(heard) < 3:
            heard += await desk.take()
        for attempt, number, word in heard:
            if number is not None:
                assert attempt == 2
                await desk.answer(number, word.upper())
        return [one[2] for one in heard], [await one for one in asked]

    assert asyncio.run(talk()) == (["a", "b", "c"], ["B", "C"])


@pytest.fixture
def threads(monkeypatch):
    numbers: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    return numbers


def do(function, version=cluster.__version__):
    """The machine's side, called here."""
    return work(function, 20, 3, None, (1, Share(5, 0.5), version))


def fails(argument, shared, line):
    raise [HPGMNError("Too large."), ZeroDivisionError("one\ntwo")][argument != 20]


def test_a_machine_answers_with_a_value_or_a_reason(threads):
    found = do(lambda argument, shared, line: (argument + shared, line.share, line.should_stop()))
    assert found == ((23, Share(5, 0.5), False), "", "")
    assert threads == [5]
    assert do(fails) == (None, "Too large.", "")
    value, reason, trace = work(fails, 1, None, None, (1, Share(), cluster.__version__))
    assert (value, reason) == (None, "ZeroDivisionError: one")
    assert trace.startswith("Traceback")


@pytest.mark.usefixtures("threads")
def test_a_machine_with_another_version_does_not_work():
    value, reason, trace = do(fails, "0.0.1")
    assert (value, trace) == (None, "")
    assert f"has hpgmn {cluster.__version__}, this one 0.0.1. Install the same" in reason


# With Ray.


@pytest.fixture(scope="module")
def three(ray_cluster):
    """A cluster of three nodes with one core each; functions of this file are sent with tasks."""
    import ray
    from ray import cloudpickle

    for _ in range(2):
        ray_cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield RayEngine(ray)
    cloudpickle.unregister_pickle_by_value(module)


def adds(argument, shared, line):
    line.send(("begun", argument))
    return (
        argument + int(line.request(("half of", argument))),
        int(shared.sum()),
        shared is not None,
    )


@pytest.mark.ray
def test_tasks_give_values_and_ask_and_share(three):
    assert repr(three) == "Ray: 3 machines, 3 cores; 3 at a time"
    shared, told = np.arange(100_000), []
    ended: list[TaskResult] = []
    waiting = iter([Task(f"task {number}", adds, number, shared) for number in range(0, 10, 2)])

    def answer(name, message):
        told.append((name, message))
        return message[1] // 2

    three.run(lambda: next(waiting, None), ended.append, on_message=answer)
    total = 100_000 * 99_999 // 2
    assert {one.name: one.value for one in ended} == {
        f"task {number}": (number + number // 2, total, True) for number in range(0, 10, 2)
    }
    for number in range(0, 10, 2):
        name = f"task {number}"
        own = sorted(message for who, message in told if who == name)
        assert own == [("begun", number), ("half of", number)]


def holds(argument, shared, line):
    line.send("begun")
    time.sleep(60)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("three")
def test_a_task_for_which_no_machine_is_left_is_told(ray_cluster, monkeypatch):
    import ray

    monkeypatch.setattr(cluster, "CAPACITY_SECONDS", 0.5)
    node = ray_cluster.add_node(num_cpus=1, memory=2**40, object_store_memory=80 * 2**20)
    waiting = iter([Task("one", holds, 1, memory=2**40)])
    with pytest.raises(HPGMNError, match="No machine of the cluster can run a task"):
        RayEngine(ray).run(
            lambda: next(waiting, None),
            lambda ended: None,
            on_message=lambda *_: ray_cluster.remove_node(node, allow_graceful=False),
            tries=3,
        )


def dies(argument, shared, line):
    """Ends its process until it was begun so often that a file says enough."""
    with Path(argument).open("a") as file:
        file.write("x")
    if len(Path(argument).read_text()) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return "lives"


@pytest.mark.ray
@pytest.mark.parametrize("tries", [2, 3])
def test_a_task_whose_process_is_gone_is_begun_again(three, tmp_path, tries):
    waiting = iter([Task("one", dies, str(tmp_path / "begun"))])
    ended: list[TaskResult] = []
    lost: list[str] = []
    three.run(lambda: next(waiting, None), ended.append, tries=tries, on_lost=lost.append)
    assert lost == ["one"] * (tries - 1)
    assert len((tmp_path / "begun").read_text()) == tries
    (one,) = ended
    assert one.is_lost is (tries == 2)
    assert one.value == (None if tries == 2 else "lives")
    assert ("died (WorkerCrashedError: lost). Retry" in one.reason) is (tries == 2)


def long(argument, shared, line):
    """Takes a minute in a folder of its own; the stubborn one does not hear that it is to end."""
    with tempfile.TemporaryDirectory() as folder:
        line.send((os.getpid(), folder))
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                time.sleep(0.05)
            except KeyboardInterrupt:
                if argument != "stubborn":
                    raise


@pytest.mark.ray
def test_what_is_asked_to_stop_leaves_nothing(three, monkeypatch):
    monkeypatch.setattr(cluster, "GRACE_SECONDS", 1.0)
    waiting = iter([Task(name, long, name) for name in ("obedient", "stubborn", "third", "4th")])
    begun: dict[str, tuple[int, str]] = {}
    with pytest.raises(KeyboardInterrupt):
        three.run(
            lambda: next(waiting, None),
            lambda ended: None,
            on_message=lambda name, message: begun.update({name: message}),
            should_stop=lambda: len(begun) == 3,
        )
    assert [task.name for task in waiting] == ["4th"]
    until = time.monotonic() + 10
    while Path(f"/proc/{begun['stubborn'][0]}").exists():
        assert time.monotonic() < until, "it was to be killed"
        time.sleep(0.05)
    for name in ("obedient", "third"):
        assert not Path(begun[name][1]).exists(), "it was to tidy up"


def cannot_be_sent(argument, shared, line):
    return (one for one in [argument])


@pytest.mark.ray
def test_what_cannot_come_back_is_a_failure(three):
    waiting = iter([Task("one", cannot_be_sent, 1)])
    ended: list[TaskResult] = []
    three.run(lambda: next(waiting, None), ended.append, tries=3)
    assert "cannot run tasks of hpgmn" in ended[0].reason
    assert not ended[0].is_lost


@pytest.mark.ray
def test_what_tasks_share_goes_when_no_task_needs_it(three):
    first, second = np.zeros(3), np.ones(3)
    place = three._place(first, {})
    assert three._place(first, {}) == place
    used: Any = {0: cluster._Attempt(Task("a", adds, 1), 1, 1, place)}
    other = three._place(second, used)
    assert three._place(first, used) == place != other
    three._place(np.ones(4), {})
    assert id(first) not in three._placed
    assert three._place(None, {}) is None
    three._placed.clear()
