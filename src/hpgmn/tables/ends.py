"""Why the ends of edges name no node: a guess for the user whose tables do not fit together."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

from hpgmn.graph import Array
from hpgmn.tables.layout import Tables
from hpgmn.tables.preparation import read_words
from hpgmn.tables.words import canonical

_MOST = 0.9  # so many of the unknown ends are nodes if the guess is right


def earlier(missing: Collection[str], known: Array | None) -> str:
    """A sentence about ends that are nodes of an earlier graph; empty if there is none.

    Args:
        missing: ends of edges that are no id.
        known: the ids of the earlier graph.
    """
    count = 0 if known is None else len(set(missing).intersection(known.tolist()))
    if not count:
        return ""
    return (
        f"The model was trained on {count:,} of the nodes that are missing: give --add if the "
        "tables hold only what is new."
    )


def other_names(tables: Tables, ids: Iterable[str], missing: Collection[str]) -> str:
    """A sentence about ids that are spelt differently, or are in another column; may be empty.

    Args:
        tables: where ids and ends are from.
        ids: the ids.
        missing: ends of edges that are no id.
    """
    nodes = tables.nodes
    spelt = {_plain(one): one for one in ids}
    found = [(end, spelt[_plain(end)]) for end in sorted(missing) if _plain(end) in spelt]
    if found and len(found) >= _MOST * len(missing):
        end, own = found[0]
        return (
            f"Ids are spelt in two ways, '{end}' in {tables.edges.label} and '{own}' in "
            f"{nodes.label}. Write them alike."
        )
    for name, kind in nodes.types.items():
        if name == tables.id or not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            continue
        words = set(read_words(nodes, name))
        if sum(end in words for end in missing) >= _MOST * len(missing):
            return f"Column '{name}' of {nodes.label} holds such names. Give --id {name}."
    return ""


def _plain(word: str) -> str:
    """An id without what a spreadsheet may add or take away.

    >>> _plain("007"), _plain("7.0"), _plain(" A1 "), _plain("000")
    ('7', '7', 'a1', '0')
    """
    plain = canonical(word.strip()).casefold()
    return plain.lstrip("0") or "0"
