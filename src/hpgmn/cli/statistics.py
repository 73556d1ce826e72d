"""``hpgmn statistics``: write the local statistics of every node as arrays."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.files import atomic_write
from hpgmn.cli.console import say
from hpgmn.cli.options import GraphSource, Settings, column_options


@column_options()
def statistics(
    graph: GraphSource,
    *,
    out_file: Annotated[Path, typer.Option("--out", help="FILE.npz.")],
    labels: Annotated[
        str,
        typer.Option(help="true: the labels of the graph; estimated: pseudo-labels of split 0."),
    ] = "true",
    set_: Settings = None,
    columns: dict[str, Any],
) -> None:
    """The local statistics of every node as arrays: class_counts, class_means, diffusion.

    With --set neighbors=both there are two of each, such as class_counts_out, class_counts_in; with
    edge types one of each, such as class_counts_out_type0.
    """
    import numpy as np
    import torch

    from hpgmn.base.settings import make_settings, parse_assignments
    from hpgmn.graph.datasets import DATASETS, load
    from hpgmn.models import read_config, settings_for
    from hpgmn.models.hpgmn import HPGMNSettings
    from hpgmn.statistics import LocalStatistics, StatisticsSettings
    from hpgmn.training.trainer import estimate_labels

    if labels not in ("true", "estimated"):
        raise SettingError.unknown("value for --labels:", labels, ("true", "estimated"))
    if out_file.suffix != ".npz":
        raise SettingError(f"--out must end in .npz (got '{out_file}').")
    if not out_file.parent.is_dir():
        raise HPGMNError(
            f"The folder {out_file.parent} does not exist.", "Create it, or choose another --out."
        )
    loaded = load(graph, **columns, log=say)
    paper = read_config("paper")["settings"]
    plain_keys = {info.name for info in dataclasses.fields(StatisticsSettings)}
    # The paper's definitions, unscaled; only the label estimator is the dataset's own.
    shipped = settings_for(graph if graph in DATASETS else None)
    values = {key: value for key, value in shipped.items() if key.startswith("estimator_")}
    values |= {key: value for key, value in paper.items() if key in plain_keys}
    values["statistics"] = ["class_counts", "class_means", "diffusion"]
    if values.get("neighbors", HPGMNSettings().neighbors) == "both":
        values["neighbors"] = "undirected"  # two arrays of each only on request
    settings = make_settings(HPGMNSettings, values | parse_assignments(set_ or []))
    if settings.refinement:
        raise SettingError(
            "Statistics are computed from labels or from the label estimator's pseudo-labels, "
            "not from those of a first training.",
            Remedy("Switch refinement off", setting="refinement", value=False),
        )
    known, shares = loaded.y, None
    if labels == "estimated":
        known, shares, _ = estimate_labels(loaded, settings)
    builder = LocalStatistics(loaded)
    classes = max(loaded.num_classes, 1)
    built = builder.build(
        known[None], classes, [settings], None if shares is None else shares[None]
    )
    nodes = torch.arange(loaded.num_nodes)
    size = sum(statistic.width for statistic in built.values()) * loaded.num_nodes * 4
    if size > 8 * 2**30:
        raise HPGMNError(
            f"These arrays would take {size / 2**30:.0f} GiB.",
            "Select fewer with --set statistics=class_counts, or use hpgmn.LocalStatistics, "
            "which never builds them.",
        )
    arrays: dict[str, Any] = {
        name: statistic.rows(nodes).numpy() for name, statistic in built.items()
    }
    arrays["labels"] = known
    with atomic_write(out_file) as draft:
        np.savez_compressed(draft, **arrays)
    sizes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    say(f"{out_file}: {sizes}")
