"""An ensemble of trained models, and what every trained model that predicts has in common."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.calibration import calibrated_logits, calibrated_probabilities, from_temperatures
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import (
    RESTORE,
    RUN_FORMAT,
    check_format,
    damaged_file,
    digest,
    file_checksum,
    verify_run_checksum,
    with_checksum,
    write_text,
)
from hpgmn.base.metrics import mean_logits
from hpgmn.base.parsing import read_json
from hpgmn.graph import Array, Graph
from hpgmn.models import is_custom
from hpgmn.models.stage import Replica
from hpgmn.training.saved import MODEL_FILE, SavedModel, SharedStatistics, read_calibration

ENSEMBLE = "ensemble"
"""The name of the model in configs and metrics."""
ENSEMBLE_FILE, MEMBERS_FOLDER = "ensemble.json", "members"

Weights = Mapping[str, Sequence[float]]
"""For each member the weight of each of its replicas; those of a split add up to one over all
members and seeds."""


class Predictor(Protocol):
    """A trained model as predictions, scores, explanations and reports use it: see SavedModel."""

    metadata: dict[str, Any]
    node_ids: Array | None
    train_labels: Array
    calibration: Array

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def mean_calibration(self) -> Array:
        """(R, 3, C) of the average over the seeds of each replica's split."""

    @property
    def replicas(self) -> list[Replica]:
        """R of them: their splits and seeds."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes the model knows."""

    def choose(self, positions: Sequence[int]) -> Predictor:
        """Select replicas."""

    def known_positions(self, graph: Graph) -> Array | None:
        """Return the position of each node in the training graph, -1 if new; None for itself."""

    def logits(
        self, graph: Graph, device: torch.device | str = "cpu", nodes: Array | None = None
    ) -> Tensor:
        """Return logits (R, M, C) of all nodes of a graph, or of those at some positions."""

    def mean_probabilities(
        self, graph: Graph, device: torch.device | str = "cpu", nodes: Array | None = None
    ) -> Tensor:
        """Return calibrated class probabilities (M, C) averaged over the replicas."""


def mix_logits(parts: Sequence[tuple[float, Tensor]]) -> Tensor:
    """Return the weighted mean of log-probabilities, from weights and logits (…, C).

    Targets (…, 1) are averaged themselves.
    """
    total = torch.zeros_like(parts[0][1], dtype=torch.float64)
    is_regression = total.shape[-1] == 1
    for weight, logits in parts:
        total += weight * (logits if is_regression else logits.double().log_softmax(dim=-1))
    return total if is_regression else total.float()


def member_folder(name: str) -> str:
    """Return the name of a member's folder, different for different names.

    >>> member_folder("hpgmn-sum"), member_folder("a/b")
    ('hpgmn-sum', 'a-b-c14cddc0')
    """
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:80]
    return safe if safe == name else f"{safe}-{digest(name)[:8]}"


@dataclass
class SavedEnsemble:
    """Trained models whose calibrated log-probabilities are averaged; one replica per split.

    Attributes:
        members: by name; each has only replicas with a weight above 0.
        weights: for each member the weights of its replicas.
        splits: R of them.
        calibration: (R, 3, C), see :mod:`hpgmn.base.calibration`; the identity by default.
    """

    members: dict[str, SavedModel]
    weights: dict[str, list[float]]
    splits: list[int]
    calibration: Array = None  # type: ignore[assignment]  # filled in below
    _latest: tuple[Graph, torch.device, Tensor] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Fill in the calibration, and what the members have in common."""
        first, *_ = self.members.values()
        self.metadata, self.node_ids = first.metadata, first.node_ids
        if self.calibration is None:
            self.calibration = from_temperatures([1.0] * len(self.splits), len(self.class_names))
        labels = {
            replica.split: row
            for model in self.members.values()
            for replica, row in zip(model.replicas, model.train_labels, strict=True)
        }
        self.train_labels = np.stack([labels[split] for split in self.splits])

    @classmethod
    def of(
        cls, members: Mapping[str, SavedModel], weights: Weights, splits: Sequence[int]
    ) -> SavedEnsemble:
        """Create an ensemble; replicas and members without weight are left out."""
        kept: dict[str, SavedModel] = {}
        kept_weights: dict[str, list[float]] = {}
        for name, model in members.items():
            places = [place for place, weight in enumerate(weights[name]) if weight > 0]
            if places:
                is_all = len(places) == len(model.replicas)
                kept[name] = model if is_all else model.choose(places)
                kept_weights[name] = [float(weights[name][place]) for place in places]
        return cls(kept, kept_weights, list(splits))

    @property
    def name(self) -> str:
        """The name of the model."""
        return ENSEMBLE

    @property
    def replicas(self) -> list[Replica]:
        """One for each split."""
        return [Replica(split, 0, None) for split in self.splits]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes the model knows."""
        return tuple(self.metadata["class_names"])

    @property
    def mean_calibration(self) -> Array:
        """(R, 3, C), that of each split."""
        return self.calibration

    def mean_weights(self) -> dict[str, float]:
        """Return the weight of each member, summed over seeds and averaged over splits."""
        return {name: sum(weights) / len(self.splits) for name, weights in self.weights.items()}

    def explained(self) -> list[str]:
        """Return the members in the order in which they explain the ensemble.

        Those that name statistics and columns, HP-GMN and trees, come first, by weight; HP-GMN,
        whose explanations say most, counts three times.
        """
        weights = self.mean_weights()

        def rank(name: str) -> tuple[bool, float]:
            entry = self.members[name].entry
            is_hpgmn, has_trees = entry.name == "hpgmn", entry.rounds is not None
            return not (is_hpgmn or has_trees), -weights[name] * (3 if is_hpgmn else 1)

        return sorted(self.members, key=rank)

    def remember(self, graph: Graph, device: torch.device | str, logits: Tensor) -> None:
        """Keep the logits (R, N, C) of a graph that are known already."""
        self._latest = (graph, torch.device(device), logits)

    def choose(self, positions: Sequence[int]) -> SavedEnsemble:
        """Select splits; members without weight there are left out."""
        splits = [self.splits[position] for position in positions]
        weights = {
            name: [
                weight if replica.split in splits else 0.0
                for replica, weight in zip(model.replicas, self.weights[name], strict=True)
            ]
            for name, model in self.members.items()
        }
        chosen = SavedEnsemble.of(self.members, weights, splits)
        chosen.calibration = self.calibration[list(positions)]
        if self._latest is not None:
            graph, device, logits = self._latest
            chosen._latest = (graph, device, logits[list(positions)])
        return chosen

    def known_positions(self, graph: Graph) -> Array | None:
        """Return the position of each node in the training graph, -1 if new; None for itself."""
        return next(iter(self.members.values())).known_positions(graph)

    def logits(
        self, graph: Graph, device: torch.device | str = "cpu", nodes: Array | None = None
    ) -> Tensor:
        """Return the mean log-probabilities (R, M, C) of the nodes of a graph.

        Members share the graph's statistics, and are dropped from memory one after the other.

        Args:
            nodes: ascending positions of the requested nodes; None for all.
        """
        where = torch.device(device)
        if nodes is None and self._latest is not None:
            known, known_device, logits = self._latest
            if known is graph and known_device == where:
                return logits
        parts: dict[int, list[tuple[float, Tensor]]] = {split: [] for split in self.splits}
        shared: SharedStatistics = {}
        for name, model in self.members.items():
            values = model.logits(graph, device, nodes, shared)
            model.release()
            calibrated = calibrated_logits(values, model.calibration)
            for replica, weight, row in zip(
                model.replicas, self.weights[name], calibrated, strict=True
            ):
                parts[replica.split].append((weight, row))
        mixed = torch.stack([mix_logits(parts[split]) for split in self.splits])
        if nodes is None:
            self.remember(graph, device, mixed)
        return mixed

    def mean_probabilities(
        self, graph: Graph, device: torch.device | str = "cpu", nodes: Array | None = None
    ) -> Tensor:
        """Return calibrated class probabilities (M, C) of the nodes of a graph, of one split."""
        mean = mean_logits(self.logits(graph, device, nodes))[None]
        values = calibrated_probabilities(mean, self.calibration[:1])[0]
        return values if values.shape[-1] == 1 else values.float()

    def write(self, folder: Path) -> None:
        """Write ``ensemble.json`` and the members' models."""
        rows = []
        for name, model in self.members.items():
            path = folder / MEMBERS_FOLDER / member_folder(name) / MODEL_FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            model.write(path)
            weights = [
                [replica.split, replica.seed, weight]
                for replica, weight in zip(model.replicas, self.weights[name], strict=True)
            ]
            rows.append(
                {
                    "name": name,
                    "model": model.name,
                    "checksum": file_checksum(path),
                    "weights": weights,
                }
            )
        content = {
            "format": RUN_FORMAT,
            "splits": self.splits,
            "calibration": self.calibration.tolist(),
            "members": rows,
        }
        write_text(folder / ENSEMBLE_FILE, json.dumps(with_checksum(content), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path, expected: str | None = None) -> SavedEnsemble:
        """Read an ensemble from its folder; loading never executes code.

        Args:
            expected: ``package.module:Class`` of members that are custom models; only then is
                their code imported.
        """
        path = folder / ENSEMBLE_FILE
        members: dict[str, SavedModel] = {}
        weights: dict[str, list[float]] = {}
        try:
            content = read_json(path)
            check_format(path, content.get("format"), RUN_FORMAT)
            content = verify_run_checksum(content)
            models = [row["model"] for row in content["members"]]
            if expected is not None and expected not in models:
                raise HPGMNError(
                    f"{folder} holds an ensemble without the model '{expected}'.",
                    "Name one of its members' models, or none",
                )
            for row in content["members"]:
                name = row["name"]
                named = expected if is_custom(row["model"]) else None
                members[name] = _read_member(folder, name, row["checksum"], named)
                weights[name] = [weight for _, _, weight in row["weights"]]
            first, *_ = members.values()
            splits, names = content["splits"], first.class_names
            calibration = read_calibration({"class_names": names, **content}, len(splits))
            return cls(members, weights, splits, calibration)
        except OSError as error:
            raise damaged_file(path, f"cannot be read ({error.strerror or error})") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged_file(path, f"is damaged ({error})") from None


def _read_member(folder: Path, name: str, checksum: object, expected: str | None) -> SavedModel:
    path = folder / MEMBERS_FOLDER / member_folder(name) / MODEL_FILE
    if not path.is_file():
        raise HPGMNError(
            f"The ensemble in {folder} lacks its member '{name}': {path} is missing.", RESTORE
        )
    saved = SavedModel.read(path, expected)
    if file_checksum(path) != checksum:
        raise damaged_file(path, f"is not that of the member '{name}' of this ensemble")
    return saved
