"""A user's own model under the same protocol: any torch module that maps (x, edge_index) to logits.

``--model package.module:Class`` names it. The class is made for each replica and called one replica
after the other; everything else (splits, seeds, selection on validation, saving, resuming) is what
every model here has. Weights of edges are not passed on. A :class:`ModelEntry` may be named instead
of a class: that is how a model whose replicas are trained as one is brought along.
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
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter
from typing_extensions import override

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.randomness import Noise
from hpgmn.base.settings import TrainSettings, setting, settings_dict
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import NodeModel
from hpgmn.models.layers import Initialised, Output
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage

_WIDTHS = ("num_features", "num_classes")
_KINDS = (bool, int, float, str)
_FIXED = "fixed:"  # begins the name of a parameter that the module itself does not train
_FORM = "Write --model package.module:Class, for example --model own_model:TwoHop."


def is_own(name: str) -> bool:
    """Whether a model's name is that of a user's own class.

    >>> is_own("own_model:TwoHop"), is_own("gcn")
    (True, False)
    """
    return ":" in name


def own_model(name: str) -> ModelEntry:
    """The model behind ``package.module:Class``, found from the current folder or installed."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise HPGMNError(f"'{name}' does not name a model. {_FORM}")
    if "/" in module_name or module_name.endswith(".py") or module_name.startswith("."):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise HPGMNError(
            f"'{module_name}' is a file. Name the module: --model {dotted}:{attribute}, in the "
            "folder that its first part is in."
        )
    module = _module(module_name)
    found = getattr(module, attribute, None)
    if isinstance(found, ModelEntry):
        return dataclasses.replace(found, name=name, source=_digest(module))
    if found is None:
        classes = [
            key
            for key, value in vars(sys.modules[module_name]).items()
            if inspect.isclass(value) and value.__module__ == module_name
        ]
        raise HPGMNError.unknown(f"class in {module_name}:", attribute, classes)
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise HPGMNError(f"{name} is not a class derived from torch.nn.Module. {_FORM}")
    settings = _settings(name, found)
    return ModelEntry(
        name,
        (inspect.getdoc(found) or "a model of your own").splitlines()[0],
        "your own",
        settings,
        {"main": partial(_main, name, found)},
        partial(_floats, name, found),
        source=_digest(module),
    )


def _digest(module: Any) -> str:
    """A digest of a module's file: a model goes with the code it was trained with."""
    path = getattr(module, "__file__", None)
    if path is None or not Path(path).is_file():
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _module(name: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:  # as `python -m` has it; an installed command has not
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise HPGMNError(
                f"{name} imports {error.name}, which is not installed. Install it, and repeat the "
                "command."
            ) from error
        raise HPGMNError(
            f"There is no module '{name}' here or among the installed ones. Run the command in "
            f"the folder that holds it. {_FORM}"
        ) from None
    except Exception as error:
        raise HPGMNError(f"Importing {name} failed: {_place(error)}. Correct it there.") from error


def _place(error: Exception) -> str:
    """An error in one line, with the place in the user's code that it came from."""
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return words  # names its file and line itself
    libraries = (str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"], "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith(libraries) and frame.filename != __file__
    ]
    if not (own or frames):
        return words
    last = (own or list(frames))[-1]
    return f"{words} ({Path(last.filename).name}, line {last.lineno})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnSettings(TrainSettings):
    """What every model of a user's own has: training, and whose edges it reads."""

    neighbors: str = setting(
        "undirected", "whose edges a node reads", choices=("out", "in", "undirected")
    )


def _settings(name: str, own: type[nn.Module]) -> type[OwnSettings]:
    """The settings of a class: those of training, and its keywords with their defaults."""
    parameters = inspect.signature(own).parameters
    for width in _WIDTHS:
        if width not in parameters:
            raise HPGMNError(
                f"{name} must take num_features and num_classes. Write: "
                "def __init__(self, num_features, num_classes, hidden_dim=64)."
            )
    inherited = {info.name for info in dataclasses.fields(OwnSettings)}
    fields: list[tuple[str, Any, Any]] = []
    for key, parameter in parameters.items():
        if key in _WIDTHS or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind = type(parameter.default)
        if kind not in _KINDS:
            raise HPGMNError(
                f"{name}: give '{key}' a default that is a number, a word, true or false, as in "
                f"{key}=64."
            )
        if key == "dropout" and kind is not float:
            raise HPGMNError(
                f"{name}: write the default of 'dropout' with a point, as in dropout=0.5 (got "
                f"{parameter.default!r})."
            )
        if key in inherited - {"dropout"}:
            raise HPGMNError(f"{name}: '{key}' is a setting of training; call yours otherwise.")
        fields.append((key, kind, setting(parameter.default, f"{own.__name__}'s {key}")))
    made = dataclasses.make_dataclass(
        f"{own.__name__}Settings", fields, bases=(OwnSettings,), frozen=True, kw_only=True
    )
    made.__doc__ = f"Everything that can be set about {own.__name__}."
    return made


def _made(
    name: str, own: type[nn.Module], settings: OwnSettings, num_features: int, num_classes: int
) -> nn.Module:
    """One module of the user's class."""
    taken = inspect.signature(own).parameters
    given = settings_dict(settings)
    if "dropout" not in taken and given["dropout"] != OwnSettings().dropout:
        raise SettingError(f"{name} takes no dropout. Give its __init__ one, or leave it out.")
    keywords = {key: given[key] for key in taken if key in given}
    try:
        with torch.random.fork_rng([]):  # its first values are drawn here
            made = own(num_features=num_features, num_classes=num_classes, **keywords)
    except Exception as error:
        raise HPGMNError(f"Making {name} failed: {_place(error)}. Correct it there.") from error
    _require_trainable(name, made)
    return made


def _require_trainable(name: str, module: nn.Module) -> None:
    """Refuse a module that replicas cannot be made of."""
    parameters = list(module.parameters())
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise HPGMNError(
            f"{name}: a lazy layer has no width yet. Give every layer its widths; that of the "
            "first is num_features."
        )
    if not any(parameter.requires_grad for parameter in parameters):
        raise HPGMNError(
            f"{name} has no parameters to train. Keep its layers in attributes, several of them "
            "in a torch.nn.ModuleList."
        )
    for part in module.modules():
        if isinstance(part, _NormBase) and part.track_running_stats:
            raise HPGMNError(
                f"{name}: {type(part).__name__} keeps running statistics, which replicas do not "
                "have. Use LayerNorm, or track_running_stats=False."
            )


class Looped(Initialised, NodeModel):
    """R copies of a module behind parameters that lead with R, called one after the other.

    Random numbers of the module itself (its first values, its dropout) come from torch's global
    generator, which is set from the replica's key and the step for the length of each call.
    Parameters that the module does not train stay as they are. Buffers are the same in all
    replicas and are not saved: they are made anew, a random one with the same numbers.

    Args:
        name: what messages call the model.
        make: makes one module.
        num_classes: C.
        replicas: R.
    """

    def __init__(
        self, name: str, make: Callable[[], nn.Module], num_classes: int, replicas: int
    ) -> None:
        super().__init__()
        self._name, self._make, self._num_classes = name, make, num_classes
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self._template = [make()]  # in a list: its parameters are not this module's
        self._places: dict[str, str] = {}
        for place, parameter in self._template[0].named_parameters():
            own = place.replace(".", "/")
            self._places[place] = own if parameter.requires_grad else f"{_FIXED}{own}"
            values = torch.zeros(replicas, *parameter.shape)
            self.register_parameter(self._places[place], nn.Parameter(values))

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        for replica in range(noise.keys.shape[0]):
            with _seeded(noise, place, replica):
                fresh = dict(self._make().named_parameters())
            for name, own in self._places.items():
                self.get_parameter(own)[replica].copy_(fresh[name])

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        [template] = self._template
        x, edge_index = inputs["x"], inputs["edge_index"]
        template.to(x.device).train(noise is not None)
        own = {name: self.get_parameter(place) for name, place in self._places.items()}
        replicas = next(iter(own.values())).shape[0]
        logits = []
        for replica in range(replicas):
            values = {name: value[replica] for name, value in own.items()}
            with _seeded(noise, "forward", replica):
                logits.append(self._called(template, values, x, edge_index))
        return Output(torch.stack(logits))

    def _called(
        self, template: nn.Module, values: Parameters, x: Tensor, edge_index: Tensor
    ) -> Tensor:
        before = (x._version, edge_index._version)
        try:
            found = functional_call(template, values, (x, edge_index))
        except Exception as error:
            raise HPGMNError(f"{self._name} failed: {_place(error)}. Correct it there.") from error
        if (x._version, edge_index._version) != before:
            raise HPGMNError(
                f"{self._name} writes into x or edge_index, which all replicas read. Leave inplace "
                "out, or work on a copy: x = x.clone()."
            )
        expected = (x.shape[0], self._num_classes)
        if not isinstance(found, Tensor) or tuple(found.shape) != expected:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise HPGMNError(
                f"{self._name}: forward(x, edge_index) must return a row for each node and a "
                f"column for each class, {expected} (got {shape})."
            )
        if torch.is_grad_enabled() and not found.requires_grad:
            raise HPGMNError(
                f"{self._name}: what forward returns does not depend on its parameters. Leave "
                "detach() and no_grad() out."
            )
        return found.float()


@contextmanager
def _seeded(noise: Noise | None, place: str, replica: int) -> Iterator[None]:
    """Torch's own generators set to the replica's number for this step, then put back."""
    if noise is None:
        yield
        return
    device = noise.keys.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int(noise.bits(place, 1)[replica, 0]))
        yield


def _main(
    name: str, own: type[nn.Module], task: TrainingTask, done: Mapping[str, Parameters]
) -> TrainingStage:
    first: OwnSettings = task.settings[0]
    make = partial(_made, name, own, first, task.graph.num_features, task.num_classes)
    model = Looped(name, make, task.num_classes, len(task.replicas))
    x = task.graph.x
    dense = x.toarray() if sp.issparse(x) else np.array(x, np.float32)
    centers, neighbors = task.statistics.adjacency(first.neighbors).nonzero()
    edge_index = np.stack([neighbors, centers]).astype(np.int64)  # a message goes to its reader
    inputs = {
        "x": torch.from_numpy(dense).to(task.device),
        "edge_index": torch.from_numpy(edge_index).to(task.device),
    }
    return main_stage(task, model, inputs, frozen=(_FIXED,), is_replayable=False)


def _floats(
    name: str, own: type[nn.Module], graph: Graph, settings: OwnSettings
) -> tuple[int, int]:
    made = _made(name, own, settings, graph.num_features, graph.num_classes)
    shapes = [parameter.shape for parameter in made.parameters()]
    widths = sum(min(shape) for shape in shapes if len(shape) > 1)
    edges = 2 * graph.num_edges / max(graph.num_nodes, 1)
    parameters = sum(shape.numel() for shape in shapes)
    return parameters, int(widths * (6 + edges))  # modules of this form often gather by edge
