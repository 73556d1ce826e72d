"""Fuzzing: many cases against one promise, each with a time limit, counted and repeatable."""

from __future__ import annotations

import re
import secrets
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.strategies import SearchStrategy

LONGEST_CASE = 20.0
"""Seconds after which a case counts as a hang."""

LONGEST_MESSAGE = 1500
"""Characters; whoever gives a name of a million characters does not want to read it again."""

_REMEDY = re.compile(
    r"\b(It has|Nearest ids): +\S|\b[Dd]ivide\b"
    r"|\b(must|needs?|takes?|[Gg]ive|[Cc]hoose|[Uu]se|[Ss]et|[Aa]dd|[Rr]emove|[Rr]eplace|[Rr]ename"
    r"|[Cc]heck|[Ww]rite|[Ss]tore|[Ss]ave|[Kk]eep|[Ll]eave|[Ll]ower|[Ll]abel|[Tt]ake|[Rr]un"
    r"|[Tt]rain|[Rr]estore|[Cc]opy|[Pp]ut|[Cc]orrect|[Tt]urn|[Nn]ame|[Nn]umber|[Tt]ranspose"
    r"|[Ii]nstall|[Rr]epeat|[Mm]ake|[Cc]all|[Ss]ee|[Ss]pell|[Ee]mpty|[Ss]cale|[Dd]elete)\b"
)


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
    assert _REMEDY.search(text), f"what to do next? {text!r}"


@pytest.fixture(scope="session")
def good_message() -> Callable[[str], None]:
    """Checks that an error's text says what to do next, in one line of bounded length."""
    return check_message


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
        accepted: bool = True,
        refused: bool = True,
    ) -> Counter[str]:
        """Try many cases.

        Args:
            name: of the record.
            cases: what to try.
            check: uses a case and asserts about the result. It may raise HPGMNError.
            short: how many cases in the short form.
            long: how many in the long form.
            accepted: whether some cases must be right: a check that refuses all would say nothing.
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
        assert counts["accepted"] or not accepted
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
