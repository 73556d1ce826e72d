"""Whatever settings, configs and hyperparameters say: checked values, or a sentence."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from hypothesis import strategies as st

if TYPE_CHECKING:
    from hpgmn.graph import Graph

pytestmark = pytest.mark.soak

WORDS = [
    *(
        "cuda:x",
        "cpu:7",
        "",
        " ",
        "none",
        "None",
        "true",
        "no",
        "0",
        "1",
        "-1",
        "0.5",
        "1e400",
        "nan",
        "inf",
        "-inf",
    ),
    *(
        "1_000",
        "٣",
        "0x10",
        "1e-3",
        "out",
        "both",
        "attributes",
        "attributes,diffusion",
        ",",
        "a,a",
    ),
    *(
        "../x",
        "/etc/passwd",
        "\x00",
        "\n",
        "\u202e",
        "🙂",
        "[1]",
        "{}",
        "null",
        "~",
        "lr=1",
        "x" * 3000,
    ),
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 10, 64, 0.5, 1.0, 1.5, -0.5, 1e-9, 1e9, 1e300, 2**70),
    *(math.nan, math.inf, -math.inf, [], [1], ["out"], ["attributes", "diffusion"], {}, {"a": 1}),
    *([[1]], (1, 2), b"1", 1j, object, 10**400, ["a", 1], {"lr": 1}, [None], [[]], -(10**20)),
    *(np.float32(0.5), np.int64(3), np.array([1]), np.nan, np.str_("out"), range(2), {1}),
]
values = st.one_of(
    st.sampled_from(VALUES),
    st.sampled_from(WORDS),
    st.integers(-3, 300),
    st.floats(),
    st.text(max_size=8),
)
yaml_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(WORDS[:20]),
        st.text(max_size=6),
        st.dates(),
        st.binary(max_size=4),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def check_settings(settings: Any) -> None:
    """Every value has its type and keeps its limits."""
    from hpgmn.config import settings_dict

    for info in dataclasses.fields(settings):
        value, meta = getattr(settings, info.name), info.metadata
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int | float):
            assert math.isfinite(value)
            assert meta["low"] is None or value >= meta["low"], info.name
            assert meta["high"] is None or value <= meta["high"], info.name
        elif meta["choices"]:
            chosen = value if isinstance(value, tuple) else (value,)
            assert set(chosen) <= set(meta["choices"])
            assert chosen
    again = yaml.safe_load(yaml.safe_dump(settings_dict(settings)))
    assert (
        type(settings)(**{k: tuple(v) if isinstance(v, list) else v for k, v in again.items()})
        == settings
    )


def test_any_values_of_settings(fuzz: Any) -> None:
    from hpgmn.config import make_settings
    from hpgmn.models import MODELS

    names = {
        name: sorted(info.name for info in dataclasses.fields(entry.settings))
        for name, entry in MODELS.items()
    }

    @st.composite
    def cases(draw: st.DrawFn) -> tuple[str, dict[Any, Any]]:
        model = draw(st.sampled_from(sorted(names)))
        keys = st.one_of(
            st.sampled_from(names[model]),
            st.sampled_from(names[model]),
            st.sampled_from(["", 5, None, "LR", "lr "]),
        )
        return model, draw(st.dictionaries(keys, values, max_size=3))

    def check(case: tuple[str, dict[Any, Any]]) -> None:
        check_settings(make_settings(MODELS[case[0]].settings, case[1]))

    fuzz("settings", cases(), check, short=150, long=4000)


ENTRIES = [
    *("model", "settings", "graph", "protocol", "metric", "positive", "splits", "seeds", "device"),
    *("calibrate", "tables", "version", "lr", "epochs", "hidden_dim", "nope", "", "1", "settings "),
]
RIGHT: dict[str, Any] = {
    "model": "gcn",
    "settings": {"lr": 0.1},
    "graph": "texas",
    "metric": "accuracy",
    "splits": [0, 1],
    "seeds": 2,
    "device": "cpu",
    "calibrate": True,
    "tables": {"id": "name"},
    "version": "1.0",
}


@st.composite
def config_texts(draw: st.DrawFn) -> bytes:
    """A YAML file: right, with odd values, or with its text disturbed."""
    content: dict[str, Any] = {
        key: RIGHT[key] for key in draw(st.sets(st.sampled_from(sorted(RIGHT))))
    }
    for key in draw(st.lists(st.sampled_from(ENTRIES), max_size=2)):
        content[key] = draw(yaml_values)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=draw(st.booleans()))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        place = draw(st.integers(0, len(text)))
        odd = [
            "\t",
            "- ",
            ": ",
            "&a ",
            "*a",
            "!!python/object:os.system ",
            "{",
            "[",
            "'",
            "|\n",
            "---\n",
        ]
        odd += [
            "\x00",
            "\ufeff",
            "lr: 1\nlr: 2\n",
            "? ",
            "%YAML 9.9\n",
            "!!binary x",
            "<<: *a\n",
            "\n\n",
            "é",
        ]
        text = text[:place] + draw(st.sampled_from(odd)) + text[place:]
    return text.encode(
        draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "latin-1"])), errors="replace"
    )


def test_any_config_file(fuzz: Any, tmp_path: Path) -> None:
    from hpgmn.config import make_settings
    from hpgmn.errors import HPGMNError
    from hpgmn.experiments.run import RunSpec
    from hpgmn.models import find_model
    from hpgmn.shipped import read_config
    from hpgmn.tables.layout import Columns

    def check(text: bytes) -> None:
        path = tmp_path / "config.yaml"
        path.write_bytes(text)
        given = read_config(str(path))
        Columns.from_dict(given.get("tables", {}))
        name = given.get("model", "hpgmn")
        if ":" in name:
            return
        settings = make_settings(find_model(name).settings, given["settings"])
        check_settings(settings)
        try:
            spec = RunSpec.from_dict(given)
        except HPGMNError:
            assert not {"graph", "model", "splits", "seeds", "metric"} <= set(given)
        else:
            assert all(type(number) is int for number in spec.splits)
            assert yaml.safe_load(yaml.safe_dump(spec.as_dict()))["settings"] == given["settings"]

    fuzz("config files", config_texts(), check, short=80, long=2000)


def test_any_run_specification(fuzz: Any) -> None:
    from hpgmn.experiments.run import RunSpec

    keys = st.sampled_from([*RIGHT, *RIGHT, "positive", "protocol", "nope"])
    cases = st.dictionaries(keys, st.one_of(yaml_values, st.sampled_from(VALUES)), max_size=3)

    def check(changes: dict[str, Any]) -> None:
        spec = RunSpec.from_dict(RIGHT | changes)
        assert isinstance(spec.settings, dict)
        assert all(type(number) is int for number in spec.splits)
        assert type(spec.seeds) is int
        assert type(spec.calibrate) is bool
        for key in ("graph", "model", "metric", "device"):
            assert type(getattr(spec, key)) is str
        for key in ("protocol", "positive"):
            assert getattr(spec, key) is None or type(getattr(spec, key)) is str
        if not changes:
            assert spec.as_dict() | RIGHT == spec.as_dict() | {"version": "1.0"}

    fuzz("configs of runs", cases, check, short=60, long=2000)


def test_any_assignments(fuzz: Any) -> None:
    from hpgmn.config import make_settings, parse_assignments
    from hpgmn.models import MODELS

    names = sorted(info.name for info in dataclasses.fields(MODELS["hpgmn"].settings))
    pairs = st.builds(
        lambda name, sign, word: f"{name}{sign}{word}",
        st.one_of(st.sampled_from(names), st.sampled_from(WORDS)),
        st.sampled_from(["=", "=", "=", " = ", "", ":", "=="]),
        st.one_of(st.sampled_from(WORDS), st.integers(0, 99).map(str), st.text(max_size=5)),
    )

    def check(case: list[str]) -> None:
        check_settings(make_settings(MODELS["hpgmn"].settings, parse_assignments(case)))

    fuzz("assignments", st.lists(pairs, max_size=2), check, short=60, long=2000)


SMALL: dict[str, Any] = {
    "hidden_dim": 4,
    "num_patterns": 3,
    "estimator_hidden": 4,
    "epochs": 2,
    "estimator_epochs": 2,
}
BOUNDED = {
    *("hidden_dim", "num_patterns", "estimator_hidden", "num_layers", "hops", "sketch_dim"),
    *("epochs", "estimator_epochs", "consistency_passes"),
}
"""Settings whose large values are right but take long."""


def test_any_hyperparameters_of_the_estimator(fuzz: Any, small_graph: Graph) -> None:
    from hpgmn.classifier import HPGMNClassifier

    graph = small_graph
    own = ["seed", "model", "device", "metric", "positive", "calibrate", "nope"]
    names = sorted(HPGMNClassifier().get_params())

    @st.composite
    def cases(draw: st.DrawFn) -> dict[str, Any]:
        odd = draw(st.lists(st.sampled_from([*names, *names, *own]), max_size=2))
        likely = [0, 1, 2, 3, 4, 0.5, 0.1, 1e-3, 20, 1e3, 1e6, 1e30, True, False, "both", "unit"]
        found = {
            key: draw(st.sampled_from(likely) if draw(st.integers(0, 3)) else values) for key in odd
        }
        for key, value in found.items():
            if (
                "dim" in key
                or "num_" in key
                or key in BOUNDED
                or "layers" in key
                or "epochs" in key
            ):
                big = isinstance(value, int | float | np.number) and not isinstance(value, bool)
                if big and value == value and abs(value) > 30:
                    found[key] = 7
                elif isinstance(value, str) and value.isdigit() and int(value) > 30:
                    found[key] = "7"
        return found

    def check(case: dict[str, Any]) -> None:
        model = HPGMNClassifier(**(SMALL | case if case.get("model", "hpgmn") == "hpgmn" else case))
        repr(model)
        model._repr_html_()
        model.fit(graph)
        chances = model.predict_proba(graph)
        assert np.isfinite(chances).all()
        assert np.allclose(chances.sum(axis=1), 1, atol=1e-4)
        assert math.isfinite(model.score(graph))
        assert set(model.predict(graph)) <= {0, 1, 2}

    fuzz("hyperparameters", cases(), check, short=40, long=1200)
