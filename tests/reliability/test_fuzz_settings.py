"""Whatever settings, configs and hyperparameters say: checked values, or a sentence."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import strategies as st

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


def check_settings(settings):
    """Every value has its type and keeps its limits."""
    from hpgmn.base.settings import settings_dict

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


TRUE, FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def check_meant(settings, given):
    """Every value means what was given; whatever was not given has its default."""
    for info in dataclasses.fields(settings):
        found = getattr(settings, info.name)
        if info.name not in given:
            assert found == info.default, info.name
            continue
        value = given[info.name]
        if found is None:
            assert str(value).lower() == "none"
        elif isinstance(found, bool):
            assert str(value).lower() in (TRUE if found else FALSE)
        elif isinstance(found, int | float):
            assert not isinstance(value, bool)
            assert found == float(value)
        elif isinstance(found, tuple):
            names = value.split(",") if isinstance(value, str) else value
            assert sorted(found) == sorted(name.strip() for name in names if name.strip())
        else:
            assert found == str(value)


def right(info):
    """Values that a setting takes, in all the ways in which they may be written."""
    meta, default = info.metadata, info.default
    if isinstance(default, tuple):
        choices = meta["choices"]
        return [
            default,
            list(default),
            ",".join(default),
            choices,
            [choices[0]],
            f" {choices[-1]} ",
        ]
    if meta["choices"]:
        return list(meta["choices"])
    if isinstance(default, bool):
        return [True, False, *sorted(TRUE | FALSE), "True", "OFF", 1, 0]
    limits = [meta["low"], None if meta["open_high"] else meta["high"]]
    return [default, str(default), *(one for one in limits if one is not None)]


def likely(info):
    """Values of a setting most of which are right."""
    return st.sampled_from([*right(info) * 4, 1, 2.0, "0.5", "3"])


def test_every_setting_takes_its_right_values():
    from hpgmn.base.settings import make_settings
    from hpgmn.models import MODELS

    kind = MODELS["hpgmn"].settings
    for info in dataclasses.fields(kind):
        for value in right(info):
            check_meant(make_settings(kind, {info.name: value}), {info.name: value})


def test_any_values_of_settings(fuzz):
    from hpgmn.base.settings import make_settings
    from hpgmn.models import MODELS

    @st.composite
    def cases(draw):
        model = draw(st.sampled_from(sorted(MODELS)))
        fields = dataclasses.fields(MODELS[model].settings)
        given: dict[Any, Any] = {}
        for info in draw(st.lists(st.sampled_from(fields), max_size=4)):
            given[info.name] = draw(likely(info) if draw(st.integers(0, 3)) else values)
        if draw(st.integers(0, 7)) == 0:
            given[draw(st.sampled_from(["", 5, None, "LR", "lr "]))] = draw(values)
        return model, given

    def check(case):
        settings = make_settings(MODELS[case[0]].settings, case[1])
        check_settings(settings)
        check_meant(settings, case[1])

    fuzz("settings", cases(), check, short=100, long=4000, accepted=0.3)


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


OTHERS: dict[str, list[Any]] = {
    "model": ["mlp", "hpgmn"],
    "graph": ["cora", "a/b.npz", "é"],
    "metric": ["roc_auc"],
    "splits": [[0], [3, 1]],
    "seeds": [1, 7],
    "device": ["auto", "cuda:1", None],
    "calibrate": [False, None],
    "tables": [{}, {"label": "kind"}, None],
    "protocol": ["random", None],
    "positive": ["spam", None],
}
"""Other right values."""


@st.composite
def config_texts(draw):
    """A YAML file: right, with odd values, or with its text disturbed; and its content if not."""
    content: dict[str, Any] = {
        key: draw(st.sampled_from([RIGHT[key], *OTHERS.get(key, [])]))
        for key in sorted(draw(st.sets(st.sampled_from(sorted(RIGHT)))))
    }
    if draw(st.integers(0, 3)):  # otherwise every entry is taken for a setting
        content["settings"] = draw(st.sampled_from([{}, {"lr": 0.1}, {"epochs": 5}, None]))
    for key in draw(st.one_of(st.just([]), st.lists(st.sampled_from(ENTRIES), max_size=2))):
        content[key] = draw(yaml_values)
    text = whole = yaml.safe_dump(content, sort_keys=False, allow_unicode=draw(st.booleans()))
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
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "latin-1"]))
    is_whole = text == whole and encoding == "utf-8"
    return text.encode(encoding, errors="replace"), content if is_whole else None


def test_any_config_file(fuzz, tmp_path):
    from hpgmn.base.errors import HPGMNError
    from hpgmn.base.settings import make_settings
    from hpgmn.models import find_model, read_config
    from hpgmn.runs.spec import RunSpec
    from hpgmn.tables.options import Columns, check_column_options

    def check(case):
        text, content = case
        path = tmp_path / "config.yaml"
        path.write_bytes(text)
        given = read_config(str(path))
        if content is not None:
            whole = content if "settings" in content else {"settings": content}
            present = {key: value for key, value in whole.items() if value is not None}
            assert given == {"settings": {}} | present
        Columns(**check_column_options(given.get("tables", {})))
        name = given.get("model", "hpgmn")
        if ":" in name:
            return
        settings = make_settings(find_model(name).settings, given["settings"])
        check_settings(settings)
        check_meant(settings, given["settings"])
        try:
            spec = RunSpec.from_dict(given)
        except HPGMNError:
            assert not {"graph", "model", "splits", "seeds", "metric"} <= set(given)
        else:
            assert all(type(number) is int for number in spec.splits)
            assert yaml.safe_load(yaml.safe_dump(spec.as_dict()))["settings"] == given["settings"]

    fuzz("config files", config_texts(), check, short=80, long=2000)


def test_any_run_specification(fuzz):
    from hpgmn.runs.spec import RunSpec

    words = [value for value in VALUES if not isinstance(value, np.str_)]  # which no file holds
    odd = st.one_of(yaml_values, st.sampled_from(words))
    changed = st.dictionaries(st.sampled_from([*RIGHT, "positive", "nope"]), odd, max_size=2)
    right = st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(OTHERS[key]) for key in OTHERS}
    )
    cases = st.builds(lambda one, other: one | other, right, st.one_of(st.just({}), changed))

    def check(changes):
        spec = RunSpec.from_dict(RIGHT | changes)
        assert isinstance(spec.settings, dict)
        assert all(type(number) is int for number in spec.splits)
        assert type(spec.seeds) is int
        assert type(spec.calibrate) is bool
        for key in ("graph", "model", "metric", "device"):
            assert type(getattr(spec, key)) is str
        for key in ("protocol", "positive"):
            assert getattr(spec, key) is None or type(getattr(spec, key)) is str
        for key, value in (RIGHT | changes).items():
            if key not in ("version", "nope"):
                empty = {"device": "cpu", "calibrate": True, "tables": {}}
                wanted = empty.get(key) if value in (None, "") and key in empty else value
                found = getattr(spec, key)
                assert (list(found) if key == "splits" else found) == wanted
        again = yaml.safe_load(yaml.safe_dump(spec.as_dict()))
        if "settings" not in changes and "tables" not in changes:  # which may hold any object
            assert RunSpec.from_dict(again) == spec

    fuzz("configs of runs", cases, check, short=60, long=2000, accepted=0.3)


def test_any_assignments(fuzz):
    from hpgmn.base.settings import make_settings, parse_assignments
    from hpgmn.models import MODELS

    fields = dataclasses.fields(MODELS["hpgmn"].settings)

    @st.composite
    def pairs(draw):
        info = draw(st.sampled_from(fields))
        right = likely(info).filter(lambda value: not isinstance(value, tuple | list)).map(str)
        odd = st.one_of(st.sampled_from(WORDS), st.integers(0, 99).map(str), st.text(max_size=5))
        name = draw(st.sampled_from(WORDS)) if draw(st.integers(0, 7)) == 0 else info.name
        sign = draw(st.sampled_from([*["=", " = "] * 6, "", ":", "=="]))
        return name, sign, draw(right if draw(st.integers(0, 3)) else odd)

    def check(case):
        given = parse_assignments(["".join(parts) for parts in case])
        settings = make_settings(MODELS["hpgmn"].settings, given)
        check_settings(settings)
        check_meant(settings, {name.strip(): word.strip() for name, sign, word in case if sign})

    fuzz("assignments", st.lists(pairs(), max_size=3), check, short=60, long=2000, accepted=0.2)


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


def test_any_hyperparameters_of_the_estimator(fuzz, small_graph):
    from hpgmn.estimators.classifier import HPGMNClassifier
    from hpgmn.models import MODELS

    graph = small_graph
    own = ["seed", "model", "device", "metric", "positive", "calibrate"]
    names = sorted(HPGMNClassifier().get_params())
    fields = {info.name: info for info in dataclasses.fields(MODELS["hpgmn"].settings)}

    @st.composite
    def cases(draw):
        odd = draw(st.lists(st.sampled_from([*names, *names, *own]), max_size=2))
        usual = [0, 1, 2, 3, 4, 0.5, 0.1, 1e-3, 20, 1e3, 1e6, 1e30, True, False, "both", "unit"]
        found = {
            key: draw(st.sampled_from(usual) if draw(st.integers(0, 3)) else values) for key in odd
        }
        for key in draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
            found[key] = draw(likely(fields[key]))
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

    def check(case):
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
