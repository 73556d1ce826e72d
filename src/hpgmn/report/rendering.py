"""The data of a report page, its templates, tables and number formats.

Fixed letters: R runs (split by split, seeds inside), S splits, E epochs, C classes.

Templates escape every value (autoescape), and the page's policy forbids loading anything from
outside; a page has at most one script, allowed by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hpgmn.base.errors import MISSING
from hpgmn.graph import Array

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

CURVE_NAMES = ("loss", "val_loss", "val_score")


@dataclass(frozen=True)
class LearningCurves:
    """The learning curves of one training stage, NaN where a run has no value."""

    stage: str
    epochs: Array  # (E,)
    curves: Mapping[str, Array]  # for each of CURVE_NAMES (R, E)


@dataclass(frozen=True)
class ReportData:
    """Everything the page shows about a run.

    Attributes:
        config: the content of ``config.yaml``.
        metrics: the content of ``metrics.json``.
        stages: learning curves, one entry for each stage.
        classes: C names.
        confusion: (C, C) test nodes of all runs by class (row) and prediction (column).
        audit: the content of ``audit.json``; empty if not recorded.
        understanding: the content of ``understanding.json``; empty if not recorded.
        explorer: the content of ``explorer.json``; empty if not recorded.
    """

    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    stages: tuple[LearningCurves, ...]
    classes: tuple[str, ...]
    confusion: Array
    audit: Mapping[str, Any] = field(default_factory=dict)
    understanding: Mapping[str, Any] = field(default_factory=dict)
    explorer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_runs(self) -> int:
        """The number of splits times seeds."""
        return len(self.metrics["splits"]) * int(self.metrics["seeds"])

    def per_run(self, name: str) -> Array:
        """Return a list of ``metrics.json`` as (S, seeds); NaN where nothing was recorded.

        Raises ValueError if the list has another length.
        """
        shape = (len(self.metrics["splits"]), int(self.metrics["seeds"]))
        values = self.metrics.get(name)
        if values is None or values == []:
            return np.full(shape, np.nan)
        if not isinstance(values, list) or len(values) != shape[0] * shape[1]:
            received = f"{len(values)} values" if isinstance(values, list) else repr(values)
            raise ValueError(
                f"'{name}' must hold {shape[0]} splits × {shape[1]} seeds (got {received})"
            )
        return np.array([number(value) for value in values]).reshape(shape)


def number(value: object) -> float:
    """Return a recorded number; NaN if it is missing, infinite or of another type."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return math.nan


def mapping(value: object) -> Mapping[str, Any]:
    """Return a recorded mapping; an empty one if it is missing or of another type."""
    return value if isinstance(value, dict) else {}


Row = Sequence[Any]


@dataclass(frozen=True)
class Cell:
    """A cell of a table with a second line, or in bold."""

    text: str
    note: str = ""
    is_strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the page; its cells are text, numbers or :class:`Cell`.

    Attributes:
        foot: whether the last row is a total.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Row]
    foot: bool = False


@cache
def environment() -> Environment:
    """Return the template environment: autoescape, and control characters replaced."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("hpgmn.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    env.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return env


def _finalize(value: Any) -> Any:
    return value if hasattr(value, "__html__") else printable(value)


def render_page(template: str, *, title: str, script: str = "", **context: Any) -> str:
    """Render a template that extends ``base.html.j2``, with at most one inline script."""
    from markupsafe import Markup

    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    return (
        environment()
        .get_template(template)
        .render(
            title=title,
            styles=resource("style.css"),
            policy=Markup(policy),  # nosec B704
            script=Markup(script),  # nosec B704
            **context,
        )
    )


def resource(name: str) -> Markup:
    """Return a style sheet or script of the templates' folder."""
    from markupsafe import Markup

    loader = environment().loader
    assert loader is not None
    return Markup(loader.get_source(environment(), name)[0])  # nosec B704


def markup(svg: str | None) -> Markup | None:
    """Mark a figure as safe: :func:`hpgmn.report.plots.inline_svg` has escaped its text."""
    from markupsafe import Markup

    return None if svg is None else Markup(svg)  # nosec B704


def printable(value: object) -> str:
    r"""Return a value as one line of text that any HTML or SVG file may contain.

    >>> printable("a\tb\x00")
    'a b�'
    """
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if c.isspace() else "\ufffd" if _is_control(c) else c for c in text)


def _is_control(character: str) -> bool:
    is_noncharacter = ord(character) & 0xFFFE == 0xFFFE
    return is_noncharacter or unicodedata.category(character) in {"Cc", "Cs"}


def decimals(value: float) -> str:
    """Format a number with three decimals, NaN as a dash."""
    return MISSING if math.isnan(value) else f"{value:.3f}"


def value_range(values: Array, form: str) -> str:
    """Format the smallest and the largest finite value, or the one value if they agree."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return MISSING
    low, high = form.format(finite.min()), form.format(finite.max())
    return low if low == high else f"{low} to {high}"


def finite_mean(values: Array) -> float:
    """Average the finite values; NaN if there is none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def difference_text(difference: float) -> str | None:
    """Format a difference of shares as points above or below; None for NaN.

    >>> difference_text(0.0412), difference_text(-0.01), difference_text(0)
    ('4.12 points above', '1.00 points below', 'equal to')
    """
    if math.isnan(difference):
        return None
    if not round(100 * difference, 2):
        return "equal to"
    return f"{100 * abs(difference):.2f} points {'above' if difference > 0 else 'below'}"
