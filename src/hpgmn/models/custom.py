"""A user-defined model: any torch module that maps (x, edge_index) to logits.

Named ``package.module:Class``. The class is instantiated for each replica and called one replica
after the other; splits, seeds, selection, saving and resuming are as for every model. A ``forward``
with a parameter ``edge_weight`` receives the weights of the edges, ones where the graph has none. A
:class:`ModelEntry` may be named instead of a class, for a model whose replicas are trained as one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter
from typing_extensions import override

from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.randomness import Noise
from hpgmn.base.settings import TrainSettings, setting, settings_dict
from hpgmn.graph import Graph
from hpgmn.models.layers import Initialised, NodeModel, Output
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage

_WIDTHS = ("num_features", "num_classes")
_TYPES = (bool, int, float, str)
_FIXED = "fixed:"  # prefix of the names of parameters that the module itself does not train


def _name_model(value: str = "own_model:TwoHop") -> Remedy:
    return Remedy("Name the model as package.module:Class", option="model", value=value)


def custom_model(name: str) -> ModelEntry:
    """Import the model behind ``package.module:Class``, from the current folder or installed."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise HPGMNError(f"'{name}' does not name a model.", _name_model())
    if "/" in module_name or module_name.endswith(".py") or module_name.startswith("."):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        remedy = _name_model(f"{dotted}:{attribute}")
        raise HPGMNError(f"'{module_name}' is a file, not a module.", remedy)
    module = _import(module_name)
    model = getattr(module, attribute, None)
    if isinstance(model, ModelEntry):
        return dataclasses.replace(model, name=name, source=_digest(module))
    if model is None:
        classes = [
            key
            for key, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module_name
        ]
        raise HPGMNError.unknown(f"class in {module_name}:", attribute, classes)
    return class_model(model, name, module)


def class_model(
    model: type[nn.Module], name: str | None = None, module: ModuleType | None = None
) -> ModelEntry:
    """Return the model of a class; name and module default to those of its definition."""
    if name is None:
        name, module = f"{model.__module__}:{model.__qualname__}", sys.modules.get(model.__module__)
    if not (inspect.isclass(model) and issubclass(model, nn.Module)):
        raise HPGMNError(f"{name} is not a class derived from torch.nn.Module.", _name_model())
    return ModelEntry(
        name,
        _settings_of(name, model),
        {"main": partial(_main, name, model)},
        partial(_floats, name, model),
        source="" if module is None else _digest(module),
        summary=(inspect.getdoc(model) or "a custom model").splitlines()[0],
        citation="your own",
    )


def require_importable(model: str | type[nn.Module]) -> None:
    """Refuse to save a class that another process could not import by its name."""
    if isinstance(model, str):
        return
    module, name = model.__module__, model.__qualname__
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not model:
        raise HPGMNError(
            f"{module}:{name} cannot be saved: another process could not import the class.",
            "Move it to the top level of a module of its own, and import it from there",
        )


def _digest(module: ModuleType) -> str:
    """Hash the module's file: a model is valid with the code it was trained with."""
    path = getattr(module, "__file__", None)
    if path is None or not Path(path).is_file():
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _import(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:  # `python -m` adds it, an installed command does not
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            message = f"{name} imports {error.name}, which is not installed."
            raise HPGMNError(message, f"Install {error.name}") from error
        raise HPGMNError(
            f"There is no module '{name}' in {folder} or among the installed ones.",
            Remedy("Change to the folder that contains it") | _name_model(),
        ) from None
    except Exception as error:
        raise HPGMNError(f"Importing {name} failed: {_describe_error(error)}.") from error


def _describe_error(error: Exception) -> str:
    """Describe an error in one line, with the file and line of the user's code that caused it."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return text  # contains file and line
    libraries = (str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"], "<")
    frames = list(traceback.extract_tb(error.__traceback__))
    user_frames = [
        frame
        for frame in frames
        if not frame.filename.startswith(libraries) and frame.filename != __file__
    ]
    if not frames:
        return text
    last = (user_frames or frames)[-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CustomSettings(TrainSettings):
    """Settings of every custom model: training, and the edge direction."""

    neighbors: str = setting("undirected", "edge direction", choices=("out", "in", "undirected"))


def _settings_of(name: str, model: type[nn.Module]) -> type[CustomSettings]:
    """Make the settings of a class: those of training, and its keywords with their defaults."""
    parameters = inspect.signature(model).parameters
    for width in _WIDTHS:
        if width not in parameters:
            raise HPGMNError(
                f"{name} must take num_features and num_classes.",
                "Write def __init__(self, num_features, num_classes, hidden_dim=64)",
            )
    inherited = {info.name for info in dataclasses.fields(CustomSettings)}
    fields: list[tuple[str, Any, Any]] = []
    for key, parameter in parameters.items():
        if key in _WIDTHS or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        type_ = type(parameter.default)
        if type_ not in _TYPES:
            raise HPGMNError(
                f"{name}: the default of '{key}' must be a number, a string, true or false.",
                f"Give '{key}' a default, for example {key}=64",
            )
        if key == "dropout" and type_ is not float:
            raise HPGMNError(
                f"{name}: the default of 'dropout' must be a float (got {parameter.default!r}).",
                "Write it with a point, for example dropout=0.5",
            )
        if key in inherited - {"dropout"}:
            raise HPGMNError(f"{name}: '{key}' is a setting of training.", f"Rename '{key}'")
        fields.append((key, type_, setting(parameter.default, f"{model.__name__}'s {key}")))
    made = dataclasses.make_dataclass(
        f"{model.__name__}Settings", fields, bases=(CustomSettings,), frozen=True, kw_only=True
    )
    made.__doc__ = f"Settings of {model.__name__}."
    return made


def _instantiate(
    name: str, model: type[nn.Module], settings: CustomSettings, num_features: int, num_classes: int
) -> nn.Module:
    keywords = inspect.signature(model).parameters
    values = settings_dict(settings)
    if "dropout" not in keywords and values["dropout"] != CustomSettings().dropout:
        raise SettingError(
            f"{name} takes no dropout.",
            Remedy("Add it to the keywords of __init__") | "Leave the setting out",
        )
    chosen = {key: values[key] for key in keywords if key in values}
    try:
        with torch.random.fork_rng([]):  # the module draws its initial values here
            module = model(num_features=num_features, num_classes=num_classes, **chosen)
    except Exception as error:
        raise HPGMNError(f"Making {name} failed: {_describe_error(error)}.") from error
    _require_trainable(name, module)
    return module


def _require_trainable(name: str, module: nn.Module) -> None:
    """Reject a module that cannot be replicated."""
    parameters = list(module.parameters())
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise HPGMNError(
            f"{name}: a lazy layer has no width yet.",
            "Give every layer its widths; that of the first is num_features",
        )
    if not any(parameter.requires_grad for parameter in parameters):
        raise HPGMNError(
            f"{name} has no parameters to train.",
            "Store its layers in attributes, several of them in a torch.nn.ModuleList",
        )
    for part in module.modules():
        if isinstance(part, _NormBase) and part.track_running_stats:
            raise HPGMNError(
                f"{name}: {type(part).__name__} keeps running statistics, which replicas lack.",
                "Use LayerNorm, or track_running_stats=False",
            )


class Looped(Initialised, NodeModel):
    """R copies of a module behind parameters with a leading R, called one after the other.

    Torch's global generator is seeded from the replica's key and the step for each call. Buffers
    are equal in all replicas and not saved, but rebuilt with the same seed.
    """

    def __init__(
        self, name: str, make: Callable[[], nn.Module], num_classes: int, replicas: int
    ) -> None:
        super().__init__()
        self._name, self._make, self._num_classes = name, make, num_classes
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self._template = [make()]  # in a list: its parameters are not this module's
        self._names: dict[str, str] = {}
        for name_inside, parameter in self._template[0].named_parameters():
            safe = name_inside.replace(".", "/")
            self._names[name_inside] = safe if parameter.requires_grad else f"{_FIXED}{safe}"
            values = torch.zeros(replicas, *parameter.shape)
            self.register_parameter(
                self._names[name_inside], nn.Parameter(values, parameter.requires_grad)
            )

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        for replica in range(noise.keys.shape[0]):
            with _seed_generators(noise, place, replica):
                initial = dict(self._make().named_parameters())
            for name_inside, name in self._names.items():
                self.get_parameter(name)[replica].copy_(initial[name_inside])

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        [template] = self._template
        template.to(inputs["x"].device).train(noise is not None)
        parameters = {inside: self.get_parameter(name) for inside, name in self._names.items()}
        replicas = next(iter(parameters.values())).shape[0]
        logits = []
        for replica in range(replicas):
            values = {name: value[replica] for name, value in parameters.items()}
            with _seed_generators(noise, "forward", replica):
                logits.append(self._call(template, values, inputs))
        return Output(torch.stack(logits))

    def _call(
        self, template: nn.Module, values: Parameters, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        versions = [value._version for value in inputs.values()]
        x, edge_index, *weights = inputs.values()
        keywords = {"edge_weight": weights[0]} if weights else {}
        try:
            logits = functional_call(template, values, (x, edge_index), keywords)
        except Exception as error:
            raise HPGMNError(f"{self._name} failed: {_describe_error(error)}.") from error
        if [value._version for value in inputs.values()] != versions:
            raise HPGMNError(
                f"{self._name} writes into {' or '.join(inputs)}, which all replicas read.",
                "Leave inplace out, or work on a copy: x = x.clone()",
            )
        expected = (x.shape[0], self._num_classes)
        if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise HPGMNError(
                f"{self._name}: forward({', '.join(inputs)}) must return a row for each node and a "
                f"column for each class, {expected} (got {shape})."
            )
        if torch.is_grad_enabled() and not logits.requires_grad:
            raise HPGMNError(
                f"{self._name}: the result of forward does not depend on its parameters.",
                "Leave detach() and no_grad() out",
            )
        return logits.float()


@contextmanager
def _seed_generators(noise: Noise | None, place: str, replica: int) -> Iterator[None]:
    """Seed torch's generators with the replica's number for this step, then restore them."""
    if noise is None:
        yield
        return
    device = noise.keys.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int(noise.bits(place, 1)[replica, 0]))
        yield


def _main(
    name: str, model: type[nn.Module], task: TrainingTask, done: Mapping[str, Parameters]
) -> TrainingStage:
    first: CustomSettings = task.settings[0]
    make = partial(_instantiate, name, model, first, task.graph.num_features, task.output_dim)
    looped = Looped(name, make, task.output_dim, len(task.replicas))
    x = task.graph.x
    dense = x.toarray() if sp.issparse(x) else np.array(x, np.float32)
    edges = task.statistics.adjacency(first.neighbors).tocoo()
    edges.eliminate_zeros()
    edge_index = np.stack([edges.col, edges.row]).astype(np.int64)  # messages flow to the reader
    inputs = {"x": torch.from_numpy(dense), "edge_index": torch.from_numpy(edge_index)}
    if "edge_weight" in inspect.signature(model.forward).parameters:
        inputs["edge_weight"] = torch.from_numpy(edges.data.astype(np.float32))
    inputs = {key: value.to(task.device) for key, value in inputs.items()}
    return main_stage(task, looped, inputs, is_replayable=False)


def _floats(
    name: str, model: type[nn.Module], graph: Graph, settings: CustomSettings
) -> tuple[int, int]:
    module = _instantiate(name, model, settings, graph.num_features, graph.num_classes or 1)
    shapes = [parameter.shape for parameter in module.parameters()]
    widths = sum(min(shape) for shape in shapes if len(shape) > 1)
    edges = 2 * graph.num_edges / max(graph.num_nodes, 1)
    parameters = sum(shape.numel() for shape in shapes)
    return parameters, int(widths * (6 + edges))  # such modules often gather by edge
