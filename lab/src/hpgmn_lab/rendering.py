"""Text and tables in Markdown, LaTeX and HTML, and figures.

The source is plain text with two marks: ``**bold**`` and code between backticks. Everything else is
escaped. Tables are pandas frames of such texts; the first column heads the rows.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from hpgmn.base.files import atomic_write

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup
    from matplotlib.figure import Figure

_CODE = re.compile(r"(`[^`\\]+`)")
_BOLD = re.compile(r"\*\*(.+?)\*\*")
# An underscore inside a name is not emphasis, and a "<" before a number is not a tag.
_MARKDOWN = re.compile(r"[\\\[\]{]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-zA-Z/!?])")
_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "↓": r"$\downarrow$",
    "≠": r"$\neq$",
    "τ": r"$\tau$",
    "–": "--",
    "−": "$-$",
    "+": "$+$",
}


def markdown(text: object) -> str:
    r"""Return text as one line of Markdown.

    >>> markdown("**1** < 2 <script> _a_ a_b `x_`")
    '**1** < 2 &lt;script> \\_a\\_ a_b `x_`'
    """
    parts = _CODE.split(" ".join(str(text).splitlines()))
    return "".join(
        part if index % 2 else _MARKDOWN.sub(_escape_markdown, part)
        for index, part in enumerate(parts)
    )


def _escape_markdown(match: re.Match[str]) -> str:
    return "&lt;" if match[0] == "<" else f"\\{match[0]}"


def markdown_table(frame: pd.DataFrame) -> str:
    """Return a frame as a Markdown table."""
    rows = [list(frame.columns), *frame.itertuples(index=False)]
    lines = [" | ".join(markdown(cell).replace("|", "\\|") for cell in row) for row in rows]
    lines.insert(1, " | ".join(["---"] * len(frame.columns)))
    return "\n".join(f"| {line} |" for line in lines)


def latex(text: object) -> str:
    r"""Return text as LaTeX.

    >>> latex("**1.0 ± 0.1** of `a_b`")
    '\\textbf{1.0 $\\pm$ 0.1} of \\texttt{a\\_b}'
    """
    escaped = "".join(_LATEX.get(character, character) for character in str(text))
    return re.sub(r"`([^`]+)`", r"\\texttt{\1}", _BOLD.sub(r"\\textbf{\1}", escaped))


def html(text: object) -> Markup:
    """Return text as HTML.

    >>> print(html("**1** <b> `x`"))
    <strong>1</strong> &lt;b&gt; <code>x</code>
    """
    from markupsafe import Markup, escape

    escaped = _BOLD.sub(r"<strong>\1</strong>", str(escape(str(text))))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))  # nosec B704


def frame(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """Return rows of texts as a frame."""
    import pandas as pd

    return pd.DataFrame([list(row) for row in rows], columns=list(header), dtype=object)


def print_table(title: str, frame: pd.DataFrame) -> None:
    """Print a frame of texts on the terminal, without marks of bold; wide cells wrap."""
    from rich.table import Column, Table

    from hpgmn.cli.console import out

    columns = (
        Column(name, justify="right" if number else "left", overflow="fold")
        for number, name in enumerate(frame.columns)
    )
    table = Table(
        *columns, title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    for row in frame.itertuples(index=False):
        table.add_row(*(cell.replace("**", "") for cell in row))
    out.print(table)
    out.print()


def render(template: str, **values: Any) -> str:
    """Render a template of the package; ``.html.j2`` with automatic escaping."""
    environment = _environment(is_latex=template.endswith(".tex.j2"))
    return environment.get_template(template).render(**values)


def _environment(is_latex: bool) -> jinja2.Environment:
    marks = {"variable_start_string": "<<", "variable_end_string": ">>"} if is_latex else {}
    if is_latex:
        marks |= {"block_start_string": "<%", "block_end_string": "%>"}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hpgmn_lab"),
        autoescape=jinja2.select_autoescape(("html.j2",), default=False),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **marks,  # type: ignore[arg-type]
    )
    environment.filters |= {"md": markdown, "md_table": markdown_table, "tex": latex, "html": html}
    return environment


# Figures: the same numbers give the same bytes, whatever the user's style.

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "hpgmn",
}


@contextmanager
def styled_figure(width: float, height: float, style: Mapping[Any, Any]) -> Iterator[Figure]:
    """Yield a figure of a size in inches; save it inside the ``with``, where its style applies."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE | dict(style))
        yield Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path, dpi: int) -> list[Path]:
    """Write a figure as PNG and SVG next to ``path``, atomically."""
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    with atomic_write(files[0]) as draft:
        figure.savefig(draft, dpi=dpi, metadata={"Software": None})
    with atomic_write(files[1]) as draft:
        figure.savefig(draft, metadata=NO_METADATA)
    return files
