"""Predictions as a table."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.base.files import atomic_write
from hpgmn.graph import Array

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Predictions:
    """Classes and probabilities of nodes, averaged over the seeds of one split.

    Attributes:
        node_ids: (M,) the nodes' ids, or their positions in a graph without ids.
        labels: (M,) names of the predicted classes, None below the required confidence.
        confidence: (M,) the probability of the predicted class; empty of a regression.
        probabilities: (M, C) calibrated.
        class_names: C of them.
        split: whose models predict.
        seeds: how many were averaged; of an ensemble, members.
        num_new: nodes of the graph that the model was not trained on; None for the trained graph.
        of: the class by whose probability nodes are ranked; None if they are not.
        reasons: (M,) the main reason for that class, in words; None if nodes are not ranked.
        half_widths: of the prediction intervals of a regression, whose labels are numbers, by their
            coverage; None: infinite.
        threshold: the positive class of two and the probability from which it is predicted; None:
            the most likely class is.
        sets: (M, C) the classes that hold the true one with the required coverage; None without.
    """

    node_ids: Array
    labels: Array
    confidence: Array
    probabilities: Array
    class_names: tuple[str, ...]
    split: int
    seeds: int
    num_new: int | None
    of: str | None = None
    reasons: Array | None = None
    half_widths: Mapping[float, float | None] = field(default_factory=dict)
    sets: Array | None = None
    threshold: tuple[str, float] | None = None

    @property
    def intervals(self) -> dict[str, Array]:
        """(M,) the ends of a regression's intervals, such as "low_80" and "high_80"."""
        ends = {}
        for coverage, half in self.half_widths.items():
            width = math.inf if half is None else half
            ends[f"low_{100 * coverage:g}"] = self.labels - width
            ends[f"high_{100 * coverage:g}"] = self.labels + width
        return ends

    def to_table(self) -> pa.Table:
        """Return a pyarrow table: node_id, prediction, confidence and a probability per class.

        Of a regression: node_id, prediction and the ends of its intervals.
        """
        import pyarrow as pa

        columns: dict[str, Any]
        if not self.class_names:
            columns = {"node_id": self.node_ids, "prediction": self.labels}
            return pa.table(columns | self.intervals)
        columns = {
            "node_id": self.node_ids,
            "prediction": pa.array(self.labels.tolist(), pa.string()),
            "confidence": self.confidence,
        }
        for number, name in enumerate(self.class_names):
            columns[f"probability_{name}"] = self.probabilities[:, number]
        if self.sets is not None:
            names = np.asarray(self.class_names)
            columns["prediction_set"] = pa.array(["|".join(names[row]) for row in self.sets])
        if self.reasons is not None:
            columns["reason"] = pa.array(self.reasons.tolist(), pa.string())
        return pa.table(columns)

    def write(self, path: str | Path) -> None:
        """Write the table as FILE.csv or FILE.parquet; the write is atomic."""
        import pyarrow.csv
        import pyarrow.parquet

        target = Path(path)
        if target.suffix not in (".csv", ".parquet"):
            raise SettingError(f"The file must end in .csv or .parquet (got '{target}').")
        table = self.to_table()
        with atomic_write(target) as draft:
            if target.suffix == ".csv":
                pyarrow.csv.write_csv(table, draft)
            else:
                pyarrow.parquet.write_table(table, draft, write_page_checksum=True)


def ranked_class(
    top: int | None, of: str | None, names: tuple[str, ...], positive: Callable[[], int]
) -> int | None:
    """Return the class by which nodes are ranked, 0 of a regression; None if they are not."""
    remedy = Remedy("Give the number of nodes", option="top", value=50)
    if top is None:
        if of is not None:
            raise SettingError("A class to rank by is given, but not how many nodes.", remedy)
        return None
    if top < 1:
        raise SettingError(f"top must be at least 1 (got {top}).", remedy)
    if of is None and len(names) in (0, 2):
        return positive() if names else 0
    if of is None:
        raise SettingError(
            f"With {len(names)} classes, nodes are ranked by one of them.",
            Remedy("Name it", option="of", value=names[0]),
        )
    if of not in names:
        raise SettingError.unknown("class", of, names)
    return names.index(of)


def half_widths(metrics: Mapping[str, Any], split: int) -> dict[float, float | None]:
    """Return the half widths of a regression's intervals by coverage, from ``metrics.json``."""
    intervals = metrics["intervals"]
    widths = intervals["half_width"][metrics["splits"].index(split)]
    return dict(zip(intervals["nominal"], widths, strict=True))


def check_options(
    has_classes: bool, min_confidence: float, coverage: float | None, about_classes: bool
) -> None:
    """Refuse options of a prediction that are out of range, or about classes where none are.

    Args:
        about_classes: whether there are others that only classes have.
    """
    if not 0 <= min_confidence <= 1:
        raise SettingError(
            f"min_confidence must be 0 to 1 (got {min_confidence:g}).",
            Remedy("Give a probability", option="min_confidence", value=0.9),
        )
    if not has_classes and (min_confidence or coverage or about_classes):
        raise SettingError(
            "The model predicts numbers: it has no classes, thresholds or confidence.",
            "Leave out such options; predictions have intervals",
        )
    if coverage is not None and not 0 < coverage < 1:
        raise SettingError(
            f"coverage must be above 0 and below 1 (got {coverage:g}).",
            Remedy("Give a probability", option="coverage", value=0.9),
        )


def reserved_sets(
    probabilities: Array,
    reserved: Array,
    labels: Array,
    class_names: Sequence[str],
    coverage: float,
    *,
    by_class: bool,
) -> Array:
    """Return (M, C) the classes in the set of each node.

    Args:
        reserved: (n, C) probabilities of the nodes reserved for it.
        labels: (n,) their classes.
    """
    from hpgmn.evaluation.prediction_sets import lowest_probabilities, prediction_sets

    lowest = lowest_probabilities(reserved, labels, coverage, by_class=by_class)
    always = [name for name, low in zip(class_names, lowest, strict=True) if low < 0]
    if np.isneginf(lowest).any():
        logger.warning(
            "Too few of the %d reserved nodes for a coverage of %g: every set holds %s.",
            *(labels.size, coverage, ", ".join(always)),
        )
    return prediction_sets(probabilities, lowest)
