"""A bank's tables, generated: accounts, and transfers whose columns show which accounts are mules.

A mule receives stolen money and forwards it. Neither the columns of its account nor the number of
its transfers show that. What shows are amounts, kinds, hours and dates of its transfers, and less
so its partners: some money goes through several mules. Sellers, who receive large amounts in short
campaigns, and night workers resemble mules in part.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from hpgmn.base.errors import SettingError
from hpgmn.graph.edges import Array

BankTable: TypeAlias = dict[str, list[Any]]
"""Column → values: text, numbers or None."""

_ACCOUNTS, _NEW_ACCOUNTS, _TRANSFERS, _NEW_TRANSFERS = 5000, 200, 25_000, 8
_MULES, _CHAINED, _UNLABELLED = 0.03, 0.14, 0.4
_START, _DECEMBER, _END = (
    float((np.datetime64(date) - np.datetime64("1970-01-01")) / np.timedelta64(1, "D"))
    for date in ("2025-01-01", "2025-12-01", "2026-01-01")
)
_KINDS = ("transfer", "card", "instant", "cash", "salary", "standing order")
_USUAL_KINDS, _MULE_KINDS = (0.34, 0.3, 0.12, 0.08, 0.08, 0.08), (0.3, 0.05, 0.5, 0.15, 0, 0)
_USUAL_HOURS = np.array([1] * 6 + [4, 10, *[14] * 10, 12, 12, 10, 8, 5, 3], float)
_NIGHT_HOURS = np.array([10] * 6 + [3] * 17 + [8], float)
_COUNTRIES, _COUNTRY_SHARES = ("DE", "AT", "CH", "FR", "PL"), (0.7, 0.1, 0.08, 0.07, 0.05)
_SEGMENTS = ("private", "student", "business", "premium")


def bank_transfers(
    seed: int = 0, *, tomorrow: bool = False, truth: bool = False
) -> tuple[BankTable, BankTable]:
    """Generate a table of 5,000 bank accounts and one of their 25,000 transfers in a year.

    3 % of the accounts are mules, 40 % have no label in column ``fraud``. Both tables are as
    :func:`hpgmn.from_tables` takes them, with ``label="fraud"``.

    Args:
        seed: of all random numbers.
        tomorrow: return the 200 accounts opened last instead, without labels, and the transfers
            between them and the others; to be added to the others' tables.
        truth: fill in every label, for the evaluation of predictions.

    >>> accounts, transfers = bank_transfers(0)
    >>> len(accounts["id"]), list(transfers)
    (5000, ['from', 'to', 'amount', 'kind', 'time'])
    """
    if not isinstance(seed, int) or seed < 0:
        raise SettingError(f"seed must be a whole number of at least 0 (got {seed!r}).", "Use 0")
    random = np.random.default_rng(seed)
    total = _ACCOUNTS + _NEW_ACCOUNTS
    is_new = np.arange(total) >= _ACCOUNTS
    is_mule = _draw_share(_MULES, is_new, random)
    recent = random.random(total) < 0.15
    opened = _START - random.exponential(1500, total)
    opened[recent] = random.uniform(_START, _DECEMBER, int(recent.sum()))
    opened[is_new] = random.uniform(_DECEMBER, _END - 14, _NEW_ACCOUNTS)
    opened = np.floor(np.sort(opened))

    source, target = _ends(is_new, is_mule, random)
    amount, kind, time = _transfers(source, target, is_mule, opened, random)
    is_known = _draw_share(1 - _UNLABELLED, is_mule, random)

    chosen = np.flatnonzero(is_new if tomorrow else ~is_new)
    ids = [f"A{number:05d}" for number in range(1, total + 1)]
    accounts: BankTable = {"id": ids} | _accounts(opened, random)
    fraud = np.where(is_mule, "yes", "no").tolist()
    if not tomorrow or truth:
        accounts["fraud"] = [
            word if truth or known else None for word, known in zip(fraud, is_known, strict=True)
        ]
    nodes = {name: [values[row] for row in chosen] for name, values in accounts.items()}
    rows = np.flatnonzero((is_new[source] | is_new[target]) == tomorrow)
    rows = rows[np.argsort(time[rows], kind="stable")]
    edges: BankTable = {
        "from": [ids[row] for row in source[rows]],
        "to": [ids[row] for row in target[rows]],
        "amount": np.maximum(amount[rows], 0.5).round(2).tolist(),
        "kind": [_KINDS[row] for row in kind[rows]],
        "time": _as_text(time[rows], "s"),
    }
    return nodes, edges


def _draw_share(share: float, group: Array, random: np.random.Generator) -> Array:
    """Draw the same share of both groups."""
    is_drawn = np.zeros(len(group), bool)
    for members in (np.flatnonzero(~group), np.flatnonzero(group)):
        is_drawn[random.choice(members, round(share * len(members)), replace=False)] = True
    return is_drawn


def _ends(is_new: Array, is_mule: Array, random: np.random.Generator) -> tuple[Array, Array]:
    """Draw source and target of each transfer; the number of them does not tell mules."""
    old, new = np.flatnonzero(~is_new), np.flatnonzero(is_new)
    activity = random.lognormal(0, 0.6, len(is_new))
    share = activity[old] / activity[old].sum()
    popularity = share * np.where(is_mule[old], 1 - _CHAINED, 1)
    source = random.choice(old, _TRANSFERS, p=share)
    target = random.choice(old, _TRANSFERS, p=popularity / popularity.sum())
    again = random.choice(_TRANSFERS, (2, _TRANSFERS // 30))
    source[again[0]], target[again[0]] = source[again[1]], target[again[1]]
    count = _NEW_TRANSFERS * len(new)
    is_paid = random.random(count) < 0.5
    member, other = random.choice(new, count), random.choice(old, count, p=share)
    source = np.append(source, np.where(is_paid, other, member))
    target = np.append(target, np.where(is_paid, member, other))
    # Some of what mules forward goes to other mules, who are paid less often by others.
    mules = np.flatnonzero(is_mule & ~is_new)
    is_chain = is_mule[source] & ~is_new[target] & (random.random(len(source)) < _CHAINED)
    target[is_chain] = random.choice(mules, int(is_chain.sum()))
    is_loop = source == target
    target[is_loop] = (target[is_loop] + 1) % len(old)
    return source, target


def _transfers(
    source: Array, target: Array, is_mule: Array, opened: Array, random: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Draw amount, kind and time (in days since 1970) of each transfer."""
    count, total = len(source), len(is_mule)
    is_seller, is_awake = random.random(total) < 0.04, random.random(total) < 0.1
    kind = random.choice(len(_KINDS), count, p=_USUAL_KINDS)
    scale = np.array([4.6, 3.4, 4.2, 4.8, 7.6, 5.2])
    spread = np.array([1.2, 0.9, 1.2, 0.9, 0.3, 0.8])
    amount = random.lognormal(scale[kind], spread[kind])
    earliest = np.maximum(np.maximum(opened[source], opened[target]), _START)
    day = np.floor(earliest + (_END - earliest) * random.random(count))
    is_night = is_awake[source] | is_awake[target]

    # Campaigns: of sellers, and of mules, some of which hide most of it among usual transfers.
    campaign = np.maximum(opened, _START)
    campaign = campaign + (_END - 14 - campaign).clip(0) * random.random(total)
    share = np.where(is_mule, random.uniform(0.6, 1, total), np.where(is_seller, 0.7, 0.0))
    is_campaign = random.random(count) < share[target]
    size = int(is_campaign.sum())
    length = np.where(is_mule[target[is_campaign]], 6, 25)
    later = random.exponential(1, size) * length
    day[is_campaign] = np.floor(campaign[target[is_campaign]] + later).clip(None, _END - 1)
    kind[is_campaign] = random.choice(len(_KINDS), size, p=_MULE_KINDS)
    amount[is_campaign] = random.lognormal(6.3, 0.5, size)
    is_night = np.where(is_campaign, is_mule[target] & (random.random(count) < 0.7), is_night)
    time = np.maximum(day, earliest) + _hours(is_night, random)

    # Mules forward what they received within hours, less their share.
    received = np.flatnonzero(is_campaign & is_mule[target])
    received = received[np.argsort(target[received], kind="stable")]
    first = np.searchsorted(target[received], np.arange(total))
    number = np.searchsorted(target[received], np.arange(total), side="right") - first
    is_forward = ~is_campaign & (random.random(count) < share[source]) & is_mule[source]
    forwards = np.flatnonzero(is_forward & (number[source] > 0))
    pick = (random.random(len(forwards)) * number[source[forwards]]).astype(int)
    origin = received[first[source[forwards]] + pick]
    is_open = time[origin] >= earliest[forwards]
    forwards, origin = forwards[is_open], origin[is_open]
    time[forwards] = time[origin] + random.exponential(0.3, len(forwards))
    amount[forwards] = amount[origin] * random.uniform(0.5, 0.95, len(forwards))
    kind[forwards] = random.choice(len(_KINDS), len(forwards), p=_MULE_KINDS)
    return amount, kind, np.minimum(time, _END - 1e-4)


def _hours(is_night: Array, random: np.random.Generator) -> Array:
    """Draw times of the day, as fractions."""
    usual = random.choice(24, len(is_night), p=_USUAL_HOURS / _USUAL_HOURS.sum())
    night = random.choice(24, len(is_night), p=_NIGHT_HOURS / _NIGHT_HOURS.sum())
    hours: Array = (np.where(is_night, night, usual) + random.random(len(is_night))) / 24
    return hours


def _accounts(opened: Array, random: np.random.Generator) -> BankTable:
    """Draw the columns of accounts, none of which depends on the label."""
    count = len(opened)
    code = random.choice(random.integers(1000, 99_999, 300), count)
    age = np.clip(random.gamma(6, 8, count), 18, 95).astype(int)
    has_age = random.random(count) >= 0.03
    segment = random.choice(_SEGMENTS, count, p=(0.7, 0.12, 0.1, 0.08))
    return {
        "opened": _as_text(opened, "D"),
        "country": random.choice(_COUNTRIES, count, p=_COUNTRY_SHARES).tolist(),
        "postal_code": [f"{number:05d}" for number in code],
        "age": [value if has else None for value, has in zip(age.tolist(), has_age, strict=True)],
        "segment": segment.tolist(),
        "balance": random.lognormal(7.5, 1.2, count).round(2).tolist(),
    }


def _as_text(days: Array, unit: str) -> list[str]:
    """Write days since 1970 as dates ("D"), or with the time of the day ("s")."""
    seconds = np.floor(days * 86_400).astype("datetime64[s]")
    texts: list[str] = seconds.astype(f"datetime64[{unit}]").astype(str).tolist()
    return [text.replace("T", " ") for text in texts]
