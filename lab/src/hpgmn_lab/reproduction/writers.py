"""A document as Markdown, LaTeX and CSV; HTML is made by :mod:`hpgmn_lab.reproduction.html`."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable

from hpgmn_lab import paper
from hpgmn_lab.reproduction.documents import Document
from hpgmn_lab.reproduction.grids import Block, Grid, Heading, Items, Picture, Words
from hpgmn_lab.reproduction.tables import Entry, Line, Table
from hpgmn_lab.results.records import grid

COLUMNS = (
    *("experiment", "row", "kind", "graph", "model", "variant", "metric", "runs", "splits"),
    *("seeds", "test_mean", "test_std", "test_low", "test_high", "is_best", "printed_mean"),
    *("printed_std", "is_reached", "short_by", "elsewhere_mean", "elsewhere_source"),
    *("validation_mean", "validation_minus_test", "reference", "difference", "difference_low"),
    *("difference_high", "seconds", "seconds_search", "peak_memory_mb", "trials", "version"),
    *("device", "created"),
)
"""What the CSV says of every cell; scores in percent, differences in points."""


# Markdown.


def markdown(document: Document, *, level: int = 1, pictures: str = "") -> str:
    """A document as Markdown.

    Args:
        document: what is written.
        level: of its heading.
        pictures: what stands before the file of a picture, as "../lab/results/".
    """
    marks = "#" * level
    blocks = [_markdown_block(block, marks, pictures) for block in document.blocks]
    return "\n\n".join([f"{marks} {_no_markup(document.title)}", *blocks]) + "\n"


def _markdown_block(block: Block, marks: str, pictures: str) -> str:
    if isinstance(block, Heading):
        return f"{marks}# {_no_markup(block.text)}"
    if isinstance(block, Picture):
        return f"![{_no_markup(block.sentence)}]({pictures}{block.name}.svg)"
    if isinstance(block, Grid):
        rows = [[_markdown_words(words) for words in row] for row in block.rows]
        lines = grid([_markdown_cell(name) for name in block.header], rows)
        if block.is_detail:  # HTML, in which Markdown is not read
            caption = html.escape(_one_line(block.caption), quote=False)
            return f"<details>\n<summary>{caption}</summary>\n\n{lines}\n\n</details>"
        return f"{_paragraph(block.caption)}\n\n{lines}"
    if isinstance(block, Items):
        return "\n".join(f"- {_paragraph(sentence)}" for sentence in block.sentences)
    return _paragraph(block)


def _markdown_words(words: Words) -> str:
    if not words.is_bold:
        return _markdown_cell(words.text + words.rest)
    return f"**{_markdown_cell(words.text)}**{_markdown_cell(words.rest)}"


def _markdown_cell(text: str) -> str:
    return _no_markup(text).replace("|", "\\|")


# Between single backticks there is code; a backslash in it would end a cell of a table.
_CODE = re.compile(r"((?<!`)`[^`\\]+`(?!`))")
# What Markdown reads; an underscore inside a name is one, and so is a "<" before a number.
_READ = re.compile(r"[\\`*{\[\]]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-zA-Z/!?])")


def _no_markup(text: str) -> str:
    """Text, of which some is from data, in one line that Markdown shows as it is, but for code."""
    parts = _CODE.split(_one_line(text))
    shown = [part if place % 2 else _READ.sub(_literal, part) for place, part in enumerate(parts)]
    return "".join(shown)


def _paragraph(text: str) -> str:
    """The same where a line begins with it: no heading, list, quotation or fence."""
    return re.sub(r"^(?=[#>~+-])|^(\d+)(?=[.)])", r"\1\\", _no_markup(text.strip()))


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _literal(sign: re.Match[str]) -> str:
    return "&lt;" if sign[0] == "<" else f"\\{sign[0]}"


# LaTeX.

_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
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
_HEAD = """\
% Made by hpgmn reproduce; needs \\usepackage{booktabs} and \\usepackage{graphicx}.
"""


def escaped(text: str) -> str:
    r"""Text that LaTeX shows as it is; code between backticks is set in typewriter.

    >>> print(escaped("a_b & 5 % ± 1, -2.0"))
    a\_b \& 5 \% $\pm$ 1, $-$2.0
    """
    signed = re.sub(r"(?<!\w)-(?=\d)", "−", text)  # a minus, not a hyphen
    shown = "".join(_LATEX.get(sign, sign) for sign in signed)
    return re.sub(r"`([^`]*)`", _typewriter, shown)


def _typewriter(code: re.Match[str]) -> str:
    return "\\texttt{" + code[1].replace("--", "-{}-") + "}"  # no dash out of two hyphens


def latex(document: Document) -> str:
    """A document as LaTeX to be included: tables of booktabs, sentences as text."""
    blocks = [_latex_block(block) for block in document.blocks]
    heading = f"\\paragraph{{{escaped(document.title)}}}"
    return _HEAD + "\n\n".join([heading, *blocks]) + "\n"


def _latex_block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"\\paragraph{{{escaped(block.text)}}}"
    if isinstance(block, Picture):
        return (
            "\\begin{figure}[t]\n\\centering\n"
            f"\\includegraphics[width=\\linewidth]{{{block.name}.png}}\n"
            f"\\caption{{{escaped(block.sentence)}}}\n\\label{{fig:{block.name}}}\n\\end{{figure}}"
        )
    if isinstance(block, Grid):
        return _latex_grid(block)
    if isinstance(block, Items):
        items = [f"\\item {escaped(sentence)}" for sentence in block.sentences]
        return "\n".join(["\\begin{itemize}", *items, "\\end{itemize}"])
    return escaped(block)


def _latex_grid(block: Grid) -> str:
    columns = "l" + "r" * (len(block.header) - 1)
    rows = [" & ".join(_latex_words(words) for words in row) + r" \\" for row in block.rows]
    head = " & ".join(escaped(title) for title in block.header) + r" \\"
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            f"\\caption{{{escaped(block.caption)}}}",
            f"\\label{{tab:{block.label}}}",
            r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
            f"\\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table*}",
        ]
    )


def _latex_words(words: Words) -> str:
    text = f"\\textbf{{{escaped(words.text)}}}" if words.is_bold else escaped(words.text)
    return text + escaped(words.rest)


# CSV.


def comma_separated(document: Document) -> str:
    """One line per cell with all its numbers; of Table 1 one line per graph, as shown.

    A cell that an option leaves as it ships has its line in the row of the shipped settings alone.
    """
    if document.table is None:
        grids = [block for block in document.blocks if isinstance(block, Grid)]
        rows = [[words.text + words.rest for words in row] for one in grids for row in one.rows]
        return _csv(grids[0].header if grids else COLUMNS, rows)
    lines = [
        _cell(document.table, line, graph, entry)
        for line in document.table.lines
        for graph, entry in line.entries.items()
        if not entry.is_as_shipped
    ]
    return _csv(COLUMNS, ([line.get(name, "") for name in COLUMNS] for line in lines))


def _csv(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


def _cell(table: Table, line: Line, graph: str, entry: Entry) -> dict[str, str]:
    about = {
        "experiment": table.name,
        "row": line.label,
        "kind": line.kind,
        "graph": graph,
        "model": entry.cell.model,
        "variant": entry.cell.variant,
        "metric": entry.cell.metric,
        "reference": table.references.get(graph, ""),
    }
    if entry.printed:
        about |= {
            "printed_mean": f"{entry.printed.mean:.1f}",
            "printed_std": f"{entry.printed.std:.1f}",
        }
    if graph in paper.ELSEWHERE:
        best = paper.ELSEWHERE[graph]
        about |= {"elsewhere_mean": f"{best.mean:.1f}", "elsewhere_source": best.source}
    return about | _measured(entry)


def _measured(entry: Entry) -> dict[str, str]:
    """What the record of a cell says."""
    if entry.record is None:
        return {}
    metrics, score = entry.record.metrics, entry.record.score
    low, high = entry.interval or (None, None)
    found = entry.difference
    numbers = {
        "test_mean": score.mean,
        "test_std": score.std,
        "test_low": low,
        "test_high": high,
        "short_by": entry.verdict.short_by if entry.verdict else None,
        "validation_mean": entry.validation,
        "validation_minus_test": entry.gap,
        "difference": _points(found.mean) if found else None,
        "difference_low": _points(found.low) if found else None,
        "difference_high": _points(found.high) if found else None,
        "seconds": entry.seconds,
        "seconds_search": entry.seconds_search,
        "peak_memory_mb": metrics.get("peak_memory_mb"),
    }
    return {
        "runs": str(len(score.values)),
        "splits": str(len(metrics["splits"])),
        "seeds": str(metrics["seeds"]),
        "is_best": str(entry.is_best).lower(),
        "is_reached": str(entry.verdict.is_reached).lower() if entry.verdict else "",
        "trials": str(entry.trials),
        "version": str(metrics["version"]),
        "device": str(metrics["hardware"]["device"]),
        "created": str(metrics["created"]),
        **{name: "" if value is None else f"{value:.4f}" for name, value in numbers.items()},
    }


def _points(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction
