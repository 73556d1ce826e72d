"""The pieces of a page: its frame and style, tables and panels, and text that stays text.

The page asks for nothing from outside: no scripts, fonts or images; its own policy forbids them.
At most one script of its own is allowed, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from hpgmn.report.reading import printable

Row = Sequence[str]


def text(value: object) -> str:
    """Anything from data as text that cannot become markup.

    >>> text("<b>")
    '&lt;b&gt;'
    """
    return escape(printable(value), quote=True)


def page(
    title: str,
    about: str,
    opening: str,
    sections: Iterable[tuple[str, str, str]],
    script: str = "",
) -> str:
    """A whole page.

    Args:
        title: plain text, of the window and the first heading.
        about: markup below that heading.
        opening: markup before the list of sections.
        sections: (id, plain title, markup) of each.
        script: the one script that may run, if any.
    """
    sections = list(sections)
    links = "".join(f'<li><a href="#{key}">{text(name)}</a></li>' for key, name, _ in sections)
    body = "\n".join(
        f'<section id="{key}" aria-labelledby="{key}-title">\n'
        f'<h2 id="{key}-title">{text(name)}</h2>\n{content}\n</section>'
        for key, name, content in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<title>{text(title)} – hpgmn report</title>
<style>{_CSS}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the results</a>
<header>
<h1>{text(title)}</h1>
{about}
</header>
<main id="content">
{opening}
<nav aria-label="Sections"><ul>{links}</ul></nav>
{body}
</main>{f"<script>{script}</script>" if script else ""}
</body>
</html>
"""


def _policy(script: str) -> str:
    """What the browser may load: nothing from outside, and no script but this one."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if not script:
        return policy
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{policy}; script-src 'sha256-{digest}'"


def panel(picture: str, wide: str = "") -> str:
    """A picture on a white panel, which it keeps in dark mode.

    Args:
        picture: an ``<svg>`` element.
        wide: the name of a picture that would be too small on a phone and is scrolled there.
    """
    if wide:
        return (
            f'<figure class="panel wide" tabindex="0" aria-label="{text(wide)}">{picture}</figure>'
        )
    return f'<figure class="panel">{picture}</figure>'


def tiles(facts: Iterable[Row], kind: str = "") -> str:
    """Facts side by side.

    Args:
        facts: plain name, value and, if wanted, a note for each.
        kind: ``small`` for facts of less weight.
    """
    cells = "".join(
        f"<div><dt>{text(name)}</dt><dd><strong>{text(value)}</strong>"
        + "".join(f"<span>{text(note)}</span>" for note in notes)
        + "</dd></div>"
        for name, value, *notes in facts
    )
    return f'<dl class="{f"tiles {kind}".strip()}">{cells}</dl>'


def with_rest(name: str, rest: str) -> str:
    """The markup of a table's cell with a quiet line below its name.

    >>> with_rest("edge", "inside & out")
    'edge <span class="rest">inside &amp; out</span>'
    """
    return f'{text(name)} <span class="rest">{text(rest)}</span>'


def table(
    caption: str,
    head: Row,
    rows: Iterable[Sequence[Any]],
    foot: bool = False,
    show: Callable[[Any], str] = text,
) -> str:
    """A table whose first column heads its rows.

    Args:
        caption: what the table shows.
        head: the titles of the columns.
        rows: the cells; those after the first are set as numbers, to the right, unless there are
            two columns only.
        foot: whether the last row sums up the others.
        show: makes the markup of a cell; cells of plain text need none.
    """
    titles = "".join(f'<th scope="col">{text(title)}</th>' for title in head)
    lines = [
        f'<tr><th scope="row">{show(row[0])}</th>'
        + "".join(f"<td>{show(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    ]
    last = f"<tfoot>{lines.pop()}</tfoot>" if foot else ""
    kind = ' class="pairs"' if len(head) == 2 else ""
    return (
        f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0">'
        f"<table{kind}><caption>{text(caption)}</caption><thead><tr>{titles}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody>{last}</table></div>"
    )


_CSS = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1f2328; --quiet: #59636e; --line: #d8dee4; --soft: #f6f8fa;
  --link: #0b5cad; --alarm: #fff4e0; --alarm-line: #b35900;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181d; --ink: #e3e8ee; --quiet: #a0aab5; --line: #343c46; --soft: #1d232b;
    --link: #7db8f5; --alarm: #33270f; --alarm-line: #e0983b;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
    "Liberation Sans", Arial, sans-serif; overflow-wrap: anywhere;
}
h1 { margin: 0; font-size: clamp(1.6rem, 5vw, 2.25rem); line-height: 1.2; }
h2 { margin: 3rem 0 .75rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line);
  font-size: 1.35rem; line-height: 1.3; }
h3 { margin: 1.75rem 0 .5rem; font-size: 1.05rem; }
p { margin: .5rem 0; max-width: 44rem; }
section > ul { max-width: 46rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.quiet { color: var(--quiet); font-size: .925rem; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: .5rem; padding: .5rem; background: var(--paper); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr));
  gap: .75rem; margin: 1.25rem 0; }
.tiles div { padding: .8rem 1rem; border: 1px solid var(--line); border-radius: .5rem;
  background: var(--soft); }
.tiles dt { color: var(--quiet); font-size: .875rem; }
.tiles dd { margin: 0; }
.tiles strong { display: block; font-size: 1.3rem; font-weight: 650; line-height: 1.35;
  font-variant-numeric: tabular-nums; }
.tiles div:first-child { border-left: .3rem solid var(--link); }
.small { grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); }
.small strong { font-size: 1.1rem; }
.small div:first-child { border-left: 1px solid var(--line); }
.tiles span { color: var(--quiet); font-size: .85rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: 1.25rem 0 0; padding: 0;
  list-style: none; font-size: .925rem; }
.warnings { margin: 0; padding: .75rem 1rem .75rem 2rem; border-left: .3rem solid var(--alarm-line);
  border-radius: .25rem; background: var(--alarm); }
.panel { width: fit-content; max-width: 100%; margin: .75rem 0; padding: .75rem; overflow-x: auto;
  border: 1px solid var(--line); border-radius: .5rem; background: #ffffff; }
.panel svg { display: block; max-width: 100%; height: auto; }
.wide svg { max-width: max(100%, 34rem); }
.panel text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
  "Liberation Sans", Arial, sans-serif !important; }
.pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr));
  gap: .75rem; }
.pair .panel { width: auto; margin: 0; }
.pair svg { width: 100%; max-width: 34rem; }
.scroll { margin: .75rem 0; overflow-x: auto; }
table { border-collapse: collapse; font-size: .95rem; font-variant-numeric: tabular-nums; }
caption { padding: .25rem 0 .5rem; color: var(--quiet); font-size: .9rem; text-align: left; }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; overflow-wrap: normal; }
th:first-child { text-align: left; font-weight: 500; max-width: 20rem;
  overflow-wrap: break-word; }
thead th, thead th:first-child { border-bottom: 2px solid var(--line); font-weight: 650;
  vertical-align: bottom; }
tfoot th:first-child, tfoot td { border-top: 2px solid var(--line); border-bottom: 0;
  font-weight: 650; }
.pairs td, .pairs th { text-align: left; overflow-wrap: break-word; }
td:last-child, th:last-child { padding-right: 0; }
td, thead th:not(:first-child) { white-space: nowrap; }
.pairs td { white-space: normal; }
.rest { display: block; color: var(--quiet); font-size: .875rem; font-weight: 400; }
details { margin: .75rem 0; }
summary { cursor: pointer; color: var(--link); }
pre { margin: .75rem 0; padding: 1rem; overflow-x: auto; border: 1px solid var(--line);
  border-radius: .5rem; background: var(--soft); font: .9rem/1.5 ui-monospace, "SF Mono", Menlo,
    Consolas, "Liberation Mono", monospace; }
@media print { nav, .skip { display: none; } section { break-inside: avoid; } }
"""
