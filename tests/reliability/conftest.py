"""Commands that are killed, share a folder or find no room; cases by the thousand (fuzzing)."""

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
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase

SERVER = Path(__file__).with_name("server.py")
ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join([str(ROOT / "src"), str(ROOT / "lab" / "src")])
"""Both packages of this checkout."""
KILLED = (-signal.SIGKILL, -signal.SIGXFSZ)
"""The exit codes of those that are killed: by us, or because a file grew beyond its room."""
LEAST_ROOM = 2048
"""Bytes. What a command prints goes to files, too, and has to have room."""
BEFORE = """
import hpgmn.explain.explorer as dossier
dossier.SECONDS = 0.05
"""
"""Few nodes of a page have their neighbours taken away, as in the tests of the commands."""


@dataclass(frozen=True)
class Moment:
    """When a command is killed: after some seconds, or when it touches a file for the n-th time.

    Attributes:
        seconds: after which it is killed.
        touch: at which it is killed, counted from 1.
        about: what this touch is, for people.
        signal: what it gets; 0: nothing, but it finds the disk full.
        room: from the touch on no file may grow beyond so many bytes; the write that tries is cut
            in the middle, and then the command is killed, or, with the signal 0, told.
        is_group: whether its workers are killed with it.
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
    """What became of a command.

    Attributes:
        code: its exit code, below 0 if it was killed.
        out: what it printed.
        err: what it said.
        seconds: how long it lived.
        seen: the files that it touched: what it did, and to which.
        sizes: of those that were moved to their place or into which was committed: number of the
            touch, from 1, → bytes.
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
        """Moments out of the whole life of a command that was left alone, without end.

        In turn: a write that is cut in its middle, a touch of a file, and a time. Of the former two
        each file has as many as any other, whether it is touched once, like the page, or all the
        time, like the state.
        """
        draw = random.Random(seed)
        touches: dict[str, list[int]] = {}
        for number, (_, name) in enumerate(self.seen, start=1):
            touches.setdefault(_file(name), []).append(number)
        writes = self.writes()
        while True:
            if writes:
                touch, size = draw.choice(writes[draw.choice(sorted(writes))])
                room = draw.randrange(LEAST_ROOM, size)
                yield Moment(touch=touch, about=" ".join(self.seen[touch - 1]), room=room)
            touch = draw.choice(touches[draw.choice(sorted(touches))])
            yield Moment(touch=touch, about=" ".join(self.seen[touch - 1]))
            yield Moment(seconds=draw.uniform(0, self.seconds))

    def writes(self):
        """File → for each time that it was written the touch that began it, and its size then."""
        begun: dict[str, int] = {}
        found: dict[str, list[tuple[int, int]]] = {}
        for number, (event, name) in enumerate(self.seen, start=1):
            file = _file(name)
            if event == "os.mkdir" and name.endswith(".unfinished"):
                begun[file] = number
            if self.sizes.get(number, 0) > LEAST_ROOM:
                began = number if event == "commit" else begun.get(file, number)
                found.setdefault(file, []).append((began, self.sizes[number]))
        return found


def _file(name):
    """The file that is touched, or whose draft is: "a.json" of "/.a.json.0f.unfinished/a.json"."""
    for part in name.split("/"):
        if part.endswith(".unfinished"):
            return part[1:].rsplit(".", 2)[0]
    return name.rsplit("/", 1)[-1]


@dataclass
class Commands:
    """Runs commands in forks of one process that has everything imported."""

    process: subprocess.Popen[str]
    place: Path
    count: int = 0
    at = Moment

    def __call__(self, *words, folder, moment=None, **options):
        """Run one command in a folder, killed at a moment; see :meth:`job`."""
        job = self.job(*words, folder=folder, **options)
        if moment is not None:
            job |= moment.as_job()
        return self.together([job])[0]

    def job(self, *words, folder, before=BEFORE, environment=None, is_bound=False):
        """What the server is asked.

        Args:
            words: of the command; without any there is only what comes before.
            folder: where it runs.
            before: a program that runs in its process first.
            environment: what it has besides ours.
            is_bound: whether permissions of files hold even where it is root's.
        """
        self.count += 1
        return {
            "words": [str(word) for word in words],
            "folder": str(folder),
            "answer": str(self.place / str(self.count)),
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
    """Runs ``hpgmn …`` in processes of their own, without the time that a start takes."""
    program = [sys.executable, str(SERVER)]
    environment = os.environ | {"PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, env=environment, text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        yield Commands(process, tmp_path_factory.mktemp("answers"))
        process.stdin.close()


class Survived(NamedTuple):
    """How often a command that was killed came to its end, and how much it found done before."""

    ends: int
    kept: int


Survive = Callable[..., Survived]
Kept = Mapping[Any, Any]


@pytest.fixture
def survive(commands):
    """Kills a command again and again, lets it end, and checks what it leaves."""

    def killed(
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
        """Kill a command so many times.

        Args:
            count: kills.
            undisturbed: the same command, left alone.
            words: the command, as it goes on.
            folder: where it runs.
            check: fails where what it said and left at its end is not what it should be.
            out: what it makes; removed after each time that it came to its end.
            seed: of the moments.
            done: what it says if there is nothing left to do, and it refuses to do it again.
            kept: the work that is finished, piece by piece, with all that tells one that was done
                before from one that was done again, such as times. No piece may change.
            first: moments before those that are drawn.
            options: see :class:`Commands`.
        """
        kills, ends, pieces, said = 0, 0, 0, []
        before: Kept = {}
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
                assert ends <= 3 * count + 3, "it ends before it can be killed"
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

    return killed


def require_kept(before, now, said):
    """Fail where finished work is gone or was done again."""
    for piece, content in before.items():
        assert piece in now, f"killed {', '.join(said)}: {piece} is gone"
        assert now[piece] == content, f"killed {', '.join(said)}: {piece} was done again"


def _require_end(answer, done, said):
    is_done = done != "" and answer.code == 2 and done in answer.err
    assert answer.code == 0 or is_done, f"killed {', '.join(said)}: {answer.err}"


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def files_of(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def contents():
    """Every file below a folder with its content."""
    return files_of


# Fuzzing


LONGEST_CASE = 20.0
"""Seconds after which a case counts as a hang."""

LONGEST_MESSAGE = 1500
"""Characters; whoever gives a name of a million characters does not want to read it again."""

_VERBS = (
    "Add|Allow|Ask|Choose|Convert|Correct|Create|Delete|Divide|Download|End|Fill|Free|Give|Install|"
    "Keep|Leave|List|Lower|Mark|Measure|Move|Pass|Put|Quote|Raise|Read|Recreate|Remove|Rename|Repeat|Replace|"
    "Restart|Restore|Resume|Save|Say|See|Select|Shorten|Start|Store|Take|Transpose|Try|Unset|"
    "Update|Wait|Write"
)
_BOTH = "Build|Call|Check|Copy|Cut|Make|Name|Run|Scale|Set|Shift|Turn|Use"
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


def says_what_to_do(text):
    """Whether a message tells its reader what to do next."""
    plain = _GIVEN.sub("…", _GIVEN.sub("…", text))  # brackets in brackets
    return bool(_REMEDY.search(plain) or _EXPECTED.search(text) or "Did you mean '" in text)


class Hang(BaseException):
    """A case took too long; no ``except Exception`` may hide it."""


@contextmanager
def within(seconds):
    """Raise :class:`Hang` in what takes longer."""

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
    """An error's text is one line of bounded length, for people, and says what to do next."""
    assert text.isprintable(), f"not to be printed: {text!r}"
    assert len(text) <= LONGEST_MESSAGE, f"{len(text)} characters: {text[:200]!r}"
    assert text.endswith((".", "?")), f"no sentence: {text!r}"
    assert "Traceback" not in text
    assert says_what_to_do(text), f"what to do next? {text!r}"


@pytest.fixture(scope="session")
def good_message():
    """Checks that an error's text says what to do next, in one line of bounded length."""
    return check_message


@pytest.fixture(scope="session")
def has_remedy():
    """Tells whether a message says what to do next; see :func:`says_what_to_do`."""
    return says_what_to_do


Case = Callable[[Any], Any]


class Fuzz:
    """Runs cases: each ends with a result that the check accepts, or with an error for users.

    Args:
        soak: the form; in the long one cases are fresh.
        seed: of a long run that is to be repeated (``--hypothesis-seed``); None draws one.
    """

    def __init__(self, soak, seed=None):
        self._soak = soak
        self.seed = secrets.randbits(32) if seed is None else seed

    def __call__(self, name, cases, check, *, short, long, accepted=0.1, refused=True):
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
        from hpgmn.base.errors import HPGMNError

        counts: Counter[str] = Counter()
        number = self._soak.amount(short, long)

        def one(case):
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
def fuzz(soak, request):
    """Tries many cases against one promise, see :class:`Fuzz`."""
    seed = request.config.getoption("--hypothesis-seed")
    return Fuzz(soak, None if seed is None else int(seed))
