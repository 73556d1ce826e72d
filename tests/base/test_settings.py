"""Settings: every way to write a value, every way to get it wrong, and their descriptions."""

import dataclasses
from dataclasses import dataclass

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import (
    BatchSettings,
    TrainSettings,
    allowed_values,
    describe_settings,
    make_settings,
    parse_assignments,
    per_replica_names,
    read_yaml,
    setting,
    settings_dict,
    to_plain,
    type_name,
)

PARTS = ("attributes", "class_counts", "diffusion")


@dataclass(frozen=True, kw_only=True)
class ExampleSettings(TrainSettings):
    """One setting of every kind."""

    hidden_dim: int = setting(64, "width", low=1, high=512)
    memory_dim: int | None = setting(None, "size of the memory; none: the query's", low=1)
    teleport: float = setting(0.15, "chance to go back", low=0.01, high=0.99, per_replica=True)
    free: float = setting(-1.0, "any number")
    gate: bool = setting(True, "whether a gate is used")
    neighbors: str = setting("out", "edge direction", choices=("out", "in"), per_replica=True)
    parts: tuple[str, ...] = setting(PARTS[:2], "the parts in use", choices=PARTS)


def made(**values):
    return make_settings(ExampleSettings, values)


def test_without_values_every_setting_has_its_default():
    assert made() == ExampleSettings()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lr", "0.05", 0.05),
        ("lr", "1e-3", 0.001),  # a string also in YAML, where numbers need a dot
        ("lr", 1, 1.0),
        ("epochs", "20", 20),
        ("epochs", 20.0, 20),
        ("epochs", "2e2", 200),
        ("memory_dim", "32", 32),
        ("memory_dim", "none", None),
        ("memory_dim", "None", None),
        ("memory_dim", None, None),
        ("free", "-7.5", -7.5),
        ("gate", False, False),
        ("gate", "No", False),
        ("gate", "off", False),
        ("gate", 0, False),
        ("gate", "TRUE", True),
        ("gate", "yes", True),
        ("gate", 1, True),
        ("neighbors", "in", "in"),
        ("parts", "diffusion", ("diffusion",)),
        ("parts", " diffusion , attributes ,", ("attributes", "diffusion")),
        ("parts", ["class_counts"], ("class_counts",)),
        ("parts", ("diffusion", "attributes"), ("attributes", "diffusion")),
    ],
)
def test_values_become_the_type_of_their_setting(name, value, expected):
    found = getattr(made(**{name: value}), name)
    assert found == expected
    assert type(found) is type(expected)


@given(st.permutations(PARTS), st.integers(1, 3), st.booleans())
def test_members_of_a_list_keep_the_order_of_the_choices(order, count, as_text):
    chosen = order[:count]
    found = made(parts=",".join(chosen) if as_text else chosen).parts
    assert found == tuple(part for part in PARTS if part in chosen)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lr", -0.1, "Setting 'lr' must be at least 0 (got -0.1)."),
        ("lr", "fast", "Setting 'lr' takes a number (got 'fast')."),
        ("lr", "nan", "Setting 'lr' takes a finite number (got 'nan')."),
        ("lr", float("inf"), "Setting 'lr' takes a finite number (got inf)."),
        ("lr", True, "Setting 'lr' takes a number (got True)."),
        ("lr", None, "Setting 'lr' takes a number (got None)."),
        ("lr", [0.1], "Setting 'lr' takes a number (got [0.1])."),
        ("epochs", 0, "Setting 'epochs' must be at least 1 (got 0)."),
        ("epochs", "2.5", "Setting 'epochs' takes a whole number (got '2.5')."),
        ("dropout", 1, "Setting 'dropout' must be 0 to below 1 (got 1)."),
        ("teleport", "0", "Setting 'teleport' must be 0.01 to 0.99 (got 0)."),
        ("hidden_dim", 513, "Setting 'hidden_dim' must be 1 to 512 (got 513)."),
        ("hidden_dim", "none", "Setting 'hidden_dim' takes a number (got 'none')."),
        ("memory_dim", 0, "Setting 'memory_dim' must be at least 1 (got 0)."),
        ("gate", "perhaps", "Setting 'gate' takes true or false (got 'perhaps')."),
        ("gate", 2, "Setting 'gate' takes true or false (got 2)."),
        (
            "neighbors",
            "ot",
            "Unknown value for 'neighbors': 'ot'. Did you mean 'out'? Choose from: out, in.",
        ),
        ("neighbors", 3, "Unknown value for 'neighbors': '3'. Choose from: out, in."),
        (
            "parts",
            "diffusion,atributes",
            "Unknown value for 'parts': 'atributes'. Did you mean 'attributes'? "
            "Choose from: attributes, class_counts, diffusion.",
        ),
        ("parts", [], "Setting 'parts' takes distinct names, at least one (got [])."),
        ("parts", " , ", "Setting 'parts' takes distinct names, at least one (got ' , ')."),
        (
            "parts",
            "diffusion,diffusion",
            "Setting 'parts' takes distinct names, at least one (got 'diffusion,diffusion').",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(name, value, message):
    with pytest.raises(SettingError) as caught:
        made(**{name: value})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_dim", 1),
        ("hidden_dim", 512),
        ("teleport", 0.01),
        ("teleport", 0.99),
        ("dropout", 0),
    ],
)
def test_the_ends_of_a_range_belong_to_it(name, value):
    assert getattr(made(**{name: value}), name) == value


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(SettingError, match=r"Unknown setting 'hiden_dim'\. Did you mean 'hidden_d"):
        made(lr=0.1, hiden_dim=3)


def test_an_unknown_setting_without_likeness_lists_all_in_order():
    with pytest.raises(
        SettingError, match=r"Unknown setting 'qqqq'\. Choose from: class_"
    ) as error:
        made(qqqq=3)
    listed = str(error.value).split("Choose from: ")[1].removesuffix(".").split(", ")
    assert listed == sorted(info.name for info in dataclasses.fields(ExampleSettings))


@pytest.mark.parametrize(
    "text", ["parts: 5", "parts: null", "parts: [1]", "1: 2", "on: 1", f"epochs: 1{'0' * 400}"]
)
def test_whatever_yaml_holds_a_wrong_value_is_a_setting_error(text):
    with pytest.raises(SettingError):
        make_settings(ExampleSettings, yaml.safe_load(text))


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        made().lr = 0.5  # type: ignore[misc]


values_of = st.fixed_dictionaries(
    {},
    optional={
        "lr": st.floats(0, 10),
        "epochs": st.integers(1, 10**6),
        "dropout": st.floats(0, 1, exclude_max=True),
        "hidden_dim": st.integers(1, 512),
        "memory_dim": st.none() | st.integers(1, 100),
        "gate": st.booleans(),
        "neighbors": st.sampled_from(["out", "in"]),
        "parts": st.lists(st.sampled_from(PARTS), min_size=1, unique=True),
    },
)


@given(values_of)
def test_settings_survive_yaml(values):
    settings = made(**values)
    text = yaml.safe_dump(settings_dict(settings))
    assert make_settings(ExampleSettings, yaml.safe_load(text)) == settings


@given(values_of)
def test_settings_survive_the_command_line(values):
    settings = made(**values)
    pairs = [
        f"{name}={','.join(value) if isinstance(value, list) else value}"
        for name, value in settings_dict(settings).items()
    ]
    assert make_settings(ExampleSettings, parse_assignments(pairs)) == settings


def test_settings_dict_is_plain():
    found = settings_dict(made(parts="diffusion", gate="no"))
    assert found["parts"] == ["diffusion"]
    assert found["gate"] is False
    assert list(found) == [info.name for info in dataclasses.fields(ExampleSettings)]
    assert to_plain(("a", "b")) == ["a", "b"]
    assert to_plain("ab") == "ab"


def test_descriptions_tell_type_default_range_and_meaning():
    found = {row["name"]: row for row in describe_settings(ExampleSettings)}
    assert list(found) == [info.name for info in dataclasses.fields(ExampleSettings)]
    summary = {
        name: (found[name]["type"], found[name]["default"], found[name]["allowed"])
        for name in ("lr", "epochs", "dropout", "hidden_dim", "memory_dim", "free", "gate")
    }
    assert summary == {
        "lr": ("number", TrainSettings().lr, "at least 0"),
        "epochs": ("whole number", TrainSettings().epochs, "at least 1"),
        "dropout": ("number", TrainSettings().dropout, "0 to below 1"),
        "hidden_dim": ("whole number", 64, "1 to 512"),
        "memory_dim": ("whole number or none", None, "at least 1"),
        "free": ("number", -1.0, "–"),
        "gate": ("true or false", True, "–"),
    }
    assert found["neighbors"] == {
        "name": "neighbors",
        "type": "name",
        "default": "out",
        "allowed": "out, in",
        "help": "edge direction",
    }
    assert found["parts"]["type"] == type_name(tuple[str, ...]) == "list of names"
    assert found["parts"]["default"] == ["attributes", "class_counts"]
    assert found["parts"]["allowed"] == "attributes, class_counts, diffusion"


def test_allowed_values_are_told_as_they_are_checked():
    for info in dataclasses.fields(TrainSettings):
        low, choices = info.metadata["low"], info.metadata["choices"]
        if choices:
            assert allowed_values(info) == ", ".join(choices)
            make_settings(TrainSettings, {info.name: choices[-1]})
            with pytest.raises(SettingError):
                make_settings(TrainSettings, {info.name: "none of these"})
            continue
        assert f"{low:g}" in allowed_values(info)
        make_settings(TrainSettings, {info.name: low})
        with pytest.raises(SettingError):
            make_settings(TrainSettings, {info.name: low - 1})


def test_defaults_are_within_their_own_ranges():
    assert make_settings(TrainSettings, settings_dict(TrainSettings())) == TrainSettings()


def test_settings_in_which_replicas_may_differ_are_marked():
    own = per_replica_names(ExampleSettings) - per_replica_names(TrainSettings)
    assert own == {"teleport", "neighbors"}
    assert {"lr", "weight_decay", "dropout"} <= per_replica_names(TrainSettings)
    assert "epochs" not in per_replica_names(TrainSettings)


def test_assignments_split_at_the_first_sign_and_the_last_one_wins():
    assert parse_assignments([" lr = 0.1 ", "name=a=b", "lr=0.2", "empty="]) == {
        "lr": "0.2",
        "name": "a=b",
        "empty": "",
    }
    assert parse_assignments([]) == {}


@pytest.mark.parametrize("pair", ["lr", "=0.1", "  =0.1", ""])
def test_an_assignment_needs_a_name_and_a_sign(pair):
    with pytest.raises(SettingError, match=f"key=value .got '{pair}'") as caught:
        parse_assignments([pair])
    assert (caught.value.remedy.setting, caught.value.remedy.value) == ("lr", 0.01)


def test_yaml_file_gives_its_mapping(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("lr: 1e-3\nparts: [diffusion, attributes]\ngate: no # é\n", encoding="utf-8")
    assert read_yaml(path) == {"lr": "1e-3", "parts": ["diffusion", "attributes"], "gate": False}
    settings = make_settings(ExampleSettings, read_yaml(path))
    assert (settings.lr, settings.parts, settings.gate) == (0.001, (PARTS[0], PARTS[2]), False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"lr: 0.1\ngate: [true\n", "is not valid YAML at line 3"),
        (b"lr: 0.1\n\tgate: true\n", "is not valid YAML at line 2"),
        (b"lr: \x00\n", "is not valid YAML."),
        (b"!!python/object/apply:os.getcwd []", "is not valid YAML at line 1"),
        (b"", "must hold 'name: value' lines"),
        (b"- lr\n- gate\n", "must hold 'name: value' lines"),
        (b"just words", "must hold 'name: value' lines"),
        (b"lr: \xff\xfe", "is not UTF-8 text. Save it"),
    ],
)
def test_a_wrong_yaml_file_is_named_with_its_fault(tmp_path, content, message):
    path = tmp_path / "settings.yaml"
    path.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        read_yaml(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(SettingError, match="Cannot read the config file") as caught:
            read_yaml(path)
        assert str(path) in str(caught.value)


def test_batches_exclude_the_consistency_loss():
    assert make_settings(BatchSettings, {"batch_size": 2}).batch_size == 2
    with pytest.raises(SettingError, match=r"batch_size=0.*consistency_weight=0"):
        make_settings(BatchSettings, {"batch_size": "2", "consistency_weight": "0.5"})
