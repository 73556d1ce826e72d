"""The members of the portfolio: what is trained where no model or settings are named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.base.settings import make_settings, read_yaml, settings_dict, settings_names, to_plain
from hpgmn.graph import Graph
from hpgmn.models import MODELS, find_model, has_settings_for, settings_for
from hpgmn.statistics.settings import TARGET_STATISTICS
from hpgmn.training.ensemble import ENSEMBLE

TIME_LIMIT = 300.0
"""Seconds for the training of members."""
LARGE_NODES = 20_000
"""A graph with more nodes gets the portfolio of large graphs."""


class Member(NamedTuple):
    """A member of a portfolio: its name, the model, and settings over the model's defaults."""

    name: str
    model: str
    settings: dict[str, Any]


@cache
def _content() -> dict[str, Any]:
    return read_yaml(Path(__file__).with_name("portfolio.yaml"))


@cache
def portfolio_members(portfolio: str = "members") -> tuple[Member, ...]:
    """Return the members of a list of ``portfolio.yaml``: "members", "regression" or "large"."""
    content = _content()
    members = []
    for row in content[portfolio]:
        if "model" not in row:  # a name of the usual list
            row = next(usual for usual in content["members"] if usual["name"] == row["name"])
        parts = [content["blocks"][name] for name in row.get("blocks", ())]
        settings: dict[str, Any] = {}
        for part in (*parts, row.get("settings", {})):
            settings |= part
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in settings.items()
        }
        members.append(Member(row["name"], row["model"], values))
    return tuple(members)


def members_for(graph: Graph, source: str = "") -> tuple[tuple[Member, ...], str | None]:
    """Return the members to train on a graph, and a remark where they are not the usual ones.

    Args:
        source: the name of a dataset, whose shipped settings come first.
    """
    shipped = tuple(
        Member(f"{model}-shipped", model, settings_for(source, model))
        for model in MODELS
        if has_settings_for(source, model) and model not in _content()["slow"]
    )
    first = portfolio_members("regression") if graph.is_regression else ()
    usual = tuple({member.name: member for member in (*first, *portfolio_members())}.values())
    members = _for_task(graph, _for_types(graph, usual))
    if graph.num_nodes > LARGE_NODES:
        large = _for_task(graph, _for_types(graph, portfolio_members("large")))
        return shipped + large, (
            f"The graph has more than {LARGE_NODES:,} nodes: training {len(large)} members instead "
            f"of {len(members)}, with mini-batches and fewer epochs."
        )
    if graph.directed and (graph.is_weighted or graph.has_one_way_edges):
        return shipped + members, None
    different: dict[str, Member] = {}
    for member in members:
        settings = dict(member.settings)
        if settings.get("neighbors") in ("out", "in"):
            settings["neighbors"] = "undirected"
        different.setdefault(repr((member.model, sorted(settings.items()))), member)
    return shipped + tuple(different.values()), (
        f"The graph is symmetric: skipping {len(members) - len(different)} of {len(members)} "
        "members that differ only in edge direction."
    )


def _for_task(graph: Graph, members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Let members of a regression that count neighbours by bins read their mean targets, too."""
    if not graph.is_regression:
        return members
    changed = []
    for member in members:
        used = member.settings.get("statistics", ())
        if "class_counts" in used:
            settings = member.settings | {"statistics": (*used, *TARGET_STATISTICS)}
            member = member._replace(settings=settings)
        changed.append(member)
    return tuple(changed)


def _for_types(graph: Graph, members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Insert a twin of the first HP-GMN that merges edge types, on a graph that has some."""
    models = [member.model for member in members]
    if not graph.edge_type_names or "hpgmn" not in models:
        return members
    after = models.index("hpgmn") + 1
    name, model, settings = members[after - 1]
    twin = Member(f"{name}-merged-types", model, settings | {"edge_types": "merged"})
    return (*members[:after], twin, *members[after:])


def with_settings(members: Sequence[Member], settings: Mapping[str, Any]) -> tuple[Member, ...]:
    """Override settings of the members whose models have them; at least one must."""
    kinds = {member.model: find_model(member.model).settings for member in members}
    known = {model: settings_names(kind) for model, kind in kinds.items()}
    names = sorted(set().union(*known.values()))
    for name in settings:
        if name not in names:
            raise SettingError.unknown("setting", name, names)
    changed = []
    for member in members:
        given = {name: value for name, value in settings.items() if name in known[member.model]}
        typed = settings_dict(make_settings(kinds[member.model], given))
        values = {name: typed[name] for name in given}
        changed.append(member._replace(settings=member.settings | values))
    return tuple(changed)


def selected_members(
    selection: Mapping[str, Any], graph: Graph, source: str
) -> tuple[tuple[Member, ...], str | None]:
    """Return the members that a run's selection names, and a remark about them."""
    members, note = members_for(graph, source)
    requested = selection.get("members")
    if requested:
        by_name = {member.name: member for member in (*portfolio_members(), *members)}
        for name in requested:
            if name not in by_name:
                raise SettingError.unknown("member", name, by_name)
        members, note = tuple(by_name[name] for name in dict.fromkeys(requested)), None
    return with_settings(members, selection.get("settings") or {}), note


def ensemble_selection(time_limit: float | None = None) -> dict[str, Any]:
    """Return the entry ``selection`` of a run that combines all members of the portfolio."""
    if time_limit is not None and not 0 < time_limit < math.inf:
        remedy = Remedy("Give a number of seconds", option="time_limit", value=300)
        raise SettingError(f"The time limit must be above 0 (got {time_limit:g}).", remedy)
    return {"portfolio": ENSEMBLE, "time_limit": time_limit or TIME_LIMIT}


def portfolio_selection(
    source: str,
    *,
    model: str | None,
    config: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    portfolio: bool,
    ensemble: bool,
    single: bool,
    members: str | Sequence[str] | None,
    time_limit: float | None,
) -> dict[str, Any]:
    """Return the entry ``selection`` of a run that trains the portfolio; empty for other runs.

    The portfolio is trained on request, and where nothing else gives a model or settings.

    Args:
        source: the name or path of the graph.
        model: as named by the user.
        config: the content of the config, if one is named.
    """
    if ensemble and single:
        raise SettingError(
            "An ensemble and a single model exclude each other.",
            Remedy("Keep the best member", option="single", value=True)
            | Remedy("Combine members", option="ensemble", value=True),
        )
    earlier = config.get("selection") or {} if config.get("model") == ENSEMBLE else {}
    named = model not in (None, ENSEMBLE) or (bool(config) and not earlier)
    is_requested = ensemble or single or bool(members) or model == ENSEMBLE or bool(earlier)
    if is_requested and not portfolio:
        raise SettingError(
            "Without the portfolio there are no members to choose from or to combine.",
            Remedy("Leave this out", option="portfolio", value=False)
            | "Leave out ensemble, single and members",
        )
    if is_requested and named:
        raise SettingError(
            "The portfolio selects model and settings itself.",
            Remedy("Leave out model and config") | Remedy("Name members", option="members"),
        )
    is_default = portfolio and not named and not settings and not has_settings_for(source)
    if not is_requested and not is_default:
        if time_limit is not None:
            raise SettingError(
                "Only the training of several members has a time limit.",
                Remedy("Train an ensemble", option="ensemble", value=True) | "Leave it out",
            )
        return {}
    selection = ensemble_selection(time_limit) | earlier
    if single:
        selection["portfolio"] = "single"
    if isinstance(members, str):
        members = [name.strip() for name in members.split(",") if name.strip()]
    values = {name: to_plain(value) for name, value in (settings or {}).items()}
    requested = {"time_limit": time_limit, "members": list(members or ()), "settings": values}
    return selection | {name: value for name, value in requested.items() if value}
