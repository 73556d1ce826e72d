"""Fixtures that kill commands, run them concurrently, limit the disk, and fuzz inputs."""

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase

SERVER = Path(__file__).with_name("server.py")
ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join([str(ROOT / "src"), str(ROOT / "lab" / "src")])
"""Both packages of this checkout."""
KILLED = (-signal.SIGKILL, -signal.SIGXFSZ)
"""Exit codes of a process killed by a test or because a file grew beyond the limit."""
SMALLEST_LIMIT = 2048
"""Bytes a file may always have, so that the redirected output of a command fits."""
BEFORE = """
import hpgmn.explain.explorer as dossier
dossier.SECONDS = 0.05
"""
"""Shorten the node explorer of the report page."""


@dataclass(frozen=True)
class Moment:
    """When a command is killed: after some seconds, or when it touches a file for the n-th time.

    Attributes:
        seconds: the time of the kill.
        touch: the number of the file operation at which it is killed, counted from 1.
        about: a description of that operation for messages.
        signal: the signal to send; 0 makes the disk full instead.
        room: the largest size of a file in bytes from that operation on. A longer write is cut
            short, and then the command is killed or, with signal 0, gets an error.
        is_group: whether to kill its worker processes too.
    """

    seconds: float | None = None
    touch: int | None = None
    about: str = ""
    signal: int = signal.SIGKILL
    room: int | None = None
    is_group: bool = False

    def __str__(self):
        if self.touch is None:
            return f"after {self.seconds:.3f} s"
        room = "" if self.room is None else f"when a file has {self.room} bytes, "
        return f"{room}at touch {self.touch} of a file ({self.about})"

    def as_job(self):
        return {
            "seconds": self.seconds,
            "touch": 1 << 60 if self.touch is None else self.touch,
            "signal": int(self.signal),
            "room": self.room,
            "is_group": self.is_group,
        }


@dataclass(frozen=True)
class Answer:
    """The result of a command.

    Attributes:
        code: the exit code, negative if it was killed.
        out: standard output.
        err: standard error.
        seconds: the duration.
        seen: file operations in order, as (operation, path).
        sizes: number of an operation that finishes a file (a rename or a commit) → bytes.
    """

    code: int
    out: str
    err: str
    seconds: float
    seen: list[tuple[str, str]] = field(repr=False)
    sizes: dict[int, int] = field(repr=False)

    @property
    def is_killed(self):
        return self.code in KILLED

    def moments(self, seed):
        """Draw moments from an undisturbed execution, endlessly.

        They alternate: a write cut short, a file operation, a time. Files are drawn uniformly, so
        that the page, written once, is as likely as the state, written all the time.
        """
        draw = random.Random(seed)
        touches: dict[str, list[int]] = {}
        for number, (_, name) in enumerate(self.seen, start=1):
            touches.setdefault(_file(name), []).append(number)
        writes = self.writes()
        while True:
            if writes:
                touch, size = draw.choice(writes[draw.choice(sorted(writes))])
                room = draw.randrange(SMALLEST_LIMIT, size)
                yield Moment(touch=touch, about=" ".join(self.seen[touch - 1]), room=room)
            touch = draw.choice(touches[draw.choice(sorted(touches))])
            yield Moment(touch=touch, about=" ".join(self.seen[touch - 1]))
            yield Moment(seconds=draw.uniform(0, self.seconds))

    def writes(self):
        """Return, by file, the operation that began each write and the size written."""
        begun, writes = {}, {}
        for number, (event, name) in enumerate(self.seen, start=1):
            file = _file(name)
            if event == "os.mkdir" and name.endswith(".unfinished"):
                begun[file] = number
            if self.sizes.get(number, 0) > SMALLEST_LIMIT:
                began = number if event == "commit" else begun.get(file, number)
                writes.setdefault(file, []).append((began, self.sizes[number]))
        return writes


def _file(name):
    """Return the name of a file or of its draft: "a.json" of "/.a.json.0f.unfinished/a.json"."""
    for part in name.split("/"):
        if part.endswith(".unfinished"):
            return part[1:].rsplit(".", 2)[0]
    return name.rsplit("/", 1)[-1]


@dataclass
class Commands:
    """Runs commands in forks of one process that has imported everything."""

    process: subprocess.Popen
    folder: Path
    count: int = 0
    at = Moment

    def __call__(self, *words, folder, moment=None, **options):
        """Run one command in a folder, killed at a moment; see :meth:`job`."""
        job = self.job(*words, folder=folder, **options)
        if moment is not None:
            job |= moment.as_job()
        return self.together([job])[0]

    def job(self, *words, folder, before=BEFORE, environment=None, is_bound=False):
        """Describe a command to the server.

        Args:
            words: its arguments; without any, only ``before`` runs.
            folder: the working directory.
            before: Python code to run first in the same process.
            environment: additional environment variables.
            is_bound: drop root's privilege to ignore file permissions.
        """
        self.count += 1
        return {
            "words": [str(word) for word in words],
            "folder": str(folder),
            "answer": str(self.folder / str(self.count)),
            "before": before,
            "environment": dict(environment or {}),
            "is_bound": is_bound,
            **Moment().as_job(),
        }

    def together(self, jobs):
        """Run several commands at the same time."""
        self.process.stdin.write(json.dumps(list(jobs)) + "\n")
        self.process.stdin.flush()
        return [
            self._answer(job, found)
            for job, found in zip(jobs, json.loads(self.process.stdout.readline()), strict=True)
        ]

    def _answer(self, job, found):
        texts = [Path(f"{job['answer']}.{name}") for name in ("out", "err", "seen")]
        out, err, seen = (path.read_text() if path.exists() else "" for path in texts)
        for path in texts:
            path.unlink(missing_ok=True)
        touched = json.loads(seen or "[]")
        sizes = {number: size for number, (_, _, size) in enumerate(touched, start=1) if size}
        names = [(event, name) for event, name, _ in touched]
        return Answer(found["code"], out, err, found["seconds"], names, sizes)


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """Runs ``hpgmn …`` in separate processes without the start-up time."""
    program = [sys.executable, str(SERVER)]
    environment = os.environ | {"PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, env=environment, text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        yield Commands(process, tmp_path_factory.mktemp("answers"))
        process.stdin.close()


class Survived(NamedTuple):
    """How often a repeatedly killed command finished, and how many finished pieces it kept."""

    ends: int
    kept: int


@pytest.fixture
def survive(commands):
    """Kills a command repeatedly, lets it finish, and checks its results."""

    def kill_repeatedly(
        count,
        undisturbed,
        *words,
        folder,
        check,
        out,
        seed,
        done="",
        kept=dict,
        first=(),
        **options,
    ):
        """Kill a command ``count`` times.

        Args:
            undisturbed: the answer of the same command without kills.
            words: the command that resumes the work.
            check: called with the answer of each finished command; asserts on its results.
            out: the output path, removed after each finished command.
            seed: seeds the moments.
            done: part of the message that refuses to repeat finished work.
            kept: returns the finished pieces of work with everything that tells a kept piece from
                a repeated one, such as times. No piece may change.
            first: moments before the drawn ones.
        """
        kills, ends, pieces, said = 0, 0, 0, []
        before = {}
        for moment in chain(first, undisturbed.moments(seed)):
            answer = commands(*words, folder=folder, moment=moment, **options)
            said.append(str(moment))
            now = kept()
            require_kept(before, now, said)
            pieces, before = pieces + len(before), now
            if answer.is_killed:
                kills += 1
            else:
                _require_end(answer, done, said)
                check(answer)
                ends += 1
                assert ends <= 3 * count + 3, "it finishes before it can be killed"
                _remove(out)
                said.clear()
                before = {}
            if kills == count:
                break
        answer = commands(*words, folder=folder, **options)
        _require_end(answer, done, said)
        require_kept(before, kept(), said)
        try:
            check(answer)
        except AssertionError as error:
            raise AssertionError(f"killed {', '.join(said)}: {error}") from error
        return Survived(ends + 1, pieces + len(before))

    return kill_repeatedly


def require_kept(before, now, said):
    """Assert that finished work is neither lost nor repeated."""
    for piece, content in before.items():
        assert piece in now, f"killed {', '.join(said)}: {piece} is gone"
        assert now[piece] == content, f"killed {', '.join(said)}: {piece} was repeated"


def _require_end(answer, done, said):
    is_done = done != "" and answer.code == 2 and done in answer.err
    assert answer.code == 0 or is_done, f"killed {', '.join(said)}: {answer.err}"


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.fixture
def contents():
    """Reads every file below a folder."""
    return lambda folder: {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# Fuzzing


LONGEST_CASE = 20.0
"""Seconds after which a case counts as a hang."""

LONGEST_MESSAGE = 1500
"""Characters, even where a name in the input has a million."""


class Hang(BaseException):
    """Raised by a timer, out of reach of ``except Exception``."""


@contextmanager
def within(seconds):
    """Raise :class:`Hang` if the block takes longer."""

    def stop(number, frame):
        raise Hang(f"still at work after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_message(text):
    """Assert that an error is rendered as one printable sentence of bounded length."""
    assert text.isprintable(), repr(text)
    assert len(text) <= LONGEST_MESSAGE, f"{len(text)} characters: {text[:200]!r}"
    assert text.endswith((".", "?")), f"no sentence: {text!r}"
    assert "Traceback" not in text


def check_error(error):
    """Assert that an error is readable and tells what to do or what was expected."""
    check_message(str(error))
    assert error.remedy is not None or "(got " in error.message, error.message


@pytest.fixture(scope="session")
def good_message():
    """Checks the text of an error, see :func:`check_message`."""
    return check_message


class Fuzz:
    """Runs cases: each gives a result that passes the check, or an error with a remedy.

    Args:
        soak: short or long form; the long one draws new cases.
        seed: repeats a long run (``--hypothesis-seed``); None draws one.
    """

    def __init__(self, soak, seed=None):
        self._soak = soak
        self.seed = secrets.randbits(32) if seed is None else seed

    def __call__(self, name, cases, check, *, short, long, accepted=0.1, refused=True):
        """Try many cases.

        Args:
            name: the name of the record.
            cases: the strategy that draws cases.
            check: uses a case and asserts on the result. It may raise HPGMNError.
            short: the number of cases in the short form.
            long: the number of cases in the long form.
            accepted: the least share of accepted cases: of a refused one only the error is checked.
            refused: whether some cases must be refused.
        """
        from hpgmn.base.errors import HPGMNError

        counts = Counter()
        number = self._soak.amount(short, long)

        def try_case(case):
            counts["cases"] += 1
            with within(LONGEST_CASE), warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    check(case)
                    counts["accepted"] += 1
                except HPGMNError as error:
                    counts["refused"] += 1
                    check_error(error)
                    if accepted == 1:
                        raise

        run = hypothesis.settings(
            max_examples=number,
            derandomize=not self._soak.is_long,
            database=None,
            deadline=None,
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )(hypothesis.given(cases)(try_case))
        if self._soak.is_long:
            print(f"To repeat the cases of {name}: --hypothesis-seed={self.seed}")
            run = hypothesis.seed(self.seed)(run)
        run()
        share = counts["accepted"] / counts["cases"]
        assert share >= accepted, f"{share:.0%} of the cases of {name} are accepted"
        assert counts["refused"] or not refused
        promise = f"Any input of {name} gives a correct result or an error with a remedy."
        self._soak.record(
            f"fuzz-{name.replace(' ', '-')}",
            promise,
            cases_fuzzed=counts["cases"],
            cases_refused=counts["refused"],
            seed=self.seed,
        )
        return counts


@pytest.fixture
def fuzz(soak, request):
    """Tries many cases against one promise, see :class:`Fuzz`."""
    seed = request.config.getoption("--hypothesis-seed")
    return Fuzz(soak, None if seed is None else int(seed))
