"""An experiment in words: headings, sentences and grids that every format writes alike.

A sentence may hold code between backticks; that is the only markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpgmn.runs.compare import is_ours
from hpgmn_lab import paper
from hpgmn_lab.reproduction import ranking
from hpgmn_lab.reproduction.cells import SHIPPED, TUNED
from hpgmn_lab.reproduction.facts_grid import facts_blocks
from hpgmn_lab.reproduction.figure import picture_sentence
from hpgmn_lab.reproduction.grids import (
    NOTHING,
    Block,
    Grid,
    Heading,
    Items,
    Picture,
    Words,
    cost_sentences,
    metric_name,
    shown_label,
)
from hpgmn_lab.reproduction.plan import Experiment
from hpgmn_lab.reproduction.tables import ENSEMBLE, Entry, Line, Table, read_cells, table
from hpgmn_lab.results.records import difference_words, printed_words, score_words, validation_words

TITLES = {
    "table1": "Table 1: the graphs",
    "table2": "Table 2: heterophilous graphs",
    "table3": "Table 3: citation graphs",
    "figure3": "Figure 3: regularisation",
    "table4": "Table 4: local statistics",
    "sound": "The sound protocol",
    "options": "Options beyond the paper",
    "citation-options": "Options on the citation graphs",
}


NO_GRAPH = "No graph of this experiment takes part."

_QUICK = (
    "A quick run: few graphs, splits, trials and epochs. It shows that everything works; its "
    "numbers are no results."
)


@dataclass(frozen=True)
class Document:
    """An experiment as it is shown.

    Attributes:
        name: the experiment's.
        title: its heading.
        blocks: what stands below it.
        table: its numbers; Table 1 has none, nor has an experiment without graphs.
        count: how many of its cells, or graphs of Table 1, have a record.
    """

    name: str
    title: str
    blocks: tuple[Block, ...]
    table: Table | None
    count: int


def document(experiment: Experiment, cells: Path, options: str = "") -> Document:
    """An experiment out of the records in a folder.

    Args:
        experiment: what is shown.
        cells: the folder of the records.
        options: what the command had beside the experiment's name, as " --quick".
    """
    command = f"`hpgmn reproduce {experiment.name}{options}`"
    title = TITLES[experiment.name]
    if not experiment.graphs:
        return Document(experiment.name, title, (NO_GRAPH,), None, 0)
    if experiment.name == "table1":
        blocks, count = facts_blocks(experiment.graphs, cells, command)
        return Document(experiment.name, title, tuple(blocks), None, count)
    found = table(experiment, read_cells(cells, experiment), cells)
    layouts: dict[str, Callable[[Table], list[Block]]] = {
        "figure3": _figure3,
        "table4": _table4,
        "sound": _sound,
        "options": _options,
        "citation-options": _options,
    }
    blocks = layouts.get(experiment.name, _comparison)(found)
    blocks += cost_sentences(found, command)
    if "--quick" in options:
        blocks.insert(0, _QUICK)
    shown = tuple(block for block in blocks if block not in ("", Items(())))
    return Document(experiment.name, title, shown, found, len(found.done))


# The layouts.


def _comparison(found: Table) -> list[Block]:
    """Tables 2 and 3."""
    rows = [*_score_rows(found, found.graphs), *_elsewhere_rows(found)]
    return [
        Items(tuple(summary_sentences(found))),
        f"{_SEARCH} A cell shows ours and, after the stroke, what the paper prints. {_LEGEND} "
        f"{_MARK} Rows named shipped have settings from a "
        "larger search than the others, and the last of ours average the class probabilities of "
        f"several seeds; neither competes for bold.{_slip(found)}",
        Grid(found.name, _caption(found), _header("model", found.graphs), rows),
        _difference_grid(found),
        _validation_grid(found),
        _cost_grid(found),
    ]


def _slip(found: Table) -> str:
    """The models for which the paper prints the same numbers on two graphs."""
    pair = ("chameleon", "squirrel")
    if not set(pair) <= set(found.graphs):
        return ""
    same = [one for one, row in paper.TABLE_2.items() if row[pair[0]] == row[pair[1]]]
    return (
        f" The paper prints the same numbers of {', '.join(same)} for chameleon and squirrel, a "
        "slip; both columns stand as printed."
    )


def _options(found: Table) -> list[Block]:
    return [
        f"What each option changes in the shipped settings. Where it says {_AS_SHIPPED}, the "
        f"option changes nothing and has no run of its own. {_LEGEND} {_MARK}",
        Grid(
            found.name,
            _caption(found),
            _header("variant", found.graphs),
            _score_rows(found, found.graphs),
        ),
        _difference_grid(found),
        ranking.told_apart(found),
        _validation_grid(found),
        _cost_grid(found),
    ]


def _sound(found: Table) -> list[Block]:
    beside = tuple(paper.DEFECTIVE[graph] for graph in found.graphs if graph in paper.DEFECTIVE)
    graphs = tuple(graph for graph in found.graphs if graph not in beside)
    places = [ranking.place_on(found, graph) for graph in graphs]
    blocks: list[Block] = [
        f"Graphs without the known defects. {_SEARCH} {_LEGEND}",
        Grid(found.name, _caption(found), _header("model", graphs), _score_rows(found, graphs)),
        Items(tuple(ranking.place_sentence(place) for place in places if place)),
        _difference_grid(found),
        _validation_grid(found),
        _cost_grid(found),
    ]
    pairs = [graph for graph in graphs if paper.DEFECTIVE.get(graph) in found.graphs]
    if not pairs:
        return blocks
    blocks += [
        Heading("What the defects do to the ranking"),
        "Each graph beside the one that the literature uses, which has the defects; ranks by mean "
        "test score, 1 the best. The two graphs have other nodes and splits, so a model's fall is "
        "a difference of means, without an interval; intervals are of models on the same graph.",
    ]
    for graph in pairs:
        blocks += _pair_blocks(found, ranking.pair_of(found, graph, paper.DEFECTIVE[graph]))
    return blocks


def _pair_blocks(found: Table, pair: ranking.Pair) -> list[Block]:
    order = sorted(pair.scores, key=lambda model: pair.ranks[model])
    rows = [
        tuple(
            Words(text)
            for text in (
                model,
                f"{pair.scores[model][1]:.1f}",
                f"{pair.ranks[model][1]:g}",
                f"{pair.scores[model][0]:.1f}",
                f"{pair.ranks[model][0]:g}",
                f"{round(pair.falls[model], 1) + 0.0:.1f}",  # no minus before a zero
            )
        )
        for model in order
    ]
    header = ("model", pair.defective, "rank", pair.sound, "rank", "falls by, points")
    label, caption = f"{found.name}-{pair.sound}", f"{pair.defective} and {pair.sound}"
    grids = [Grid(label, f"{caption}: mean test scores and ranks.", header, rows)] if rows else []
    sentences = ranking.pair_sentences(found, pair)
    place = ranking.place_on(found, pair.defective)
    if place and not place.is_first:  # of the first the lead is told already
        sentences.append(ranking.place_sentence(place))
    return [*grids, Items(tuple(sentences))]


def _figure3(found: Table) -> list[Block]:
    return [
        "HP-GMN with its shipped settings, and the same without one or both of the penalties on "
        "its memory. The paper shows a bar chart without numbers; where it prints the full "
        "model's, that stands after the stroke. "
        f"{_LEGEND} {_MARK}",
        Picture("figure3", picture_sentence(found)),
        _variant_grid(found),
        ranking.told_apart(found),
        _validation_grid(found),
        _cost_grid(found),
    ]


def _table4(found: Table) -> list[Block]:
    return [
        "HP-GMN with its shipped settings, and the same without one of its statistics; after the "
        f"stroke what the paper prints. {_LEGEND} {_MARK}",
        _variant_grid(found),
        ranking.told_apart(found),
        Items(tuple(_stand_ins(found))),
        _validation_grid(found),
        _cost_grid(found),
    ]


def _stand_ins(found: Table) -> list[str]:
    """Where our full model has other statistics than the paper's."""
    graphs: dict[str, list[str]] = {}
    full, *others = found.lines
    for graph, entry in full.entries.items():
        used = set(entry.cell.settings["statistics"])
        if "adjacency" in used:
            words = "beside" if "diffusion" in used else "in place of"
            sentence = f"adjacency rows stand {words} diffusion; 'without diffusion' has neither"
            graphs.setdefault(sentence, []).append(graph)
        for line in others:
            if set(line.entries[graph].cell.settings["statistics"]) == used:
                sentence = f"the full model lacks what '{line.label}' removes: both are the same"
                graphs.setdefault(sentence, []).append(graph)
    return [f"In ours on {' and '.join(own)}, {sentence}." for sentence, own in graphs.items()]


def summary_sentences(found: Table) -> list[str]:
    """What a comparison comes to: first places, and printed numbers that are reached."""
    places = [place for graph in found.graphs if (place := ranking.place_on(found, graph))]
    ours = [place for place in places if place.distance]
    sentences = []
    if ours:
        clear = [place for place in ours if ranking.excludes_zero(place.distance)]
        above = [place.graph for place in clear if place.distance and place.distance.mean > 0]
        below = [place.graph for place in clear if place.graph not in above]
        level = [place.graph for place in ours if place.is_level]
        words = f", level with the best other model in {_count_words(level)}" if level else ""
        sentences.append(
            "With as many trials for all, HP-GMN is first in "
            f"{sum(place.is_first for place in ours)} of {len(ours)} columns{words}. The interval "
            f"of its distance to the best other model is above zero in {_count_words(above)} and "
            f"below zero in {_count_words(below)}."
        )
    sentences += [_reached(line) for line in found.lines if is_ours(line.model)]
    others = [line for line in found.lines if not is_ours(line.model)]
    verdicts = [entry.verdict for line in others for entry in line.entries.values()]
    known = [verdict for verdict in verdicts if verdict]
    sentences.append(
        f"Other models reach {sum(verdict.is_reached for verdict in known)} of the {len(known)} "
        "numbers that the paper prints for them."
    )
    return sentences


def _count_words(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "none"


def _reached(line: Line) -> str:
    """How many printed numbers a row reaches, and what is short of them."""
    verdicts = {graph: entry.verdict for graph, entry in line.entries.items() if entry.verdict}
    short = [
        f"{graph} by {verdict.short_by:.2f}"
        for graph, verdict in verdicts.items()
        if not verdict.is_reached
    ]
    words = f"; short: {', '.join(short)}" if short else ""
    return (
        f"{line.label}: the paper's number is reached in {len(verdicts) - len(short)} of "
        f"{len(verdicts)} columns{words}."
    )


# The grids.

_SEARCH = (
    "Every model has the same number of trials on the same splits, and validation alone selects; "
    "each draws from a space of its own for the kind of graph. HP-GMN's space has more settings, "
    "and where its ranges are not those of the others they started from a study of the model that "
    "had seen test scores."
)
_AS_SHIPPED = "as shipped"
_LEGEND = "Bold is the best of a column."
_MARK = (
    "↓ marks what stays short of the printed number: our mean is lower, and by more than "
    f"{paper.WEBKB_MARGIN:g} point ({', '.join(paper.WEBKB)}) or {paper.MARGIN:g} points (the "
    f"others), or the printed mean is outside our {100 * paper.CONFIDENCE:.0f} % interval."
)


def _caption(found: Table) -> str:
    what = sorted({metric_name(graph) for graph in found.graphs}, reverse=True)
    subject = TITLES[found.name].rpartition(": ")[2]
    return (
        f"{subject[:1].upper()}{subject[1:]}: test {' or '.join(what)} in percent, mean ± sample "
        "standard deviation over runs."
    )


def _header(first: str, graphs: Sequence[str]) -> tuple[str, ...]:
    names = [
        graph if metric_name(graph) == "accuracy" else f"{graph} ({metric_name(graph)})"
        for graph in graphs
    ]
    return (first, *names)


def _label(line: Line, table_name: str) -> str:
    label = shown_label(line.label)
    if line.kind == SHIPPED and table_name in ("table2", "table3"):
        return f"{label} (larger search)"
    return label


def _score_words(entry: Entry) -> Words:
    """Ours, what is printed, and the mark of what stays short of it."""
    if entry.is_as_shipped:
        return Words(_AS_SHIPPED)
    rest = f" / {printed_words(entry.printed)}" if entry.printed else ""
    if entry.verdict and not entry.verdict.is_reached:
        rest += " ↓"
    return Words(score_words(entry.record) if entry.record else NOTHING, rest, entry.is_best)


def _score_rows(found: Table, graphs: Sequence[str]) -> list[tuple[Words, ...]]:
    return [
        (Words(_label(line, found.name)), *(_score_words(line.entries[graph]) for graph in graphs))
        for line in found.lines
    ]


def _rows(
    found: Table, lines: Sequence[Line], words: Callable[[Entry], Words]
) -> list[tuple[Words, ...]]:
    """A row for each line, with what ``words`` says of the entries that have a record."""

    def shown(entry: Entry) -> Words:
        if entry.is_as_shipped:
            return Words(_AS_SHIPPED)
        return words(entry) if entry.record else Words(NOTHING)

    return [
        (Words(_label(line, found.name)), *(shown(line.entries[graph]) for graph in found.graphs))
        for line in lines
    ]


def _elsewhere_rows(found: Table) -> list[tuple[Words, ...]]:
    """The best published elsewhere, and how far HP-GMN is from it."""
    best = [paper.ELSEWHERE.get(graph) for graph in found.graphs]
    said = [Words(f"{one.mean:.1f}", f", {one.source}") if one else Words(NOTHING) for one in best]
    rows = [(Words("best published elsewhere"), *said)]
    for kind, words in (
        (TUNED, "HP-GMN"),
        (SHIPPED, "HP-GMN, shipped,"),
        (ENSEMBLE, "HP-GMN, seeds averaged,"),
    ):
        ours = [line for line in found.of_kind(kind) if is_ours(line.model)]
        distances = []
        for graph, one in zip(found.graphs, best, strict=True):
            entry = _best_by_validation([line.entries[graph] for line in ours])
            record = entry.record if entry else None
            distance = f"{record.score.mean - one.mean:+.1f}" if record and one else NOTHING
            distances.append(Words(distance))
        rows.append((Words(f"{words} minus that"), *distances))
    return rows


def _best_by_validation(entries: Sequence[Entry]) -> Entry | None:
    """Of several forms of HP-GMN the best by validation of their single runs."""
    known = [entry for entry in entries if entry.record]
    return max(
        known, key=lambda entry: entry.record.validation if entry.record else 0, default=None
    )


def _difference_grid(found: Table) -> Grid:
    names = dict.fromkeys(found.references.values())
    against = " or ".join(names) or "HP-GMN"
    better = " (the better one by validation)" if len(names) > 1 else ""
    caption = (
        f"Row minus {against}{better} in points, paired over splits, with the 95 % interval "
        "corrected for overlapping splits; on one split over seeds (Welch's interval)."
    )
    rows = [
        (
            Words(_label(line, found.name)),
            *(_difference_words(found, line, graph) for graph in found.graphs),
        )
        for line in found.lines
    ]
    return Grid(f"{found.name}-differences", caption, _header("row", found.graphs), rows)


def _difference_words(found: Table, line: Line, graph: str) -> Words:
    if found.references.get(graph) == line.label:
        return Words("reference")
    if line.entries[graph].is_as_shipped:
        return Words(_AS_SHIPPED)
    mean, space, interval = difference_words(line.entries[graph].difference).partition(" ")
    return Words(mean, space + interval)


def _validation_grid(found: Table) -> Grid:
    lines = [line for line in found.lines if line.kind != ENSEMBLE]
    rows = _rows(found, lines, _validation_words)
    caption = "Mean validation score in percent, and in brackets validation minus test in points."
    return Grid(f"{found.name}-validation", caption, _header("row", found.graphs), rows, True)


def _validation_words(entry: Entry) -> Words:
    assert entry.record is not None
    return Words(f"{validation_words(entry.record)} ({entry.gap:+.1f})")


def _cost_grid(found: Table) -> Grid:
    caption = (
        "Scores behind the mean, seconds of search and final runs together, peak memory of the "
        "final runs (of the process, or of the GPU where it says so), trials of the search. Cells "
        "that are worked on at once share a machine, so seconds are upper bounds."
    )
    if any(line.kind != TUNED for line in found.lines):
        caption += (
            " A row without trials has the settings as shipped, but for what its name says; the "
            "search behind those is not in the seconds."
        )
    rows = _rows(found, found.lines, _cost_words)
    return Grid(f"{found.name}-cost", caption, _header("row", found.graphs), rows, True)


def _cost_words(entry: Entry) -> Words:
    assert entry.record is not None
    metrics = entry.record.metrics
    count = len(entry.record.score.values)
    noun = "average" if entry.is_ensemble else "run"
    runs = f"{count} {noun}{'' if count == 1 else 's'}"
    parts = []
    if metrics.get("peak_memory_mb") is not None:
        where = "" if metrics["hardware"]["device"] == "cpu" else " of the GPU"
        parts.append(f"{metrics['peak_memory_mb']:.0f} MB{where}")
    parts.append(f"{entry.trials} trials" if entry.search else "settings as shipped")
    return Words(f"{runs}, {entry.seconds:.0f} s", f", {', '.join(parts)}")


def _variant_grid(found: Table) -> Grid:
    header = ["variant"]
    for name in _header("", found.graphs)[1:]:
        header += [name, "95 % interval", "minus full"]
    rows = []
    for line in found.lines:
        row = [Words(shown_label(line.label))]
        for graph in found.graphs:
            entry = line.entries[graph]
            row += [_score_words(entry), Words(_interval_words(entry))]
            row.append(_difference_words(found, line, graph))
        rows.append(tuple(row))
    caption = (
        f"{_caption(found)} The interval is Student's over independent runs; the difference is "
        "paired over splits, its interval corrected for their overlap."
    )
    return Grid(found.name, caption, tuple(header), rows)


def _interval_words(entry: Entry) -> str:
    if entry.interval is None:
        return NOTHING
    return f"{entry.interval[0]:.1f} to {entry.interval[1]:.1f}"
