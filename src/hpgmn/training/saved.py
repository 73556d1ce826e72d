"""A trained model, in memory or in a file: the parameters of every replica, and how to apply it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.calibration import Calibrator, calibrated_probabilities, from_temperatures
from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import RUN_FORMAT, damaged_file, read_tensors, write_tensors
from hpgmn.base.metrics import mean_logits
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.base.tasks import hide_labels, is_target
from hpgmn.graph import Array, Graph
from hpgmn.models import find_model, is_custom
from hpgmn.models.stage import ModelEntry, Parameters, Replica, TrainingStage, TrainingTask, logits
from hpgmn.statistics import LocalStatistics
from hpgmn.statistics.local import fix_sketches
from hpgmn.training.on_graph import ModelOnGraph, require_finite

if TYPE_CHECKING:
    from hpgmn.training.replicas import Fitted

logger = logging.getLogger(__name__)

MODEL_FILE = "model.safetensors"
SharedStatistics = dict[bool, LocalStatistics]
"""The statistics of one graph for several models: of all nodes, and of those requested."""
MAPPED_BYTES = 1 << 24
"""Larger parameters stay in the file, which processes share; the others are copied to aligned
memory, on which the last bits of products depend."""
_TIED = ("diffusion", "adjacency", "neighbor_adjacency")  # their columns are the nodes trained on


def _check_content(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], replicas: int, any_dtype: bool
) -> None:
    """Raise ValueError for what is inconsistent in a file; custom models may have any dtype."""
    nodes, classes = int(metadata["num_nodes"]), len(metadata["class_names"])
    for name, value in tensors.items():
        if len(value) != replicas or not replicas:
            raise ValueError(f"{name} is of {len(value)} runs, the metadata of {replicas}")
        if "/" in name and not any_dtype and value.dtype != torch.float32:
            raise ValueError(f"{name} is of type {value.dtype}")
        if name != "train_labels" and not value.isfinite().all():
            raise ValueError(f"{name} is not finite")
    labels = tensors["train_labels"]
    is_regression = labels.is_floating_point()
    if labels.shape != (replicas, nodes) or is_regression != (not classes):
        raise ValueError(f"train_labels is of shape {tuple(labels.shape)} and type {labels.dtype}")
    if is_regression and labels.isinf().any():
        raise ValueError("train_labels is not finite")
    if (
        not is_regression
        and labels.numel()
        and not -1 <= int(labels.min()) <= int(labels.max()) < classes
    ):
        raise ValueError(f"train_labels names a class beyond the {classes} there are")
    if metadata["node_ids"] is not None and len(metadata["node_ids"]) != nodes:
        raise ValueError(f"{len(metadata['node_ids'])} node_ids for {nodes} nodes")


def read_calibration(metadata: dict[str, Any], replicas: int, kind: str = "") -> Array:
    """Take a calibration (R, 3, C) out of metadata, or raise ValueError.

    Earlier versions wrote temperatures, or nothing.
    """
    classes = len(metadata["class_names"]) or 1
    temperatures = metadata.pop(f"{kind}temperatures", None) or [1.0] * replicas
    stored = metadata.pop(f"{kind}calibration", None)
    if stored is None:
        if not all(value > 0 for value in temperatures):
            raise ValueError("a temperature is not above 0")
        stored = from_temperatures(temperatures, classes)
    calibration = np.asarray(stored, np.float64)
    if calibration.shape != (replicas, 3, classes):
        raise ValueError(f"a calibration of shape {calibration.shape} for {replicas} runs")
    if not np.isfinite(calibration).all() or (calibration[:, 0] <= 0).any():
        raise ValueError("a calibration is not finite and above 0")
    return calibration


@dataclass
class SavedModel:
    """A trained model: R replicas, and the nodes of the graph they were trained on.

    Attributes:
        done: the best parameters of every stage.
        train_labels: (R, N), unknown outside the train nodes.
        metadata: name, fingerprint, sizes and class names of the training graph.
        node_ids: ids of the training graph's nodes, if it has any.
        calibration: (R, 3, C), see :mod:`hpgmn.base.calibration`; the identity by default.
        mean_calibration: the same for the average over the seeds of each replica's split.
    """

    entry: ModelEntry
    replicas: list[Replica]
    done: dict[str, Parameters]
    train_labels: Array
    metadata: dict[str, Any]
    node_ids: Array | None
    calibration: Array = None  # type: ignore[assignment]  # filled in below
    mean_calibration: Array = None  # type: ignore[assignment]
    _latest: ModelOnGraph | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Fill in the calibration."""
        identity = from_temperatures([1.0] * len(self.replicas), len(self.class_names))
        self.calibration = identity if self.calibration is None else self.calibration
        if self.mean_calibration is None:
            self.mean_calibration = identity

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle without the cached statistics."""
        return {**self.__dict__, "_latest": None}

    @classmethod
    def of(
        cls,
        entry: ModelEntry,
        fitted: Fitted,
        graph: Graph,
        train: Sequence[Array],
        val: Sequence[Array] | None = None,
        calibrator: Calibrator | None = None,
    ) -> SavedModel:
        """Create the model from a training on a graph.

        Args:
            train: masks, one per replica.
            val: masks of the nodes to which the calibration is fitted; None fits none.
            calibrator: how [by a temperature].
        """
        require_finite(fitted.logits, graph)
        labels = np.stack([hide_labels(graph.y, mask) for mask in train])
        metadata = {
            "graph": graph.name,
            "fingerprint": graph.fingerprint,
            "num_nodes": graph.num_nodes,
            "num_features": graph.num_features,
            "class_names": list(graph.class_names),
            "source": entry.source,
            "preparation": graph.preparation,
        }
        if graph.edge_type_names:
            metadata["edge_type_names"] = list(graph.edge_type_names)
        replicas = [
            replace(replica, settings=fix_sketches(graph, replica.settings))
            for replica in fitted.replicas
        ]
        model = cls(entry, replicas, fitted.done, labels, metadata, graph.node_ids)
        if fitted.statistics is not None:  # reused for explanations and the report
            task = TrainingTask(
                fitted.statistics,
                tuple(fitted.replicas),
                labels,
                hide_labels(labels, False),
                graph.num_classes,
            )
            model._latest = ModelOnGraph(entry, task, fitted.done, fitted.logits)
        if val is not None and not graph.is_regression:
            calibrator = calibrator or Calibrator()
            model.calibration = calibrator.fit(fitted.logits, graph.y, val)
            model.mean_calibration = model._fit_mean(calibrator, fitted.logits, graph.y, val)
        return model

    def _fit_mean(
        self, calibrator: Calibrator, logits: Tensor, y: Array, val: Sequence[Array]
    ) -> Array:
        """Calibrate the average over the seeds of each replica's split."""
        by_split: dict[int, Array] = {}
        for position, replica in enumerate(self.replicas):
            if replica.split not in by_split:
                mean = mean_logits(logits[self._seeds_of(replica.split)])[None]
                mask = val[position]
                by_split[replica.split] = calibrator.fit(mean, y, [mask], logger.warning)[0]
        return np.stack([by_split[replica.split] for replica in self.replicas])

    def _seeds_of(self, split: int) -> list[int]:
        """Return the positions of the replicas of a split."""
        return [i for i, replica in enumerate(self.replicas) if replica.split == split]

    def write(self, path: Path) -> None:
        """Write the model as one safetensors file."""
        tensors: dict[str, Tensor] = {
            f"{stage}/{name}": value
            for stage, parameters in self.done.items()
            for name, value in parameters.items()
        }
        for name, value in tensors.items():
            if not value.isfinite().all():
                raise HPGMNError(
                    f"The parameter {name} of {self.entry.name} is not finite; {path} was not "
                    "written.",
                    Remedy("Train again with a lower learning rate", setting="lr"),
                )
        labels = self.train_labels
        tensors["train_labels"] = torch.from_numpy(
            labels if is_target(labels) else labels.astype(np.int32)
        )
        metadata = self.metadata | {
            "format": RUN_FORMAT,
            "model": self.entry.name,
            "stages": list(self.done),
            "replicas": [
                {
                    "split": replica.split,
                    "seed": replica.seed,
                    "settings": settings_dict(replica.settings),
                }
                for replica in self.replicas
            ],
            "node_ids": None if self.node_ids is None else self.node_ids.tolist(),
            "calibration": self.calibration.tolist(),
            "mean_calibration": self.mean_calibration.tolist(),
        }
        write_tensors(path, tensors, metadata)

    @classmethod
    def read(cls, path: Path, expected: str | None = None) -> SavedModel:
        """Read a file of :meth:`write`; loading never executes code.

        Args:
            expected: ``package.module:Class`` of a custom model; a file with one requires it.
        """
        tensors, metadata = read_tensors(path)
        try:
            return cls._of_file(path, tensors, metadata, expected)
        except ValueError as error:
            raise damaged_file(path, f"is damaged or not an hpgmn file ({error})") from None
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise damaged_file(path, f"is damaged or not an hpgmn file ({reason})") from None

    @classmethod
    def _of_file(
        cls, path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any], expected: str | None
    ) -> SavedModel:
        name = metadata.pop("model")
        if is_custom(name) and expected is None:
            raise HPGMNError(
                f"{path} holds a model of your own, '{name}', and code is imported only when you "
                "name it.",
                Remedy("Name it", option="model", value=name),
            )
        if expected not in (None, name):
            raise HPGMNError(
                f"{path} holds the model '{name}', not '{expected}'.",
                Remedy("Name that model", option="model", value=name),
            )
        entry = find_model(name)
        if entry.source != metadata.get("source", ""):
            raise HPGMNError(
                f"The code of {name} has changed since the model in {path} was trained.",
                Remedy("Restore it") | "Train again",
            )
        done: dict[str, Parameters] = {
            stage: {
                name.removeprefix(f"{stage}/"): value
                if value.nbytes > MAPPED_BYTES
                else value.clone()
                for name, value in tensors.items()
                if name.startswith(f"{stage}/")
            }
            for stage in metadata.pop("stages")
        }
        replicas = [
            Replica(row["split"], row["seed"], make_settings(entry.settings, row["settings"]))
            for row in metadata.pop("replicas")
        ]
        maps = [read_calibration(metadata, len(replicas), kind) for kind in ("", "mean_")]
        any_dtype = is_custom(name) or entry.rounds is not None
        _check_content(tensors, metadata, len(replicas), any_dtype)
        node_ids = metadata.pop("node_ids")
        names = None if node_ids is None else np.asarray(node_ids)
        labels = tensors["train_labels"].numpy()
        labels = labels if is_target(labels) else labels.astype(np.int64)
        return cls(entry, replicas, done, labels, metadata, names, *maps)

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.entry.name

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes the model knows."""
        return tuple(self.metadata["class_names"])

    def release(self) -> None:
        """Free the memory of the latest graph's statistics and outputs."""
        self._latest = None

    def require_stages(self) -> None:
        """Refuse a model without its label estimator, which pseudo-labels need."""
        if "estimator" in self.entry.stages and "estimator" not in self.done:
            raise HPGMNError(
                "The model was trained on row shards whose labels are not the label estimator's, "
                "so it has no pseudo-labels for a graph.",
                Remedy("Read predictions.parquet of the run")
                | Remedy(
                    "Recreate the shards and train again",
                    command="shard",
                    option="labels",
                    value="estimated",
                ),
            )

    def choose(self, positions: Sequence[int]) -> SavedModel:
        """Select replicas.

        The calibration of an average belongs to the averaged seeds: with all seeds of a split it
        stays; otherwise it is the mean of theirs.
        """
        chosen = list(positions)
        done = {
            stage: {name: value[chosen] for name, value in parameters.items()}
            for stage, parameters in self.done.items()
        }
        replicas = [self.replicas[position] for position in chosen]
        labels = self.train_labels[chosen]
        own = self.calibration[chosen]
        means = np.stack([self._mean_calibration(replica.split, chosen) for replica in replicas])
        model = SavedModel(
            self.entry, replicas, done, labels, self.metadata, self.node_ids, own, means
        )
        if self._latest is not None:
            model._latest = self._latest.choose(chosen)
        return model

    def _mean_calibration(self, split: int, chosen: Sequence[int]) -> Array:
        """Return the calibration of the average over the chosen replicas of a split."""
        seeds = self._seeds_of(split)
        kept = [position for position in seeds if position in chosen]
        if kept == seeds:
            return np.asarray(self.mean_calibration[seeds[0]])
        return np.asarray(self.calibration[kept].mean(axis=0))

    def on_graph(
        self,
        graph: Graph,
        device: torch.device | str = "cpu",
        shared: SharedStatistics | None = None,
    ) -> ModelOnGraph:
        """Apply the model to a graph, the training graph or another; the latest one is kept."""
        self.require_stages()
        latest = self._latest
        if (
            latest is None
            or latest.task.graph is not graph
            or latest.task.device != torch.device(device)
        ):
            self._latest = None  # frees its memory first
            latest = ModelOnGraph(self.entry, self._task(graph, device, None, shared), self.done)
            self._latest = latest
        return latest

    def stage_on(
        self, graph: Graph, device: torch.device | str = "cpu", nodes: Array | None = None
    ) -> TrainingStage:
        """Build the last stage, whose inputs have the rows of some nodes (ascending), or of all."""
        if nodes is None:
            part = self.on_graph(graph, device)
        else:
            part = ModelOnGraph(self.entry, self._task(graph, device, nodes, None), self.done)
        *_, build = self.entry.stages.values()
        return build(part.task, part.parameters)

    def logits(
        self,
        graph: Graph,
        device: torch.device | str = "cpu",
        nodes: Array | None = None,
        shared: SharedStatistics | None = None,
    ) -> Tensor:
        """Return logits (R, M, C) of the nodes of a graph.

        Args:
            nodes: ascending positions of the requested nodes; None for all.
            shared: statistics of this graph and these nodes, extended by those that it lacks.
        """
        if nodes is None:
            return self.on_graph(graph, device, shared).logits
        task = self._task(graph, device, nodes, shared)
        part = ModelOnGraph(self.entry, task, self.done)
        values = logits(task, self.entry, part.parameters, torch.from_numpy(nodes)).cpu()
        require_finite(values, graph, nodes)
        return values

    def mean_probabilities(
        self,
        graph: Graph,
        device: torch.device | str = "cpu",
        nodes: Array | None = None,
        shared: SharedStatistics | None = None,
    ) -> Tensor:
        """Return class probabilities (M, C) averaged over the replicas, the seeds of one split.

        Of a regression they are targets (M, 1).

        The average is calibrated, not its members: it predicts the classes that ``metrics.json``
        scores.
        """
        mean = mean_logits(self.logits(graph, device, nodes, shared))[None]
        values = calibrated_probabilities(mean, self.mean_calibration[:1])[0]
        return values if values.shape[-1] == 1 else values.float()

    def _task(
        self,
        graph: Graph,
        device: torch.device | str,
        nodes: Array | None,
        shared: SharedStatistics | None,
    ) -> TrainingTask:
        self.require_stages()
        if graph.num_features != self.metadata["num_features"]:
            raise HPGMNError(
                f"The model was trained on {self.metadata['num_features']} attributes; graph "
                f"'{graph.name}' has {graph.num_features}.",
                "Give the same columns in the same order",
            )
        columns = self.known_positions(graph)
        if columns is not None:
            self._require_known_nodes(graph, columns)
        width = int(self.metadata["num_nodes"])
        # HP-GMN reads the rows of the requested nodes only, unless refinement labels all nodes.
        reads_all = self.entry.name != "hpgmn" or "refinement" in self.done
        rows = None if reads_all else nodes
        statistics = None if shared is None else shared.get(rows is None)
        if statistics is None:
            types = self.metadata.get("edge_type_names", ())
            statistics = LocalStatistics(
                graph, device, columns=columns, width=width, nodes=rows, edge_type_names=types
            )
            if shared is not None:
                shared[rows is None] = statistics
        known = np.arange(width) if columns is None else columns
        labels = hide_labels(self.train_labels[:, np.maximum(known, 0)], known >= 0)
        nothing, classes = hide_labels(labels, False), len(self.class_names)
        replicas, trained = tuple(self.replicas), self.train_labels
        return TrainingTask(statistics, replicas, labels, nothing, classes, trained)

    def known_positions(self, graph: Graph) -> Array | None:
        """Return the position of each node in the training graph, -1 if new, matched by node_ids.

        None for the training graph itself.
        """
        if graph.fingerprint == self.metadata["fingerprint"]:
            return None
        if self.node_ids is None or graph.node_ids is None:
            return np.full(graph.num_nodes, -1, np.int64)
        places = np.searchsorted(self.node_ids, graph.node_ids, sorter=self._id_order)
        found = self._id_order[np.minimum(places, len(self.node_ids) - 1)]
        return np.where(self.node_ids[found] == graph.node_ids, found, -1)

    @cached_property
    def _id_order(self) -> Array:
        """The positions of the training nodes in the order of their ids."""
        assert self.node_ids is not None
        return np.argsort(self.node_ids).astype(np.int64)

    def _require_known_nodes(self, graph: Graph, columns: Array) -> None:
        """Refuse a graph without a known node if columns of the model's statistics are nodes."""
        settings = self.replicas[0].settings
        used = getattr(settings, "statistics", ())
        tied = [name for name in _TIED if name in used or name in self.entry.tied]
        if "diffusion" in tied and settings.diffusion_form == "sketch":
            tied.remove("diffusion")  # its columns are random directions, not nodes
        if not tied or (columns >= 0).any():
            return
        raise HPGMNError(
            f"The model reads {' and '.join(tied)} rows, which belong to the nodes it was trained "
            f"on, and graph '{graph.name}' shares no node_ids with them.",
            Remedy("Give both graphs node_ids that are the same for the same node")
            | _transferable(used, tied),
        )


def _transferable(used: Sequence[str], tied: Sequence[str]) -> Remedy:
    """Return the remedy to train a model that serves any graph."""
    if tied == ["diffusion"] and used:
        return Remedy("Train with sketched diffusion", setting="diffusion_form", value="sketch")
    free = tuple(name for name in used if name not in tied) or ("attributes",)
    if not used:  # a model whose columns are nodes by design
        free = ("attributes", "class_counts", "class_means")
    return Remedy("Train hpgmn with other statistics", setting="statistics", value=free)
