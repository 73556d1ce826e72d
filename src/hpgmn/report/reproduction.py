"""How to reproduce a run: its command line, versions, machine and cost."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from hpgmn.base.errors import MISSING, format_duration, format_setting
from hpgmn.report.rendering import ReportData, facts, mapping, number, printable
from hpgmn.tables.options import column_option
from hpgmn.training.ensemble import ENSEMBLE


def train_command(config: Mapping[str, Any]) -> list[str]:
    """Return the words of the command line that repeats a run."""
    words = ["hpgmn", "train", str(config["graph"])]
    is_ensemble, selection = config["model"] == ENSEMBLE, mapping(config.get("selection"))
    words += [] if is_ensemble else ["--model", str(config["model"])]
    words += ["--metric", str(config["metric"])]
    words += ["--splits", ",".join(str(split) for split in config["splits"])]
    words += ["--seeds", str(config["seeds"])]
    for name in ("first_seed", "positive", "threshold", "protocol", "device"):
        if config.get(name):
            words += [f"--{name.replace('_', '-')}", str(config[name])]
    for name, value in mapping(config.get("tables")).items():
        words += shlex.split(column_option(name, value))
    settings = mapping(selection.get("settings")) if is_ensemble else config["settings"]
    for name, value in settings.items():
        words += ["--set", f"{name}={format_setting(value)}"]
    if is_ensemble:
        members, limit = selection.get("members"), selection.get("time_limit")
        words += ["--members", ",".join(members)] if members else []
        words += [] if limit is None else ["--time-limit", f"{limit:g}"]
        words.append("--ensemble")
    words += [f"--{name}" for name in ("deterministic", "refit", "conformal") if config.get(name)]
    return [*words, "--no-calibration"] if config.get("calibrate") is False else words


def reproduction(data: ReportData) -> tuple[str, list[tuple[str, str]]]:
    """Return the command, and the rows about versions, machine and cost."""
    from markupsafe import Markup

    words = [shlex.quote(word) for word in train_command(data.config)]
    lines = [" ".join(words[:3])]
    for start in range(3, len(words), 2):
        option = " ".join(words[start : start + 2])
        if len(lines[-1]) + len(option) > 87:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {option}"
    metrics = data.metrics
    rows = [("hpgmn", str(metrics.get("version") or data.config.get("version") or MISSING))]
    rows += facts(mapping(metrics.get("hardware")))
    for key, name in (
        ("seconds", "Time, total"),
        ("seconds_statistics", "Time, statistics"),
        ("seconds_training", "Time, training"),
    ):
        if not math.isnan(number(metrics.get(key))):
            rows.append((name, format_duration(metrics[key])))
    if not math.isnan(number(metrics.get("peak_memory_mb"))):
        rows.append(("Peak memory", f"{metrics['peak_memory_mb']:,.0f} MB"))
    # A quoted word may contain line breaks, which belong to the command.
    code = Markup("\n").join(printable(part) for line in lines for part in line.split("\n"))
    return code, rows
