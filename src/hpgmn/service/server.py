"""Run the service: one process that owns graph and journal, or several that serve a fixed graph."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import math
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.runs.run import open_run
from hpgmn.service.journal import Journal
from hpgmn.service.state import METRICS_VARIABLE, Limits, ServedRun, load_live

_BACKLOG = 2048
_GRACE_SECONDS = 5.0  # beyond the time limit of requests, before workers are killed
_POLL_SECONDS = 0.2

Notify = Callable[[str], None]


@dataclass(frozen=True)
class ServeOptions:
    """How a run is served.

    Args:
        model: ``package.module:Class`` of your own model, where the run has one.
        split: whose models predict; None for the first.
        port: 0 for a free one.
        read_only: serve the graph as it is, with what the journal holds.
        workers: processes; several only with ``read_only``.
        token: the bearer token that every route but /health requires; None for none.
    """

    folder: Path
    model: str | None = None
    split: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    read_only: bool = False
    workers: int = 1
    token: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)


def require_extra() -> None:
    """Raise HPGMNError if a package of the service is not installed."""
    for name in ("fastapi", "prometheus_client", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise HPGMNError(
                f"The service needs {name}, which is not installed.",
                "Run: pip install 'hpgmn[serve]'",
            )


def serve(options: ServeOptions, notify: Notify) -> None:
    """Serve a run until SIGTERM or SIGINT; running requests are finished first.

    Returns after SIGTERM; SIGINT ends in KeyboardInterrupt.

    Args:
        notify: called with a line when the service is ready.
    """
    require_extra()
    _check_options(options)
    with _listen(options.host, options.port) as listener:
        if options.workers > 1:
            _serve_workers(options, listener, notify)
        else:
            _serve_process(options, listener, notify)


def _check_options(options: ServeOptions) -> None:
    limits = options.limits
    for name, value, least, most in (
        ("port", options.port, 0, 65_535),
        ("workers", options.workers, 1, 1000),
        ("max_body", limits.max_body, 1, 2**40),
        ("max_items", limits.max_items, 1, 2**40),
        ("timeout", limits.timeout, 0.001, 10**6),
    ):
        if not least <= value <= most:
            raise SettingError(
                f"{name} must be {least:g} to {most:g} (got {value:g}).",
                Remedy("Change it", option=name, value=least),
            )
    if options.workers > 1 and not options.read_only:
        raise SettingError(
            "A graph that grows is served by one process.",
            Remedy("Serve the graph as it is", option="read_only", value=True)
            | Remedy("Use one process", option="workers", value=1),
        )


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that a second service on the port is refused at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        is_used = error.errno == errno.EADDRINUSE
        reason = "another process uses it" if is_used else error.strerror or str(error)
        raise HPGMNError(
            f"Cannot listen on port {port} of {host}: {reason}.",
            Remedy("Choose another port", option="port", value=0 if port == 8001 else 8001)
            | Remedy("Choose another address", option="host", value="127.0.0.1"),
        ) from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _serve_process(
    options: ServeOptions,
    listener: socket.socket,
    notify: Notify,
    predictions: Path | None = None,
    num_entries: int | None = None,
) -> None:
    """Serve from this process; see :class:`ServedRun` for ``predictions``."""
    import uvicorn

    from hpgmn.service.app import make_app

    run = open_run(options.folder, options.model)
    journal = Journal(run, is_writable=not options.read_only, num_entries=num_entries)
    with contextlib.closing(
        ServedRun(run, journal, options.split, predictions=predictions, workers=options.workers)
    ) as served:
        server = uvicorn.Server(
            uvicorn.Config(
                make_app(served, options.limits, options.token),
                lifespan="on",
                ws="none",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(options.limits.timeout),
            )
        )

        address = _address(listener)

        def announce() -> None:
            sizes = ", ".join(f"{count:,} {name}" for name, count in served.sizes.items())
            notify(f"Serving {options.folder} ({sizes}) at {address}")

        def stop() -> None:
            server.should_exit = True

        served.on_ready, served.on_failure = announce, stop
        with _ignoring_sigterm():  # uvicorn stops on it, then raises it again
            server.run(sockets=[listener])
        if served.live is None and served.failure is not None:
            raise served.failure


@contextlib.contextmanager
def _ignoring_sigterm() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets instead of ending the process."""
    event = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda number, frame: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGTERM, before)


def _serve_workers(options: ServeOptions, listener: socket.socket, notify: Notify) -> None:
    """Serve from several processes, which map the predictions that this one computes."""
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="hpgmn-serve-") as folder,
        _ignoring_sigterm() as is_stopped,
    ):
        predictions = Path(folder) / "predictions.npy"
        num_entries = _write_predictions(options, predictions)
        os.environ[METRICS_VARIABLE] = folder  # the workers inherit it
        ready: Any = context.Queue()
        arguments = (options, listener, predictions, num_entries, ready)
        workers = [
            context.Process(target=_serve_worker, args=arguments, daemon=True)
            for _ in range(options.workers)
        ]
        try:
            for worker in workers:
                worker.start()
            num_ready, sentinels = 0, [worker.sentinel for worker in workers]
            while not is_stopped.is_set() and not wait(sentinels, _POLL_SECONDS):
                while num_ready < len(workers) and not ready.empty():
                    line, num_ready = ready.get(), num_ready + 1
                    if num_ready == len(workers):
                        notify(f"{line}, {num_ready} workers")
        finally:
            _stop_workers(workers, options.limits.timeout + _GRACE_SECONDS)
    if not is_stopped.is_set():
        codes = ", ".join(str(worker.exitcode) for worker in workers)
        raise HPGMNError(f"A worker process ended (exit codes {codes}).", "Start the service again")


def _write_predictions(options: ServeOptions, path: Path) -> int:
    """Write the predictions of all nodes; return how many entries of the journal they include."""
    run = open_run(options.folder, options.model)
    with contextlib.closing(Journal(run, is_writable=False)) as journal:
        np.save(path, load_live(run, journal, options.split).refresh())
        return journal.num_entries


def _serve_worker(
    options: ServeOptions, listener: socket.socket, predictions: Path, entries: int, ready: Any
) -> None:
    """Serve from a worker process, until it is stopped or its parent ends."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        _serve_process(options, listener, ready.put, predictions, entries)
    except HPGMNError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:  # reported by the parent
        pass


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _stop_workers(workers: Sequence[BaseProcess], seconds: float) -> None:
    """Stop workers after their running requests; kill those that take longer."""
    for worker in workers:
        if worker.pid is not None:
            worker.terminate()
    end = time.monotonic() + seconds
    for worker in workers:
        if worker.pid is not None:
            worker.join(max(0.0, end - time.monotonic()))
            worker.kill()
            worker.join()
