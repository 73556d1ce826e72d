"""Pages that are written by hand but for what stands between two marker comments of one name."""

from __future__ import annotations

from collections.abc import Mapping

from hpgmn.base.errors import HPGMNError


def with_parts(text: str, page: str, parts: Mapping[str, str]) -> str:
    """A page with its generated parts made anew.

    Args:
        text: the page.
        page: its name, for the message where a marker is missing.
        parts: name → what goes between ``<!-- name: begin -->`` and ``<!-- name: end -->``.
    """
    for name, part in parts.items():
        begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
        before, has_begin, rest = text.partition(begin)
        _, has_end, after = rest.partition(end)
        if not (has_begin and has_end):
            raise HPGMNError(f"{page} lacks the lines '{begin}' and '{end}'. Put them back.")
        text = f"{before}{begin}\n\n{part}\n\n{end}{after}"
    return text
