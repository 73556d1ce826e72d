"""The node explorer of a run's page: type a node's id, see its class and why it has it.

The page holds the data as JSON and one script that looks nodes up in it. The script is allowed by
its hash; nothing else runs. Text from data becomes text in the page, never markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hpgmn.base.errors import HPGMNError
from hpgmn.base.parsing import read_json
from hpgmn.explain.dossier import as_json
from hpgmn.report.page import text
from hpgmn.report.reading import REMEDY
from hpgmn.runs.folder import EXPLORER_FILE

_NEEDED = ("split", "seeds", "num_nodes", "classes", "ids", "counts_as", "is_known", "nodes")

_LONGEST = 40  # letters of an id in a sentence, as in the script


def explorer(folder: Path) -> list[tuple[str, str, str]]:
    """The section as a list of one; of none where the run has written nothing to explore."""
    path = folder / EXPLORER_FILE
    if not path.is_file():
        return []
    content = _read(path)
    return [("explorer", "Node explorer", _section(content))] if content["nodes"] else []


def explorer_script(sections: list[tuple[str, str, str]]) -> str:
    """The script that a page with these sections runs; none without the explorer."""
    return _resource("explorer.js") if any(key == "explorer" for key, _, _ in sections) else ""


def _resource(name: str) -> str:
    return files("hpgmn.report").joinpath(name).read_text(encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
        missing = [name for name in _NEEDED if name not in content]
    except (OSError, ValueError, TypeError) as error:
        raise HPGMNError(f"The file {path} cannot be read ({error}). {REMEDY}") from None
    if missing:
        raise HPGMNError(f"The file {path} lacks {', '.join(missing)}. {REMEDY}")
    return dict(content)


def _section(content: Mapping[str, Any]) -> str:
    return f"""<style>{_resource("explorer.css")}</style>
<p>{_about(content)}</p>
<noscript><p>Looking nodes up needs scripts, which are switched off here. In a terminal,
<code>hpgmn explain RUN --node ID</code> says the same about any node.</p></noscript>
<div class="explorer" id="explorer-tool" hidden>
<form id="explorer-form" role="search" aria-label="Nodes">
<label for="explorer-input">Node id <input id="explorer-input" list="explorer-options"
autocomplete="off" autocapitalize="off" spellcheck="false"></label>
<datalist id="explorer-options"></datalist>
<button type="submit">Show the node</button>
</form>
{_examples(content)}
<p id="explorer-status" class="unseen" role="status"></p>
<div id="explorer-result"></div>
</div>
<script type="application/json" id="explorer-data">{as_json(content)}</script>"""


def _about(content: Mapping[str, Any]) -> str:
    """Whose answers these are, which nodes are listed and for how many neighbours were weighed."""
    seeds = content["seeds"]
    over = f", the mean of {seeds} seeds" if seeds > 1 else ""
    listed, total = len(content["nodes"]), content["num_nodes"]
    words = [f"The answers of split {text(content['split'])}{over}, as <code>hpgmn predict</code>"]
    words.append("and <code>hpgmn explain</code> give them.")
    if listed == total:
        words.append(f"All {total:,} nodes are listed.")
    else:
        words.append(
            f"{listed:,} of {total:,} nodes are listed: a fixed sample of every predicted class, "
            "of right and wrong predictions alike."
        )
    weighed = sum("support" in node for node in content["nodes"])
    if 0 < weighed < listed:
        words.append(f"What each neighbour adds was computed for {weighed:,} of them.")
    return " ".join(words)


def _examples(content: Mapping[str, Any]) -> str:
    """Links to a few nodes worth a look."""
    nodes, found = content["nodes"], {}
    judged = [n for n, one in enumerate(nodes) if one["role"] in ("val", "test")]
    wrong = [n for n in judged if nodes[n]["label"] not in (None, nodes[n]["prediction"])]
    turned = [n for n, one in enumerate(nodes) if one.get("turning")]
    unsure = min(range(len(nodes)), key=lambda n: max(nodes[n]["probabilities"]))
    if wrong:
        found[wrong[0]] = "predicted wrongly"
    if turned:
        found.setdefault(min(turned, key=lambda n: _fewest(nodes[n])), "decided by few neighbours")
    found.setdefault(unsure, "the least sure")
    links = [f"{_link(content['ids'][n])} ({words})" for n, words in found.items()]
    return f"<p>For example: {', '.join(links)}.</p>"


def _fewest(node: Mapping[str, Any]) -> int:
    return len(node["turning"]["neighbors"])


def _link(name: str) -> str:
    shown = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    return f'<a href="#node={quote(name, safe="")}">{text(shown)}</a>'
