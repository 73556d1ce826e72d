"""A search by validation score that is kept in a study, so that it can be continued.

A trial is one draw of settings, trained on every requested split and seed at once. Each trial has a
place in the search, 0, 1, 2 …; an interrupted one is repeated at the same place. What a place tries
depends only on the trials before it, so an interrupted search continues as if it had not been
interrupted (one worker, on a CPU).
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import HPGMNError, Remedy, SettingError, format_setting
from hpgmn.base.settings import make_settings, settings_dict, to_plain
from hpgmn.graph import Graph
from hpgmn.graph.content import search_content
from hpgmn.models import find_model, read_config
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.study import is_done
from hpgmn.runs.trials import Space, paper_space, planned_trials, space_for

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

SPACES = ("ours", "paper")
SAMPLERS = ("tpe", "random")

PRUNING_EPOCHS = 60
"""No trial is pruned earlier."""
PRUNING_TRIALS = 5
"""Number of finished trials before any trial is pruned."""
SAMPLED_BEST, SAMPLED_LATEST = 100, 400
"""Of a longer search TPE sees the best and the latest trials only: the time for a suggestion grows
with their number, and at most the best 25 count as good."""

_RECORDED = ("val_score", "val_loss", "best_epoch", "seconds", "device", "version")

Choices = dict[str, dict[Any, Any]]
"""For each setting with several values to try: how the study stores a value → the value."""


@dataclass(frozen=True)
class TuneSpec:
    """What is searched; with the graph it determines what is tried.

    Attributes:
        run: what a trial trains; its settings are those fixed in all trials.
        space: "ours", the values for this kind of graph, or "paper", those that the paper prints.
        sampler: "tpe", or "random": the planned trials of a comparison.
        pruning: whether trials below the median of the others are stopped.
    """

    run: RunSpec
    space: str = "ours"
    sampler: str = "tpe"
    pruning: bool = True

    def values(self, graph: Graph) -> Space:
        """Return the values to try."""
        if self.space == "paper":
            return paper_space()
        return space_for(self.run.model, graph.name)

    def choices(self, graph: Graph) -> Choices:
        """Return the values of the settings that are searched; there must be some."""
        choices = {
            name: {study_value(value): value for value in values}
            for name, values in self.values(graph).items()
            if name not in self.run.settings and len(values) > 1
        }
        if not choices:
            raise SettingError(
                f"Nothing is left to search: every setting of the space '{self.space}' of "
                f"{self.run.model} is fixed.",
                "Fix fewer settings",
            )
        return choices

    def identity(self, graph: Graph) -> dict[str, Any]:
        """Return what a study stores, so that only the same search continues it."""
        run = self.run
        return {
            "graph": graph.name,
            "model": run.model,
            "space": self.space,
            "sampler": self.sampler,
            "splits": list(run.splits),
            "seeds": run.seeds,
            "protocol": run.protocol,
            "metric": run.metric,
            "fixed": {name: to_plain(value) for name, value in run.settings.items()},
            **({} if run.positive is None else {"positive": run.positive}),
            **({"deterministic": True} if run.deterministic else {}),
            **({"tables": dict(run.tables)} if run.tables else {}),
            "values": {name: list(stored) for name, stored in self.choices(graph).items()},
            "content": search_content(graph, run.splits),
        }


def check_names(space: str, sampler: str, model: str) -> None:
    """Refuse an unknown space, sampler or model, and the paper's space for another model."""
    if space not in SPACES:
        raise SettingError.unknown("space", space, SPACES)
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
    return format_setting(value) if isinstance(value, tuple | list) else value


class Search:
    """A search and its study: starts trials, prunes them while they train, and records results.

    Args:
        workers: how many trials are trained at a time.
    """

    def __init__(self, study: Study, spec: TuneSpec, graph: Graph, workers: int = 1) -> None:
        from optuna.pruners import MedianPruner
        from optuna.trial import TrialState

        self.study, self.spec, self.graph = study, spec, graph
        self.errors: dict[int, HPGMNError] = {}  # by trial; the study holds their text
        self._workers = workers
        self._choices = spec.choices(graph)
        self._base = read_config("paper")["settings"] if spec.space == "paper" else {}
        identity = json.dumps(spec.identity(graph), sort_keys=True)
        self._seed = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4], "big")
        study.pruner = MedianPruner(
            n_startup_trials=PRUNING_TRIALS,
            n_warmup_steps=PRUNING_EPOCHS,
            n_min_trials=PRUNING_TRIALS,
        )
        # Unfinished trials of a killed search fail, and are repeated at their places.
        for _ in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            study.tell(study.ask(), state=TrialState.FAIL)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)

    def pending(self, count: int) -> list[int]:
        """Return the places among the first ``count`` that are not done."""
        done = {
            trial.user_attrs["place"]
            for trial in self.study.get_trials(deepcopy=False)
            if is_done(trial)
        }
        return [place for place in range(count) if place not in done]

    def start(self, place: int) -> Trial:
        """Start the trial at a place; its user attribute ``settings`` holds what to train."""
        known = self._known_settings(place)
        self.study.sampler = self._sampler(place)
        names = list(self._choices)
        if known is not None:
            settings = self._complete(known)
            stored = {
                name: study_value(settings[name])
                for name, choices in self._choices.items()
                if name in settings and study_value(settings[name]) in choices
            }
            names = list(stored)
            self.study.enqueue_trial(stored)
        elif suggested := self._suggestion_of_sample():
            self.study.enqueue_trial(suggested)
        trial = self.study.ask()
        trial.set_user_attr("place", place)
        drawn = {}
        for name in names:
            chosen = trial.suggest_categorical(name, list(self._choices[name]))
            drawn[name] = self._choices[name][chosen]
        if known is None:
            space = self.spec.values(self.graph)
            known = {name: values[0] for name, values in space.items() if len(values) == 1} | drawn
        trial.set_user_attr("settings", self._complete(known))
        return trial

    def _suggestion_of_sample(self) -> dict[str, Any]:
        """Return what the sampler suggests from a part of a long search; nothing if short."""
        import optuna

        sample = sample_for_sampler(self.study.get_trials(deepcopy=False), self._workers > 1)
        if sample is None:
            return {}
        distributions: dict[str, BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(list(stored))
            for name, stored in self._choices.items()
        }
        short = optuna.create_study(direction="maximize", sampler=self.study.sampler)
        for trial in sample:
            short.add_trial(
                optuna.trial.create_trial(
                    state=trial.state,
                    value=trial.value if trial.state.is_finished() else None,
                    params=trial.params,
                    distributions=trial.distributions,
                    intermediate_values=trial.intermediate_values,
                )
            )
        return dict(short.ask(distributions).params)

    def _known_settings(self, place: int) -> Mapping[str, Any] | None:
        """Return settings that are planned, or those of an interrupted trial at the place."""
        spec = self.spec
        if spec.sampler == "random" or place == 0:
            space = paper_space() if spec.space == "paper" else None
            return planned_trials(spec.run.model, self.graph.name, place + 1, space)[place]
        for trial in self.study.get_trials(deepcopy=False):
            if trial.user_attrs.get("place") == place and "settings" in trial.user_attrs:
                settings: Mapping[str, Any] = trial.user_attrs["settings"]
                return settings
        return None

    def _complete(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of a trial; invalid ones unchanged, since training refuses them."""
        values = {**self._base, **settings, **self.spec.run.settings}
        try:
            return settings_dict(make_settings(find_model(self.spec.run.model).settings, values))
        except SettingError:
            return {name: to_plain(value) for name, value in values.items()}

    def _sampler(self, place: int) -> BaseSampler:
        """Return a sampler seeded by the place, so that a continued search draws the same."""
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import RandomSampler, TPESampler

        seed = (self._seed + place) % 2**32
        if self.spec.sampler == "random":
            return RandomSampler(seed=seed)  # draws nothing: every place is planned
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # of constant_liar, in Optuna 4
            return TPESampler(seed=seed, multivariate=False, constant_liar=self._workers > 1)

    def should_prune(self, trial: Trial, epoch: int, score: float) -> bool:
        """Record the score of a trial at an epoch; return whether to stop the trial."""
        trial.report(score, epoch)
        return self.spec.pruning and trial.should_prune()

    def finish(self, trial: Trial, record: Mapping[str, Any]) -> None:
        """Record a trial that was trained to its end."""
        trial.set_user_attr("record", {key: record[key] for key in _RECORDED})
        self.study.tell(trial, record["val_score_mean"])

    def prune(self, trial: Trial) -> None:
        """Record that a trial was stopped."""
        from optuna.trial import TrialState

        self.study.tell(trial, state=TrialState.PRUNED)

    def fail(self, trial: Trial, error: HPGMNError | None = None) -> None:
        """Record an interrupted trial, which is repeated, or why a trial cannot be trained."""
        from optuna.trial import TrialState

        if error is not None:
            self.errors[trial.number] = error
            trial.set_user_attr("error", str(error))
        self.study.tell(trial, state=TrialState.FAIL)


def sample_for_sampler(trials: Sequence[FrozenTrial], is_shared: bool) -> list[FrozenTrial] | None:
    """Return the best and the latest trials of a long search, in order; None for a short one.

    Args:
        trials: all of the search.
        is_shared: whether several are trained at a time; then running ones are included.
    """
    from optuna.trial import TrialState

    ended = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    if len(ended) <= SAMPLED_BEST + SAMPLED_LATEST:
        return None
    complete = [trial for trial in ended if trial.state == TrialState.COMPLETE]
    best = sorted(complete, key=lambda trial: (-(trial.value or 0.0), trial.number))
    chosen = {t.number: t for t in [*best[:SAMPLED_BEST], *ended[-SAMPLED_LATEST:]]}
    running = [trial for trial in trials if is_shared and trial.state == TrialState.RUNNING]
    return [chosen[number] for number in sorted(chosen)] + running
