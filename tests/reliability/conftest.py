"""Commands that are killed, share a folder or find no room; cases by the thousand (fuzzing)."""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.strategies import SearchStrategy

SERVER = Path(__file__).with_name("server.py")
SOURCE = Path(__file__).parents[2] / "src"
KILLED = -9
BEFORE = """
import hpgmn.explain.dossier as dossier
dossier.SECONDS = 0.05
"""
"""Few nodes of a page have their neighbours taken away, as in the tests of the commands."""


@dataclass(frozen=True)
class Answer:
    """What became of a command.

    Attributes:
        code: its exit code, -9 if it was killed.
        out: what it printed.
        err: what it said.
        seconds: how long it lived.
        seen: the files that it touched: what it did, and to which.
    """

    code: int
    out: str
    err: str
    seconds: float
    seen: list[tuple[str, str]] = field(repr=False)


@dataclass(frozen=True)
class Moment:
    """When a command is killed: after some seconds, or when it touches a file for the n-th time."""

    seconds: float | None = None
    touch: int | None = None
    about: str = ""
    signal: int = signal.SIGKILL

    def __str__(self) -> str:
        if self.touch is None:
            return f"after {self.seconds:.3f} s"
        return f"at touch {self.touch} of a file ({self.about})"


@dataclass
class Commands:
    """Runs commands in forks of one process that has everything imported."""

    process: subprocess.Popen[str]
    place: Path
    count: int = 0

    def __call__(
        self,
        *words: object,
        folder: Path,
        moment: Moment | None = None,
        before: str = BEFORE,
        environment: Mapping[str, str] | None = None,
    ) -> Answer:
        """Run one command in a folder, killed at a moment."""
        job = self.job(*words, folder=folder, before=before, environment=environment)
        if moment is not None:
            job |= {
                "seconds": moment.seconds,
                "touch": moment.touch or 1 << 60,
                "signal": int(moment.signal),
            }
        return self.together([job])[0]

    def job(
        self,
        *words: object,
        folder: Path,
        before: str = BEFORE,
        environment: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        self.count += 1
        return {
            "words": [str(word) for word in words],
            "folder": str(folder),
            "answer": str(self.place / str(self.count)),
            "before": before,
            "environment": dict(environment or {}),
            "seconds": None,
            "touch": 1 << 60,
            "signal": int(signal.SIGKILL),
        }

    def together(self, jobs: Sequence[dict[str, Any]]) -> list[Answer]:
        """Run several commands at the same time."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(list(jobs)) + "\n")
        self.process.stdin.flush()
        return [
            self._answer(job, found)
            for job, found in zip(jobs, json.loads(self.process.stdout.readline()), strict=True)
        ]

    def _answer(self, job: dict[str, Any], found: dict[str, Any]) -> Answer:
        texts = [Path(f"{job['answer']}.{name}") for name in ("out", "err", "seen")]
        out, err, seen = (path.read_text() if path.exists() else "" for path in texts)
        for path in texts:
            path.unlink(missing_ok=True)
        touched = [(event, name) for event, name in json.loads(seen or "[]")]
        return Answer(found["code"], out, err, found["seconds"], touched)


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Runs ``hpgmn …`` in processes of their own, without the time that a start takes."""
    program = [sys.executable, str(SERVER)]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, env=environment, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Commands(process, tmp_path_factory.mktemp("answers"))
        assert process.stdin is not None
        process.stdin.close()


def moments(seed: int, undisturbed: Answer) -> Iterator[Moment]:
    """Moments out of the whole life of an undisturbed command, without end.

    Every other one is a time; the others are touches of files. Of these each file has as many as
    any other, whether it is touched once, like the page, or all the time, like the state.
    """
    draw = random.Random(seed)
    touches: dict[str, list[int]] = {}
    for number, (_, name) in enumerate(undisturbed.seen, start=1):
        touches.setdefault(_file(name), []).append(number)
    while True:
        yield Moment(seconds=draw.uniform(0, undisturbed.seconds))
        touch = draw.choice(touches[draw.choice(sorted(touches))])
        event, name = undisturbed.seen[touch - 1]
        yield Moment(touch=touch, about=f"{event} {name}")


def _file(name: str) -> str:
    """The file that is touched, or whose draft is: "a.json" of "/.a.json.0f.unfinished/a.json"."""
    for part in name.split("/"):
        if part.endswith(".unfinished"):
            return part[1:].rsplit(".", 2)[0]
    return name.rsplit("/", 1)[-1]


Survive = Callable[..., int]


@pytest.fixture
def survive(commands: Commands) -> Survive:
    """Kills a command again and again, lets it end, and checks what it leaves."""

    def killed(
        count: int,
        undisturbed: Answer,
        *words: object,
        folder: Path,
        check: Callable[[], object],
        out: Path,
        seed: int,
        done: str = "",
        **options: Any,
    ) -> int:
        """Kill a command so many times; returns how many of them came to its end meanwhile.

        Args:
            count: kills.
            undisturbed: the same command, left alone.
            words: the command, as it goes on.
            folder: where it runs.
            check: fails where what it left at its end is not what it should be.
            out: what it makes; removed after each time that it came to its end.
            seed: of the moments.
            done: what it says if there is nothing left to do, and it refuses to do it again.
            options: see :class:`Commands`.
        """
        kills, ends, said = 0, 0, []
        for moment in moments(seed, undisturbed):
            answer = commands(*words, folder=folder, moment=moment, **options)
            said.append(str(moment))
            if answer.code == KILLED:
                kills += 1
            else:
                _require_end(answer, done, said)
                check()
                ends += 1
                assert ends <= 3 * count + 3, "it ends before it can be killed"
                _remove(out)
                said.clear()
            if kills == count:
                break
        _require_end(commands(*words, folder=folder, **options), done, said)
        try:
            check()
        except AssertionError as error:
            raise AssertionError(f"killed {', '.join(said)}: {error}") from error
        return ends

    return killed


def _require_end(answer: Answer, done: str, said: Sequence[str]) -> None:
    is_done = done != "" and answer.code == 2 and done in answer.err
    assert answer.code == 0 or is_done, f"killed {', '.join(said)}: {answer.err}"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder with its content."""
    return files_of


@pytest.fixture(scope="session")
def moments_of() -> type[Moment]:
    """Makes a moment."""
    return Moment


@pytest.fixture(scope="session")
def moments_in() -> Callable[[int, Answer], Iterator[Moment]]:
    """Draws moments out of the life of a command; see :func:`moments`."""
    return moments


# Fuzzing


LONGEST_CASE = 20.0
"""Seconds after which a case counts as a hang."""

LONGEST_MESSAGE = 1500
"""Characters; whoever gives a name of a million characters does not want to read it again."""

_VERBS = (
    "Add|Ask|Choose|Correct|Delete|Divide|Download|Fill|Free|Give|Install|Keep|Leave|Lower|Mark|"
    "Measure|Put|Raise|Read|Remove|Rename|Repeat|Replace|Restore|Save|Say|See|Shorten|Start|Store|"
    "Take|Transpose|Try|Unset|Update|Wait|Write"
)
_BOTH = "Call|Check|Copy|Cut|Make|Name|Run|Scale|Set|Shift|Turn|Use"
"""Verbs that are nouns, too: they count at the beginning of a sentence or before an object."""
_NOUNS = "Label|Number|Split|Train"
"""Verbs that are mostly nouns: they count before an object."""
_OBJECT = r"(it|its|the|that|their|them|a|an|all|another|fewer|more|one|or|out|yours|again|with)\b"

_GIVEN = re.compile(r"(?<!\w)'.*?'(?!\w)|\([^()]*\)")
"""Names from data and reasons, which may hold any words."""

_REMEDY = re.compile(
    rf"(^|[.?:] )(Error: )?({_VERBS}|{_BOTH}|({_NOUNS}) {_OBJECT})\b"
    rf"|\b(Or|Then) (?i:{_VERBS}|{_BOTH})\b"
    rf"|([;:,]|,? or|,? and) (?i:({_VERBS})\b|({_BOTH}|{_NOUNS}) ({_OBJECT}|[A-Z]+_|`))"
)
"""Some sentence, or clause of one, begins with a verb that tells somebody to do something."""

_EXPECTED = re.compile(r"\b(must|takes) \S+ .*\(got .+\)")
"""The other way of saying it: what was expected, and what was given instead."""


def says_what_to_do(text: str) -> bool:
    """Whether a message tells its reader what to do next."""
    plain = _GIVEN.sub("…", _GIVEN.sub("…", text))  # brackets in brackets
    return bool(_REMEDY.search(plain) or _EXPECTED.search(text) or "Did you mean '" in text)


class Hang(BaseException):
    """A case took too long; no ``except Exception`` may hide it."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise :class:`Hang` in what takes longer."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"still at work after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_message(text: str) -> None:
    """An error's text is one line of bounded length, for people, and says what to do next."""
    assert text.isprintable(), f"not to be printed: {text!r}"
    assert len(text) <= LONGEST_MESSAGE, f"{len(text)} characters: {text[:200]!r}"
    assert text.endswith((".", "?")), f"no sentence: {text!r}"
    assert "Traceback" not in text
    assert says_what_to_do(text), f"what to do next? {text!r}"


@pytest.fixture(scope="session")
def good_message() -> Callable[[str], None]:
    """Checks that an error's text says what to do next, in one line of bounded length."""
    return check_message


@pytest.fixture(scope="session")
def has_remedy() -> Callable[[str], bool]:
    """Tells whether a message says what to do next; see :func:`says_what_to_do`."""
    return says_what_to_do


Case = Callable[[Any], Any]


class Fuzz:
    """Runs cases: each ends with a result that the check accepts, or with an error for users.

    Args:
        soak: the form; in the long one cases are fresh.
        seed: of a long run that is to be repeated (``--hypothesis-seed``); None draws one.
    """

    def __init__(self, soak: Any, seed: int | None = None) -> None:
        self._soak = soak
        self.seed = secrets.randbits(32) if seed is None else seed

    def __call__(
        self,
        name: str,
        cases: SearchStrategy[Any],
        check: Case,
        *,
        short: int,
        long: int,
        accepted: float = 0.1,
        refused: bool = True,
    ) -> Counter[str]:
        """Try many cases.

        Args:
            name: of the record.
            cases: what to try.
            check: uses a case and asserts about the result. It may raise HPGMNError.
            short: how many cases in the short form.
            long: how many in the long form.
            accepted: the share of cases that must be right: of those that are refused only the
                sentence is checked.
            refused: whether some must be wrong.
        """
        from hpgmn.errors import HPGMNError

        counts: Counter[str] = Counter()
        number = self._soak.amount(short, long)

        def one(case: Any) -> None:
            counts["cases"] += 1
            with within(LONGEST_CASE), warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    check(case)
                    counts["accepted"] += 1
                except HPGMNError as error:
                    counts["refused"] += 1
                    check_message(str(error))
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
        )(hypothesis.given(cases)(one))
        if self._soak.is_long:
            print(f"To repeat the cases of {name}: --hypothesis-seed={self.seed}")
            run = hypothesis.seed(self.seed)(run)
        run()
        share = counts["accepted"] / counts["cases"]
        assert share >= accepted, f"{share:.0%} of the cases of {name} are accepted"
        assert counts["refused"] or not refused
        promise = f"Whatever is given to {name}, the outcome is a right result or a sentence."
        self._soak.record(
            f"fuzz-{name.replace(' ', '-')}",
            promise,
            cases_fuzzed=counts["cases"],
            cases_refused=counts["refused"],
            seed=self.seed,
        )
        return counts


@pytest.fixture
def fuzz(soak: Any, request: pytest.FixtureRequest) -> Fuzz:
    """Tries many cases against one promise, see :class:`Fuzz`."""
    seed = request.config.getoption("--hypothesis-seed")
    return Fuzz(soak, None if seed is None else int(seed))
