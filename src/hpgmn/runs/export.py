"""Export a trained run as ONNX: from rows of statistics to probabilities, memory included.

Parameters have the R seeds as their leading dimension, over which ``MatMul`` broadcasts. After the
classifier everything is in double precision, as in predictions.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpgmn.base.errors import HPGMNError, Remedy, format_bytes
from hpgmn.base.files import write_bytes, write_text
from hpgmn.base.settings import settings_dict
from hpgmn.base.tasks import target_scale
from hpgmn.base.version import __version__
from hpgmn.explain.descriptions import STATISTICS
from hpgmn.graph import Array, Graph
from hpgmn.models.stage import Parameters
from hpgmn.statistics import averaged_statistic, base_name, statistic_names
from hpgmn.statistics.local import definition
from hpgmn.statistics.settings import mode_of, type_of
from hpgmn.training.ensemble import MEMBERS_FOLDER, Predictor, SavedEnsemble, member_folder
from hpgmn.training.saved import SavedModel

OPSET, IR_VERSION = 17, 8
"""Versions that onnxruntime 1.18 and later read."""

MOST_BYTES = 2_000_000_000
"""Most bytes of parameters: an ONNX file, one protobuf message, ends at 2 GiB."""

_NODES = "the nodes of the training graph, in its order"
_SKETCHED = "; if sketched, random directions of these"

COLUMNS = {
    "attributes": "feature_names",
    "class_counts": "class_names; of a regression bins of the target, ascending",
    "class_means": f"feature_names for each of class_names, or bins of the target{_SKETCHED}",
    "target_means": "mean standardised target, the same of known targets, share of known targets",
    "hops": f"feature_names for each distance, 1 first{_SKETCHED}",
    "diffusion": f"{_NODES}{_SKETCHED}",
    "adjacency": _NODES,
}
"""What the columns of each statistic are."""


def statistic_rows(
    model: SavedModel, graph: Graph, nodes: Sequence[int] | None = None, device: str = "cpu"
) -> dict[str, Array]:
    """Return the rows of the statistics that a model reads, by name.

    Args:
        nodes: positions of the requested nodes; None for all.

    Returns:
        For each statistic (M, width), or (R, M, width) if it differs between the R seeds.
    """
    read = None if nodes is None else np.unique(nodes)
    stage = model.stage_on(graph, device, read)
    chosen = torch.arange(graph.num_nodes) if nodes is None else torch.from_numpy(np.array(nodes))
    chosen = chosen.to(device)
    rows = {}
    for name, statistic in stage.inputs.items():
        if is_per_seed(model, name):
            seeds = [statistic.rows(chosen, seed) for seed in range(len(model.replicas))]
            rows[name] = torch.stack(seeds).cpu().numpy()
        else:
            rows[name] = statistic.rows(chosen).cpu().numpy()
    return rows


def is_per_seed(model: SavedModel, name: str) -> bool:
    """Whether the rows of a statistic differ between seeds: each has pseudo-labels of its own."""
    base = base_name(name)
    return len(model.replicas) > 1 and definition(averaged_statistic(base) or base).reads_labels


def require_rows(model: Predictor, folder: Path) -> SavedModel:
    """Return a model of one split; refuse one that needs more than rows of its statistics.

    Args:
        folder: the run folder.
    """
    if isinstance(model, SavedEnsemble):
        remedy = Remedy("Train one model", command="train", option="model", value="hpgmn")
        for name, member in model.members.items():
            with suppress(HPGMNError):
                require_rows(member, folder)
                remedy |= f"Open {folder / MEMBERS_FOLDER / member_folder(name)}"
        raise HPGMNError(
            f"{folder} is an ensemble of {len(model.members)} models, each with statistics of its "
            "own.",
            remedy,
        )
    assert isinstance(model, SavedModel)
    settings = model.replicas[0].settings
    if model.name == "hpgmn" and "message_passing" in settings.statistics:
        others = [name for name in settings.statistics if name != "message_passing"]
        raise HPGMNError(
            "The model passes messages along all edges of the graph: its output for a node does "
            "not follow from rows of statistics.",
            Remedy(
                "Train without message passing",
                setting="statistics",
                value=tuple(dict.fromkeys([*others, "hops"])),
            ),
        )
    if model.name not in ("hpgmn", "mlp"):
        raise HPGMNError(
            f"The output of {model.name} for a node does not follow from rows of statistics.",
            Remedy("Train a model of rows", command="train", option="model", value="hpgmn"),
        )
    return model


def export_onnx(model: SavedModel, path: Path, features: Array | None = None) -> Path:
    """Write the models of a split as one ONNX file and its description, ``path`` + ".json".

    Args:
        model: from :func:`require_rows`.
        features: the names of the attributes, if they are known.

    Returns:
        The path of the description.
    """
    size = sum(4 * value.numel() for value in model.done["main"].values())
    if size > MOST_BYTES:
        raise HPGMNError(
            f"The model has {format_bytes(size)} of parameters; an ONNX file holds "
            f"{format_bytes(MOST_BYTES)}.",
            Remedy("Choose a smaller network", setting="hidden_dim")
            | Remedy("Leave out statistics with a column per node", setting="statistics"),
        )
    content = onnx_graph(model).SerializeToString()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    description, about = path.with_name(f"{path.name}.json"), describe(model, features)
    write_text(description, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    return description


def onnx_graph(model: SavedModel) -> Any:
    """Return the ``onnx.ModelProto`` of a model: the seeds of one split, averaged, calibrated."""
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        raise HPGMNError(
            "The export needs onnx, which is not installed.", "Run: pip install 'hpgmn[onnx]'"
        ) from None
    network = _Network(onnx.helper, onnx.numpy_helper, model.done["main"])
    float_type, double_type = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
    logits = network.logits(model)
    logits = network.add("Cast", logits, to=double_type)
    if model.class_names:
        result, name, kind = network.probabilities(logits, model), "probabilities", float_type
        result = network.add("Cast", result, to=float_type)
    else:
        mean, std = (value[..., None] for value in target_scale(model.train_labels))
        result, name, kind = network.affine(logits, std, mean), "prediction", double_type
        result = network.add("ReduceMean", result, axes=[0], keepdims=0)
    network.add("Identity", result, output=name)
    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(name, float_type, shape)
        for name, shape in _inputs(model).items()
    ]
    shape = ["batch", len(model.class_names) or 1]
    outputs = [helper.make_tensor_value_info(name, kind, shape)]
    graph = helper.make_graph(network.nodes, "hpgmn", inputs, outputs, network.constants)
    opsets = [helper.make_opsetid("", OPSET)]
    made = helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="hpgmn"
    )
    made.producer_version = __version__
    onnx.checker.check_model(made, full_check=True)
    return made


def _inputs(model: SavedModel) -> dict[str, list[str | int]]:
    """Return the shape of each input, by name, in the order in which encodings are joined."""
    parameters = model.done["main"]
    if model.name == "mlp":
        return {"attributes": ["batch", parameters["encode.first.weight"].shape[1]]}
    seeds, types = len(model.replicas), model.metadata.get("edge_type_names", ())
    shapes: dict[str, list[str | int]] = {}
    for name in statistic_names(model.replicas[0].settings, len(types)):
        width = parameters[f"encode.{name}.first.weight"].shape[1]
        shapes[name] = [*([seeds] if is_per_seed(model, name) else []), "batch", width]
    return shapes


class _Network:
    """The nodes and constants of an ONNX graph, built layer by layer."""

    def __init__(self, helper: Any, numpy_helper: Any, parameters: Parameters) -> None:
        self.helper, self.numpy_helper = helper, numpy_helper
        self.parameters = {name: value.cpu().numpy() for name, value in parameters.items()}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        output = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, value: Array, name: str | None = None) -> str:
        """Add an array; return its name."""
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(self.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def affine(self, x: str, scale: Array, shift: Array) -> str:
        """Return ``x * scale + shift``."""
        return self.add("Add", self.add("Mul", x, self.constant(scale)), self.constant(shift))

    def linear(self, x: str, place: str) -> str:
        """Apply the layer of this name, of one weight and bias per seed."""
        weight, bias = (
            self.constant(self.parameters[f"{place}.{part}"], f"{place}.{part}")
            for part in ("weight", "bias")
        )
        return self.add("Add", self.add("MatMul", x, weight), bias)

    def layers(self, x: str, place: str, *, is_hidden: bool = False) -> str:
        """Apply linear layers with ReLU between them, and before the first if ``is_hidden``."""
        for number in count():
            name = f"{place}.layers.{number}"
            if f"{name}.weight" not in self.parameters:
                break
            x = self.linear(self.add("Relu", x) if is_hidden or number else x, name)
        return x

    def encode(self, x: str, place: str) -> str:
        """Apply the MLP on a statistic."""
        return self.layers(self.linear(x, f"{place}.first"), f"{place}.rest", is_hidden=True)

    def logits(self, model: SavedModel) -> str:
        """Return the logits (R, B, C) of all seeds."""
        names = list(_inputs(model))
        if model.name == "mlp":
            return self.encode(names[0], "encode")
        settings, parts = model.replicas[0].settings, []
        for number, name in enumerate(names):
            part = self.encode(name, f"encode.{name}")
            if settings.unit_encodings:
                length = self.add("ReduceL2", part, axes=[-1], keepdims=1)
                least = self.constant(np.array(1e-12, np.float32))  # as in torch's normalize
                part = self.add("Div", part, self.add("Max", length, least))
            if settings.gate:
                logits = torch.from_numpy(self.parameters["gate.logits"])
                weights = (logits.softmax(dim=-1) * len(names))[:, number, None, None]
                part = self.add("Mul", part, self.constant(weights.numpy()))
            parts.append(part)
        query = self.add("Concat", *parts, axis=-1)
        if settings.memory_dim:
            query = self.linear(query, "head.resize")
        if settings.memory:
            patterns = self.parameters["head.memory.patterns"]
            transposed = self.constant(patterns.transpose(0, 2, 1))
            attention = self.add("Softmax", self.add("MatMul", query, transposed), axis=-1)
            value = self.add("MatMul", attention, self.constant(patterns, "head.memory.patterns"))
            query = self.add("Concat", query, value, axis=-1)
        is_linear = settings.classifier_layers == 1
        return self.layers(query, "head.classify", is_hidden=is_linear)

    def probabilities(self, logits: str, model: SavedModel) -> str:
        """Return the mean over seeds in probability space, calibrated: (B, C)."""
        logs = self.add("LogSoftmax", logits, axis=-1)
        total = self.add("ReduceLogSumExp", logs, axes=[0], keepdims=0)
        scale, bias, _ = model.mean_calibration[0]
        shift = bias - math.log(len(model.replicas)) * scale
        return self.add("Softmax", self.affine(total, scale, shift), axis=-1)


def describe(model: SavedModel, features: Array | None = None) -> dict[str, Any]:
    """Return what the inputs and outputs of the ONNX file are."""
    settings, names = model.replicas[0].settings, list(model.class_names)
    types, inputs = model.metadata.get("edge_type_names", ()), []
    for name, shape in _inputs(model).items():
        base, edge_type = base_name(name), type_of(name)
        direction = None
        if base != "attributes":
            direction = mode_of(name, settings.neighbors).partition(":")[0]
        about = {
            "name": name,
            "shape": shape,
            "description": STATISTICS[base],
            "columns": COLUMNS[averaged_statistic(base) or base],
            "neighbors": direction,
            "edge_type": None if edge_type is None else str(types[edge_type]),
        }
        inputs.append(about)
    decision = {
        "rule": "the class with the largest log(probability) + offset",
        "offsets": model.mean_calibration[0][2].tolist(),
    }
    return {
        "version": __version__,
        "model": model.name,
        "graph": model.metadata["graph"],
        "split": model.replicas[0].split,
        "seeds": [replica.seed for replica in model.replicas],
        "class_names": names,
        "feature_names": None if features is None else features.tolist(),
        "inputs": inputs,
        "decision": decision if names else None,
        "settings": settings_dict(settings),
    }
