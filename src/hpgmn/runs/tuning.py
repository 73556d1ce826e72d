"""A search by validation score whose trials are kept in a study file, so that it can go on later.

A trial is one draw of settings, trained on every asked split and seed at once. Each trial has a
place in the search, 0, 1, 2 …; one that was cut off is run again at the same place. What a place
tries depends on the trials before it alone, so a search that was interrupted goes on as if it
had not been (one worker, on a CPU).

No test label is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import Remedy, SettingError, format_setting
from hpgmn.base.settings import make_settings, settings_dict, to_plain
from hpgmn.graph import Graph
from hpgmn.graph.graph import search_content
from hpgmn.models import find_model, read_config
from hpgmn.runs.search import planned_trials, run_trials
from hpgmn.runs.spaces import Space, paper_space, space_for
from hpgmn.training.checks import class_number
from hpgmn.training.replicas import Progress
from hpgmn.training.trainer import deterministic_algorithms

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

SPACE_NAMES = ("ours", "paper")
SAMPLERS = ("tpe", "random")

JUDGED_EPOCHS = 20
"""A trial may be given up each time it has trained so many epochs more."""
SPARED_EPOCHS = 60
"""No trial is given up before."""
SPARED_TRIALS = 5
"""Nor before so many trials have come to their end."""
RECALLED_BEST, RECALLED_LATEST = 100, 400
"""Of a search with more trials TPE looks at so many: the time for a suggestion grows with them, and
those that it takes for good are never more than the best 25."""

_RECORDED = ("val_score", "val_loss", "best_epoch", "seconds", "device", "version")

Judge = Callable[[int, float], bool]
"""Told the epoch and the mean of the best scores so far; whether the trial is hopeless."""


class HopelessTrialError(Exception):
    """Ends the training of a trial that is given up."""


@dataclass(frozen=True)
class TuneSpec:
    """What is searched; with the graph itself it determines what is tried.

    Attributes:
        graph: the dataset's name or the graph file.
        model: the model's name.
        space: "ours", the values for this kind of graph, or "paper", those that the paper prints.
        sampler: "tpe", or "random": the planned trials of a comparison.
        splits: the numbers of the splits.
        seeds: how many seeds on each split.
        protocol: the protocol whose splits are used, if any.
        metric: what selects epochs and is searched for.
        positive: the class that average_precision and precision@K of two classes look for.
        fixed: settings that all trials have; they are not searched.
        device: "cpu" or "cuda".
        pruning: whether hopeless trials are given up.
        deterministic: whether a GPU is to give the same bits each time.
    """

    graph: str
    model: str = "hpgmn"
    space: str = "ours"
    sampler: str = "tpe"
    splits: tuple[int, ...] = (0,)
    seeds: int = 1
    protocol: str | None = None
    metric: str = "accuracy"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    pruning: bool = True
    positive: str | None = None
    deterministic: bool = False

    def identity(self, graph: Graph) -> dict[str, Any]:
        """What a study keeps, to be continued by the same search only."""
        about = asdict(self)
        del about["device"], about["pruning"]
        if self.positive is None:  # a study of an earlier version goes on
            del about["positive"]
        if not self.deterministic:
            del about["deterministic"]
        about["graph"] = graph.name
        about["splits"] = list(self.splits)
        about["fixed"] = {name: to_plain(value) for name, value in self.fixed.items()}
        about["values"] = {name: list(words) for name, words in Choices.of(self, graph).items()}
        about["content"] = search_content(graph, self.splits)
        return about


def check_names(space: str, sampler: str, model: str) -> None:
    """Refuse an unknown space, sampler or model, and the paper's space for another model."""
    if space not in SPACE_NAMES:
        raise SettingError.unknown("space", space, SPACE_NAMES)
    if sampler not in SAMPLERS:
        raise SettingError.unknown("sampler", sampler, SAMPLERS)
    find_model(model)
    if space == "paper" and model != "hpgmn":
        raise SettingError(
            f"The space of the paper is for hpgmn only (got {model}).",
            Remedy("Use our space", option="space", value="ours"),
        )


def study_value(value: Any) -> Any:
    """Return a value as a study stores it: several names as one text, others unchanged.

    >>> study_value(("attributes", "diffusion")), study_value(0.5)
    ('attributes,diffusion', 0.5)
    """
    return format_setting(list(value)) if isinstance(value, tuple | list) else value


class Choices(dict[str, dict[Any, Any]]):
    """For each setting with more than one value to try: its words, each with its value."""

    @classmethod
    def of(cls, spec: TuneSpec, graph: Graph) -> Choices:
        """Those of a search; a space in which nothing is left to choose is refused."""
        found = cls()
        for name, values in _space(spec, graph).items():
            if name not in spec.fixed and len(values) > 1:
                found[name] = {study_value(value): value for value in values}
        if not found:
            raise SettingError(
                f"Nothing is left to search: every setting of the space '{spec.space}' of "
                f"{spec.model} is fixed.",
                "Fix fewer settings",
            )
        return found

    def words_of(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Of all settings those that the study can hold, as words: values that are in the space."""
        return {
            name: study_value(settings[name])
            for name, words in self.items()
            if name in settings and study_value(settings[name]) in words
        }


def _space(spec: TuneSpec, graph: Graph) -> Space:
    return paper_space() if spec.space == "paper" else space_for(spec.model, graph.name)


class Tuning:
    """A search and its study: begins trials, judges them while they train, and ends them.

    Args:
        study: where trials are kept.
        spec: what is searched.
        graph: the graph.
        workers: how many trials are trained at a time.
    """

    def __init__(self, study: Study, spec: TuneSpec, graph: Graph, workers: int = 1) -> None:
        self.study, self.spec, self.graph = study, spec, graph
        self._workers = workers
        self._choices = Choices.of(spec, graph)
        self._entry = find_model(spec.model)
        self._base = read_config("paper")["settings"] if spec.space == "paper" else {}
        identity = json.dumps(spec.identity(graph), sort_keys=True)
        self._seed = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4], "big")
        self.study.pruner = _pruner()
        self._abandon_leftovers()

    def _abandon_leftovers(self) -> None:
        """Trials of a search that was killed end as failed; their places are still to be done."""
        from optuna.trial import TrialState

        for _ in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self.study.tell(self.study.ask(), state=TrialState.FAIL)
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(trial.number, state=TrialState.FAIL)

    def places(self, count: int) -> list[int]:
        """The places among the first so many that are still to be done."""
        done = {
            one.user_attrs["place"] for one in self.study.get_trials(deepcopy=False) if is_done(one)
        }
        return [place for place in range(count) if place not in done]

    def begin(self, place: int) -> Trial:
        """The trial at a place; its user attribute ``settings`` says what is to be trained."""
        known = self._known(place)
        self.study.sampler = self._sampler(place)
        names = list(self._choices)
        if known is not None:
            words = self._choices.words_of(self._complete(known))
            names = list(words)
            self.study.enqueue_trial(words)
        elif words := self._recalled_suggestion():
            self.study.enqueue_trial(words)
        trial = self.study.ask()
        trial.set_user_attr("place", place)
        drawn = {}
        for name in names:
            chosen = trial.suggest_categorical(name, list(self._choices[name]))
            drawn[name] = self._choices[name][chosen]
        settings = self._only_values() | drawn if known is None else known
        trial.set_user_attr("settings", self._complete(settings))
        return trial

    def _recalled_suggestion(self) -> dict[str, Any]:
        """What the sampler suggests after a part of a long search; nothing where it is short."""
        import optuna

        recalled = recalled_trials(self.study.get_trials(deepcopy=False), self._workers > 1)
        if recalled is None:
            return {}
        forms: dict[str, BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(list(words))
            for name, words in self._choices.items()
        }
        short = optuna.create_study(direction="maximize", sampler=self.study.sampler)
        for one in recalled:
            short.add_trial(
                optuna.trial.create_trial(
                    state=one.state,
                    value=one.value if one.state.is_finished() else None,
                    params=one.params,
                    distributions=one.distributions,
                    intermediate_values=one.intermediate_values,
                )
            )
        return dict(short.ask(forms).params)

    def _known(self, place: int) -> Mapping[str, Any] | None:
        """The settings of a place, where they are known before its turn."""
        if self.spec.sampler == "random" or place == 0:
            space = paper_space() if self.spec.space == "paper" else None
            return planned_trials(self.spec.model, self.graph.name, place + 1, space)[place]
        for trial in self.study.get_trials(deepcopy=False):  # it was cut off: the same again
            if trial.user_attrs.get("place") == place and "settings" in trial.user_attrs:
                settings: Mapping[str, Any] = trial.user_attrs["settings"]
                return settings
        return None

    def _only_values(self) -> dict[str, Any]:
        """Of settings that the space gives one value: that one."""
        space = _space(self.spec, self.graph)
        return {name: values[0] for name, values in space.items() if len(values) == 1}

    def _complete(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """All settings of a trial; those that do not go together as they are, to be refused."""
        values = {**self._base, **settings, **self.spec.fixed}
        try:
            return settings_dict(make_settings(self._entry.settings, values))
        except SettingError:
            return {name: to_plain(value) for name, value in values.items()}

    def _sampler(self, place: int) -> BaseSampler:
        """A sampler of the place's own, so that a search that goes on later draws the same."""
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import RandomSampler, TPESampler

        seed = (self._seed + place) % 2**32
        if self.spec.sampler == "random":
            return RandomSampler(seed=seed)  # has nothing to draw: every place is planned
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # of constant_liar, in Optuna 4
            return TPESampler(seed=seed, multivariate=False, constant_liar=self._workers > 1)

    def judge(self, trial: Trial, epoch: int, score: float) -> bool:
        """Keep how far a trial has come, and say whether it is hopeless."""
        trial.report(score, epoch)
        return self.spec.pruning and trial.should_prune()

    def end(self, trial: Trial, found: Mapping[str, Any]) -> None:
        """Keep the record of a trial that was trained to its end."""
        trial.set_user_attr("record", {key: found[key] for key in _RECORDED})
        self.study.tell(trial, found["val_score_mean"])

    def give_up(self, trial: Trial) -> None:
        """Keep that a trial was hopeless."""
        from optuna.trial import TrialState

        self.study.tell(trial, state=TrialState.PRUNED)

    def refuse(self, trial: Trial, message: str) -> None:
        """Keep why a trial cannot be trained; it is not run again."""
        trial.set_user_attr("error", message)
        self.abandon(trial)

    def abandon(self, trial: Trial) -> None:
        """Keep that a trial was cut off; its place is still to be done."""
        from optuna.trial import TrialState

        self.study.tell(trial, state=TrialState.FAIL)


def recalled_trials(trials: Sequence[FrozenTrial], is_shared: bool) -> list[FrozenTrial] | None:
    """Of a long search the best and the latest trials, in their order; None of a short one.

    Args:
        trials: of the search.
        is_shared: whether several are trained at a time; then those in training count, too.
    """
    from optuna.trial import TrialState

    ended = [one for one in trials if one.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    if len(ended) <= RECALLED_BEST + RECALLED_LATEST:
        return None
    complete = [one for one in ended if one.state == TrialState.COMPLETE]
    best = sorted(complete, key=lambda one: (-(one.value or 0.0), one.number))[:RECALLED_BEST]
    chosen = {one.number: one for one in [*best, *ended[-RECALLED_LATEST:]]}
    running = [one for one in trials if is_shared and one.state == TrialState.RUNNING]
    return [chosen[number] for number in sorted(chosen)] + running


def _pruner() -> Any:
    from optuna.pruners import MedianPruner

    return MedianPruner(
        n_startup_trials=SPARED_TRIALS, n_warmup_steps=SPARED_EPOCHS, n_min_trials=SPARED_TRIALS
    )


def is_done(trial: FrozenTrial) -> bool:
    """Whether a trial's place is done: trained, given up, or impossible to train."""
    from optuna.trial import TrialState

    is_finished = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    return is_finished or "error" in trial.user_attrs


def train_trial(
    graph: Graph,
    spec: TuneSpec,
    settings: Mapping[str, Any],
    judge: Judge,
    should_stop: Callable[[], bool],
    memory_share: float = 1.0,
) -> dict[str, Any]:
    """Train one trial; raises HopelessTrialError when the judge gives it up.

    Args:
        graph: the graph.
        spec: what is searched.
        settings: of the trial.
        judge: says whether a trial is hopeless.
        should_stop: asked after each epoch; True ends the training as Ctrl-C does.
        memory_share: see :func:`hpgmn.training.replicas.fit_replicas`.

    Returns:
        Its record, as :func:`~hpgmn.runs.search.run_trials` makes it.
    """
    last_stage = list(find_model(spec.model).stages)[-1]
    with deterministic_algorithms(spec.deterministic, spec.device):
        (found,) = run_trials(
            graph,
            spec.model,
            [settings],
            splits=spec.splits,
            seeds=spec.seeds,
            device=spec.device,
            metric=spec.metric,
            positive=class_number(spec.positive, graph.class_names),
            report=Judged(last_stage, judge),
            should_stop=should_stop,
            memory_share=memory_share,
        )
    return found


class Judged:
    """Asks the judge now and then, about the stage whose score counts.

    Trials are compared at the same epochs, and over the same runs: those that memory splits into
    several batches are trained to their end. A GPU tells its progress by time, so an epoch stands
    for the few after it.

    Args:
        stage: the stage whose score counts.
        judge: says whether a trial is hopeless.
    """

    def __init__(self, stage: str, judge: Judge) -> None:
        self._stage, self._judge, self._epoch = stage, judge, 0

    def __call__(self, now: Progress) -> None:
        """Look at the progress of a training."""
        epoch = now.epoch // JUDGED_EPOCHS * JUDGED_EPOCHS
        is_other = now.stage != self._stage or math.isnan(now.val_score) or now.batches > 1
        if is_other or epoch <= self._epoch:
            return
        self._epoch = epoch
        if self._judge(epoch, now.val_score):
            raise HopelessTrialError
