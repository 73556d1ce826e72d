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
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from hpgmn.base.errors import (
    MISSING,
    TARGET_METRICS,
    format_duration,
    format_score,
    format_setting,
    format_time,
    percent,
)
from hpgmn.base.metrics import metric_words
from hpgmn.graph import Array

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

CURVE_NAMES = ("loss", "val_loss", "val_score")
LONGEST_LABEL = 18
METRIC_NAMES = {
    **{"roc_auc": "ROC-AUC", "macro_f1": "macro F1"},
    **{"r2": "R²", "rmse": "RMSE", "mae": "MAE", "spearman": "Spearman correlation"},
}
_FACT_NAMES = {"num_features": "Attributes", "cpu": "Processor", "gpu": "GPU", "torch": "PyTorch"}


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
        ranked: nodes by the probability of a class, most probable first, and what they are of.
        targets: (2, n) targets and predictions of the test nodes of all runs of a regression.
    """

    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    stages: tuple[LearningCurves, ...]
    classes: tuple[str, ...]
    confusion: Array
    audit: Mapping[str, Any] = field(default_factory=dict)
    understanding: Mapping[str, Any] = field(default_factory=dict)
    explorer: Mapping[str, Any] = field(default_factory=dict)
    ranked: Mapping[str, Any] = field(default_factory=dict)
    targets: Array = field(default_factory=lambda: np.empty((2, 0)))

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers, whose scores are no percentages."""
        return self.metrics["metric"] in TARGET_METRICS

    @property
    def metric_name(self) -> str:
        """The metric in words, with its class."""
        name = str(self.metrics["metric"])
        words = metric_words(name, self.metrics.get("positive"))
        return words.replace(name, METRIC_NAMES.get(name, name.replace("_", " ")), 1)

    def format_score(self, score: float) -> str:
        """Format the value of the run's metric; NaN is a dash."""
        if not self.is_regression:
            return percent(score)
        return MISSING if math.isnan(score) else format_score(self.metrics["metric"], score)

    def format_mean(self, content: Mapping[str, Any], name: str) -> str:
        """Format ``<name>_mean`` and ``<name>_std`` as ``84.12 ± 4.20%``."""
        mean, std = number(content.get(f"{name}_mean")), number(content.get(f"{name}_std"))
        if self.num_runs == 1 or math.isnan(mean) or math.isnan(std):
            return self.format_score(mean)
        if self.is_regression:
            return f"{self.format_score(mean)} ± {self.format_score(std)}"
        return f"{100 * mean:.2f} ± {100 * std:.2f}%"

    def format_difference(self, difference: float, sign: str = "") -> str:
        """Format a difference of two scores, in points if they are shares; NaN is a dash."""
        if math.isnan(difference):
            return MISSING
        if self.is_regression:
            return f"{difference:{sign}.3f}"
        return f"{100 * difference:{sign}.2f}"

    @property
    def has_explorer(self) -> bool:
        """Whether nodes can be looked up on the page."""
        return bool(self.explorer and self.explorer["nodes"])

    @property
    def explained_member(self) -> str | None:
        """The member of an ensemble that curves and explanations are of; None for other models."""
        name = self.metrics.get("explained_member")
        return None if name is None else str(name)

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


@cache
def environment(package: str = "hpgmn.report") -> Environment:
    """Return the environment of a package's templates: autoescape, control characters replaced."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    env.filters |= {
        "decimals": partial(format_number, form=".3f"),
        "duration": format_duration,
        "number": format_count,
        "percent": format_percent,
        "short": short,
        "short_time": format_time,
        "value": format_value,
        "url_quote": partial(quote, safe=""),
    }
    env.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return env


def _finalize(value: Any) -> Any:
    return value if hasattr(value, "__html__") else printable(value)


def render_page(*, script: str = "", **context: Any) -> str:
    """Render ``report.html.j2``, with at most one inline script."""
    from markupsafe import Markup

    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if script:
        policy += f"; script-src {hash_source(script)}"
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            styles=resource("style.css"),
            policy=Markup(policy),  # nosec B704
            script=Markup(script),  # nosec B704
            **context,
        )
    )


def hash_source(text: str) -> str:
    """Return what allows an inline script or style in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def resource(name: str, package: str = "hpgmn.report") -> Markup:
    """Return a style sheet or script of a package's templates."""
    from markupsafe import Markup

    env = environment(package)
    assert env.loader is not None
    return Markup(env.loader.get_source(env, name)[0])  # nosec B704


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


def short(value: object, longest: int = LONGEST_LABEL) -> str:
    """Truncate a value to the length of a label."""
    text = printable(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def format_number(value: object, form: str) -> str:
    """Format a recorded number; a missing one as a dash."""
    known = number(value)
    return MISSING if math.isnan(known) else format(known, form)


def format_percent(value: object, digits: int = 2) -> str:
    """Format a recorded share; a missing one as a dash."""
    return format_number(value, f".{digits}%")


def format_count(value: float, form: str = "") -> str:
    """Format a number with separators of thousands."""
    return f"{value:,{form}}"


def format_value(value: float) -> str:
    """Format a predicted value with four digits, or as many as its integer part has.

    >>> format_value(4.41), format_value(123456.7)
    ('4.410', '123,457')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.4g}".rstrip(".")


def largest_shares(shares: Mapping[str, float], most: int = 2) -> str:
    """List the classes with the largest shares, leaving out those below one percent."""
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])[:most]
    return ", ".join(f"{short(name)} {share:.0%}" for name, share in ranked if share >= 0.01)


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


def facts(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Flatten a recorded mapping into rows of name and value."""
    rows = []
    for key, value in content.items():
        name = _FACT_NAMES.get(key, str(key).removeprefix("num_").replace("_", " ").capitalize())
        if isinstance(value, dict):
            rows += [(f"{name}, {inner.lower()}", text) for inner, text in facts(value)]
        elif isinstance(value, float):
            rows.append((name, f"{value:.3g}" if math.isfinite(value) else MISSING))
        elif isinstance(value, int) and not isinstance(value, bool):
            rows.append((name, f"{value:,}"))
        elif value is not None:
            rows.append((name, format_setting(value)))
    return rows
