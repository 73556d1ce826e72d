"""The page at ``/``: search, ranked list and node explorer over the live graph.

The page itself holds no data: its script fetches them from the routes below ``/page``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.responses import HTMLResponse, JSONResponse, Response

from hpgmn.base.errors import count_noun, format_time
from hpgmn.base.tasks import is_known
from hpgmn.explain.explorer import explained_node_data
from hpgmn.explain.node import find_node
from hpgmn.report.rendering import (
    ReportData,
    environment,
    format_count,
    format_value,
    hash_source,
    resource,
)
from hpgmn.runs.outputs import roles
from hpgmn.service.live import LiveRun
from hpgmn.service.state import ServedRun

MOST_MATCHES = 20
"""Ids that a search returns."""

_PACKAGE = "hpgmn.service"


def page_router(served: ServedRun) -> APIRouter:
    """Return the routes of the page; ``/`` alone needs no token."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def get_page() -> Response:
        content, policy = render_page()
        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }
        return HTMLResponse(content, headers=headers)

    async def reply(function: Callable[..., Any], *arguments: Any) -> Response:
        content = await served.compute(function, served.require(), *arguments)
        return JSONResponse(content, headers={"Cache-Control": "no-store"})

    @router.get("/page/summary")
    async def get_summary() -> Response:
        return await reply(summary_data)

    @router.get("/page/search")
    async def get_matches(q: str = "") -> Response:
        return await reply(_matches, q)

    @router.get("/page/node")
    async def get_node(id: str) -> Response:
        return await reply(node_data, id)

    return router


@cache
def render_page() -> tuple[str, str]:
    """Return the page and its content security policy, which allows its own parts alone."""
    script = resource("explorer.js") + resource("page.js", _PACKAGE)
    styles = resource("style.css") + resource("explorer.css") + resource("page.css", _PACKAGE)
    page = environment(_PACKAGE).get_template("page.html.j2")
    policy = (
        f"default-src 'none'; script-src {hash_source(script)}; style-src {hash_source(styles)}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.render(script=script, styles=styles), policy


def summary_data(live: LiveRun) -> dict[str, Any]:
    """Return the facts about run and graph, and the classes to rank by."""
    metrics, names = live.run.metrics, live.class_names
    data = ReportData({}, metrics, (), names, np.zeros((0, 0)))
    runs = f"mean of {count_noun(data.num_runs, 'run')}" if data.num_runs > 1 else "single run"
    trained = live.run.graph.full
    grown = (live.num_nodes - trained.num_nodes, live.num_edges - trained.num_listed_edges)
    notes = [f"{format_count(added)} added since training" for added in grown]
    facts = [
        (f"Test {data.metric_name}", data.format_mean(metrics, "test_score"), runs),
        ("Nodes", format_count(live.num_nodes), notes[0]),
        ("Edges", format_count(live.num_edges), notes[1]),
        ("Trained", format_time(metrics["created"]), f"hpgmn {metrics['version']}"),
    ]
    return {
        "title": f"{metrics['model']} on {metrics['graph']}",
        "facts": facts,
        "classes": names,
        "class": live.positive or (names[0] if names else None),  # to rank by at first
    }


def search_ids(ids: Iterable[str], text: str, most: int = MOST_MATCHES) -> list[str]:
    """Return ids that start with a text, then others that contain it; capitals do not matter.

    >>> search_ids(["xa", "Ab", "b", "a"], "a")
    ['a', 'Ab', 'xa']
    """
    wanted = text.strip().lower()

    def rank(name: str) -> tuple[bool, bool]:
        lowered = name.lower()
        return lowered != wanted, not lowered.startswith(wanted)

    return sorted((name for name in ids if wanted in name.lower()), key=rank)[:most]


def _matches(live: LiveRun, text: str) -> dict[str, Any]:
    ids = search_ids(live.ids, text, MOST_MATCHES + 1)
    return {"ids": ids[:MOST_MATCHES], "has_more": len(ids) > MOST_MATCHES}


def node_data(live: LiveRun, node_id: str) -> dict[str, Any]:
    """Return what the explorer shows about a node of the current graph."""
    position = find_node(live.graph, node_id)  # proposes similar ids
    explanation = live.explain(node_id)
    graph, names = live.graph, live.class_names
    content = explained_node_data(explanation, graph, names)
    trained, label = live.run.graph, graph.y[position]
    is_new = position >= trained.num_nodes
    row = content["nodes"][0]
    row["role"] = "unlabelled" if is_new else str(roles(trained.split(live.split))[position])
    row["label"] = None
    if is_known(label):
        row["label"] = int(label) if names else format_value(float(label))
    if not names:
        [prediction] = live.predict([node_id])
        row["value"] = format_value(prediction["prediction"])
    return content
