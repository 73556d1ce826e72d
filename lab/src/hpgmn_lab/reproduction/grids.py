"""The pieces a document is made of, and the sentences about what is missing and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpgmn.graph.datasets import DATASETS
from hpgmn_lab.reproduction.tables import Table

NOTHING = "–"
_METRIC_NAMES = {"roc_auc": "ROC-AUC"}


@dataclass(frozen=True)
class Words:
    """What stands in a field of a grid: ``text``, bold or not, then ``rest``."""

    text: str
    rest: str = ""
    is_bold: bool = False


@dataclass(frozen=True)
class Grid:
    """A table to be shown; the first field heads its row.

    Attributes:
        label: unique among all documents, in words of a file name.
        caption: what it shows.
        header: the titles of the columns.
        rows: the fields.
        is_detail: whether it may be folded away where a format can.
    """

    label: str
    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[Words, ...]]
    is_detail: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading below that of the document."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A figure: its file without ending, and a sentence for those who do not see it."""

    name: str
    sentence: str


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    sentences: tuple[str, ...]


Block = str | Grid | Heading | Items | Picture
"""A part of a document; a plain string is a sentence or a paragraph of them."""


def metric_name(graph: str) -> str:
    """What is reported on a graph, in words."""
    metric = DATASETS[graph].metric if graph in DATASETS else "accuracy"
    return _METRIC_NAMES.get(metric, metric)


def shown_label(label: str) -> str:
    """The label of a row as the paper spells it.

    >>> shown_label("without kpattern")
    'without K-pattern'
    """
    return label.replace("kpattern", "K-pattern")


def duration_words(seconds: float) -> str:
    """Seconds for reading.

    >>> duration_words(59.4), duration_words(61), duration_words(3723)
    ('59 s', '1 min 01 s', '1 h 02 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def missing_sentences(table: Table) -> list[str]:
    """What a table lacks, counted and named."""
    total = len({entry.cell.name for entry in table.entries})
    sentences = []
    absent = [name for name in table.missing if name not in table.outdated]
    if absent:
        sentences.append(
            f"{len(absent)} of {total} cells have no record yet ({NOTHING}): {', '.join(absent)}."
        )
    if table.outdated:
        sentences.append(
            f"{len(table.outdated)} of {total} cells have a record of another plan, which is not "
            f"shown: {', '.join(table.outdated)}."
        )
    return sentences


def cost_sentences(table: Table, command: str) -> list[str]:
    """How the numbers were made: command, trials, versions, devices, dates and cost."""
    done = table.done
    if not done:
        return [*missing_sentences(table), f"Make it with {command}."]
    metrics = [entry.record.metrics for entry in done if entry.record]
    versions = {f"hpgmn {one['version']}, torch {one['hardware']['torch']}" for one in metrics}
    devices = {_device(one["hardware"]) for one in metrics}
    dates = sorted({str(one["created"])[:10] for one in metrics})
    period = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    search = sum(entry.seconds_search for entry in done)
    final = sum(float(one["seconds"]) for one in metrics)
    searched = [entry for entry in done if entry.search]
    runs = sorted({count for entry in searched for count in entry.trial_runs})
    each = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]}–{runs[-1]}" if runs else ""
    trials = sum(entry.trials for entry in searched)
    planned = sum(len(entry.search["trials"]) for entry in searched if entry.search)
    failed = f" and {planned - trials} that failed" if planned > trials else ""
    searches = (
        f"{len(searched)} searches with {trials} trials in all{failed}, each scored on {each} "
        f"{'run' if each == '1' else 'runs'} by validation alone ({duration_words(search)}), then "
        if searched
        else ""
    )
    return [
        *missing_sentences(table),
        f"Made by {command}: {searches}{len(done)} final runs ({duration_words(final)}), seconds "
        f"summed over cells. {'; '.join(sorted(versions))}. On {'; '.join(sorted(devices))}. "
        f"{period}.",
    ]


def _device(hardware: dict[str, object]) -> str:
    if hardware["device"] != "cpu":
        return str(hardware["device"])
    return f"{hardware['processor']}, {hardware['threads']} threads"
