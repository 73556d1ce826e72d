"""The state of a training, its file, and the optimizer of R replicas."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import RUN_FORMAT, damaged_file, is_draft, read_tensors, write_tensors
from hpgmn.base.randomness import load_kernels
from hpgmn.models.stage import Parameters, Rates, TrainingStage

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


class ReplicaAdam:
    """Adam (β₁ 0.9, β₂ 0.999, ε 1e-8) whose moments are plain tensors, easy to save and slice.

    Args:
        parameters: (R, …) tensors by name.
        rates: weight decay is L2, added to the gradient.
        first: first moments to continue from; zeros if None.
        second: second moments to continue from; zeros if None.
        steps: made before.
        own_rates: other rates, by prefix of parameter names.
    """

    def __init__(
        self,
        parameters: Parameters,
        rates: Rates,
        first: Parameters | None = None,
        second: Parameters | None = None,
        steps: int = 0,
        own_rates: Mapping[str, Rates] | None = None,
    ) -> None:
        self.parameters = parameters
        self.first = first or {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = second or {name: torch.zeros_like(p) for name, p in parameters.items()}
        special_rates = own_rates or {}
        groups: dict[str | None, dict[str, Tensor]] = {}
        for name, parameter in parameters.items():
            prefix = next((prefix for prefix in special_rates if name.startswith(prefix)), None)
            groups.setdefault(prefix, {})[name] = parameter
        self._groups = [
            _Group(members, rates if prefix is None else special_rates[prefix], steps)
            for prefix, members in groups.items()
        ]

    @torch.no_grad()
    def step(self) -> None:
        """Make one step along the parameters' gradients."""
        for group in self._groups:
            group.step(self.first, self.second)

    def clear(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None


class _Group:
    """Parameters that share their rates."""

    def __init__(self, parameters: Parameters, rates: Rates, steps: int) -> None:
        self.parameters = parameters
        device = next(iter(parameters.values())).device
        self._rates = set(zip(rates.lr, rates.weight_decay, strict=True))
        self._lr = torch.tensor(rates.lr, device=device)
        self._weight_decay = torch.tensor(rates.weight_decay, device=device)
        self._decay = torch.tensor([_BETA1, _BETA2], dtype=torch.float64, device=device)
        self._steps = torch.full((), steps, device=device)  # a CUDA graph counts here
        self._counts = [torch.full((), float(steps), device=device) for _ in parameters]

    def step(self, first: Parameters, second: Parameters) -> None:
        """Update the parameters and their moments."""
        if len(self._rates) > 1:
            self._step_each(first, second)
            return
        [(lr, weight_decay)] = self._rates
        names = [name for name, parameter in self.parameters.items() if parameter.grad is not None]
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        adam(
            [self.parameters[name] for name in names],
            gradients,
            [first[name] for name in names],
            [second[name] for name in names],
            [],
            self._counts[: len(names)],
            fused=True,
            amsgrad=False,
            beta1=_BETA1,
            beta2=_BETA2,
            lr=lr,
            weight_decay=weight_decay,
            eps=_EPSILON,
            maximize=False,
        )

    def _step_each(self, first: Parameters, second: Parameters) -> None:
        """Make the same step for replicas with different rates, broadcast over each tensor."""
        self._steps += 1
        scale1, scale2 = (1 - self._decay**self._steps).unbind()
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            shape = (-1, *[1] * (parameter.dim() - 1))
            gradient = parameter.grad + self._weight_decay.view(shape) * parameter
            mean = first[name].lerp_(gradient, 1 - _BETA1)
            square = second[name].mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
            spread = (square / scale2).sqrt_().add_(_EPSILON)
            parameter -= mean / spread * (self._lr.view(shape) / scale1)


def all_parameters(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return every parameter of a module by name."""
    return dict(module.named_parameters())


HISTORY = ("loss", "val_loss", "val_score")
"""The values recorded in each epoch for each replica."""


@dataclass
class StageState:
    """The state of the current stage.

    Attributes:
        epoch: epochs finished.
        live: the replicas still in training, as positions in the task.
        parameters: (L, …) current values by name.
        first: Adam's first moments.
        second: Adam's second moments.
        best: (R, …) the values at each replica's best epoch.
        best_score: (R,) validation score of that epoch.
        best_loss: (R,) validation loss of that epoch.
        best_epoch: (R,) its number.
        overflowed: (R,) whether the square of a gradient was infinite up to that epoch.
        history: for each of HISTORY one (R,) tensor per epoch; NaN for dropped replicas, and for
            validation in an unsupervised stage.
    """

    name: str
    epoch: int
    live: list[int]
    parameters: Parameters
    first: Parameters
    second: Parameters
    best: Parameters
    best_score: Tensor
    best_loss: Tensor
    best_epoch: Tensor
    overflowed: Tensor
    history: dict[str, list[Tensor]]


@dataclass
class TrainState:
    """The whole state of a training: finished stages, and the current one."""

    done: dict[str, Parameters] = field(default_factory=dict)
    best_score: dict[str, Tensor] = field(default_factory=dict)
    best_loss: dict[str, Tensor] = field(default_factory=dict)
    best_epoch: dict[str, Tensor] = field(default_factory=dict)
    history: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"statistics": 0.0, "training": 0.0})
    current: StageState | None = None


def count_seconds(state: TrainState, stage: str, since: float) -> float:
    """Add the time since then to the training time, in total and of this stage; return now."""
    now = time.perf_counter()
    for key in ("training", f"training {stage}"):
        state.seconds[key] = state.seconds.get(key, 0.0) + now - since
    return now


def start_stage(
    name: str,
    parameters: Parameters,
    moments: tuple[Parameters, Parameters],
    replicas: int,
    device: torch.device,
) -> StageState:
    """Return the state of a stage before its first epoch."""
    return StageState(
        name=name,
        epoch=0,
        live=list(range(replicas)),
        parameters=parameters,
        first=moments[0],
        second=moments[1],
        best={key: value.clone() for key, value in parameters.items()},
        best_score=torch.full((replicas,), -math.inf, device=device),
        best_loss=torch.full((replicas,), float("inf"), device=device),
        best_epoch=torch.zeros(replicas, dtype=torch.int64, device=device),
        overflowed=torch.zeros(replicas, dtype=torch.bool, device=device),
        history={key: [] for key in HISTORY},
    )


def update_best(
    current: StageState,
    live: Tensor,
    epoch: int | Tensor,
    score: Tensor,
    loss: Tensor,
    patience: int,
) -> None:
    """Keep the parameters of the replicas that improved.

    Args:
        current: its best values are changed in place.
        live: (L,) the replicas in training.
        epoch: the number of the finished epoch; a tensor inside a CUDA graph.
        score: (L,) on validation nodes.
        loss: (L,) on validation nodes.
        patience: a replica without improvement for longer is final; 0: none is.
    """
    best_score, best_loss = current.best_score[live], current.best_loss[live]
    best_epoch = current.best_epoch[live]
    better = (score > best_score) | ((score == best_score) & (loss < best_loss))
    better &= loss.isfinite()  # a diverged model still has an argmax, hence a score
    if patience:
        better &= epoch - best_epoch <= patience
    if score.device.type != "cuda":
        chosen = torch.nonzero(better).squeeze(1)
        if not chosen.numel():
            return
        improved = live[chosen]
        for key, value in current.parameters.items():
            current.best[key][improved] = value[chosen]
        current.overflowed[improved] = has_overflow(current)[chosen]
    else:  # no host–device synchronisation inside an epoch
        all_live = len(current.live) == current.best_score.shape[0]
        for key, value in current.parameters.items():
            mask, kept = better.view(-1, *[1] * (value.dim() - 1)), current.best[key]
            if all_live and load_kernels() is not None:
                load_kernels().replace(better, value, kept)
            else:
                kept.index_copy_(0, live, torch.where(mask, value, kept[live]))
        overflowed = torch.where(better, has_overflow(current), current.overflowed[live])
        current.overflowed.index_copy_(0, live, overflowed)
    current.best_score.index_copy_(0, live, torch.where(better, score, best_score))
    current.best_loss.index_copy_(0, live, torch.where(better, loss, best_loss))
    current.best_epoch.index_copy_(0, live, torch.where(better, epoch, best_epoch))


def has_overflow(current: StageState) -> Tensor:
    """Return (L,) whether a second moment is infinite, without host–device synchronisation."""
    largest = [  # a parameter may be a single number
        value.unsqueeze(1).flatten(1).amax(dim=1)
        for value in current.second.values()
        if value.numel()
    ]
    if not largest:
        return current.overflowed[current.live]
    return ~torch.stack(largest).isfinite().all(dim=0)


def improving_replicas(
    current: StageState, stage: TrainingStage, fixed: Tensor | None = None
) -> list[int]:
    """Return positions within ``live`` of the replicas that may still improve.

    Args:
        fixed: (R,) the epochs after which replicas stop instead.
    """
    last = current.best_epoch + (stage.patience or stage.epochs) if fixed is None else fixed
    ends, losses = last.tolist(), current.history["loss"][-1].tolist()
    return [
        position
        for position, replica in enumerate(current.live)
        if current.epoch < ends[replica] and math.isfinite(losses[replica])
    ]


def drop_replicas(current: StageState, kept: list[int]) -> None:
    """Keep only the replicas at these positions of ``live`` in training."""
    current.live = [current.live[position] for position in kept]
    for part in (current.parameters, current.first, current.second):
        for key, value in part.items():
            part[key] = value[kept]


_BEST = ("best_score", "best_loss", "best_epoch")  # stored for finished stages and the current one
_VALUES = ("parameters", "first", "second", "best")  # stored by name for the current stage


def write_state(path: Path, state: TrainState, identity: str) -> None:
    """Save a training state; ``identity`` identifies the training that may resume it."""
    tensors: dict[str, Tensor] = {}
    for stage, parameters in state.done.items():
        tensors |= {f"done/{stage}/{name}": value for name, value in parameters.items()}
        tensors |= {f"{part}/{stage}": getattr(state, part)[stage] for part in _BEST}
        tensors |= {f"history/{stage}/{key}": rows for key, rows in state.history[stage].items()}
    metadata: dict[str, Any] = {
        "format": RUN_FORMAT,
        "identity": identity,
        "stages": list(state.done),
        "seconds": state.seconds,
        "current": None,
    }
    current = state.current
    if current is not None:
        for part in _VALUES:
            values: Parameters = getattr(current, part)
            tensors |= {f"current/{part}/{name}": value for name, value in values.items()}
        tensors |= {f"current/{part}": getattr(current, part) for part in (*_BEST, "overflowed")}
        for key, rows in current.history.items():
            tensors[f"current/history/{key}"] = torch.stack(rows)
        metadata["current"] = {"name": current.name, "epoch": current.epoch, "live": current.live}
    write_tensors(path, tensors, metadata)


class OtherTrainingError(HPGMNError):
    """The states in a folder are those of another training."""


def require_identity(stored: object, identity: str, folder: Path) -> None:
    """Refuse to resume another training than the requested one."""
    if stored != identity:
        raise OtherTrainingError(
            f"{folder.parent} was started with other settings, graph, splits, seeds or code.",
            Remedy("Restore what has changed and resume", option="resume", value=True)
            | Remedy("Start again", option="overwrite", value=True),
        )


def state_files(folder: Path) -> list[Path]:
    """Return the states in a folder and below, without the drafts that a killed process left."""
    paths = folder.rglob("state*.safetensors")
    return [path for path in paths if not is_draft(path.parent.name)]


def read_spent(path: Path) -> tuple[float, int]:
    """Return the seconds and the epochs that a saved training has taken so far."""
    with _report_damage(path):
        tensors, metadata = read_tensors(path)
        seconds, current = metadata["seconds"], metadata["current"]
        finished = sum(len(tensors[f"history/{stage}/loss"]) for stage in metadata["stages"])
        epochs = finished + (current["epoch"] if current else 0)
        return float(seconds["statistics"] + seconds["training"]), epochs


def read_state(path: Path, identity: str, device: torch.device | str = "cpu") -> TrainState:
    """Read a training state to resume; refuse that of another training."""
    tensors, metadata = read_tensors(path, device)
    require_identity(metadata.get("identity"), identity, path.parent)

    def below(prefix: str) -> Parameters:
        return {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }

    with _report_damage(path):
        state = TrainState(seconds=metadata["seconds"])
        for stage in metadata["stages"]:
            state.done[stage] = below(f"done/{stage}/")
            for part in _BEST:
                getattr(state, part)[stage] = tensors[f"{part}/{stage}"]
            state.history[stage] = {key: tensors[f"history/{stage}/{key}"].cpu() for key in HISTORY}
        if metadata["current"] is not None:
            best_epoch = tensors["current/best_epoch"]
            if metadata.get("format", 1) == 1:  # did not record it
                tensors.setdefault("current/overflowed", torch.zeros_like(best_epoch).bool())
            fields: dict[str, Any] = {part: below(f"current/{part}/") for part in _VALUES}
            fields |= {part: tensors[f"current/{part}"] for part in (*_BEST, "overflowed")}
            history = {key: list(tensors[f"current/history/{key}"]) for key in HISTORY}
            state.current = StageState(**metadata["current"], **fields, history=history)
            _check_stage(state.current)
        return state


def _check_stage(current: StageState) -> None:
    """Refuse a stage whose parts differ in replicas, epochs or names."""
    live, moments = current.live, (current.first, current.second)
    lengths = {len(value) for part in (current.parameters, *moments) for value in part.values()}
    if not (
        set(live) <= set(range(len(current.best_epoch)))
        and lengths == {len(live)}
        and all(len(rows) == current.epoch for rows in current.history.values())
        and current.best.keys() == current.parameters.keys()
        and current.first.keys() == current.second.keys()
    ):
        raise ValueError("its parts do not belong together")


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    """Raise the error of a damaged file for an inconsistent state."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise damaged_file(path, f"is damaged or not an hpgmn file ({reason})") from None
