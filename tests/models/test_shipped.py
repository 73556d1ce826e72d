"""The settings that come with the package: valid for their models, and the paper's as published."""

from importlib import resources
from pathlib import Path

import pytest
import yaml

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import make_settings
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import MODELS, has_settings_for, read_config, settings_for
from hpgmn.models.hpgmn import HPGMNSettings

FOLDER = Path(str(resources.files("hpgmn.models"))) / "shipped"
SECTIONS = [
    (path.stem, section)
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.stem != "paper"
    for section in yaml.safe_load(path.read_text(encoding="utf-8"))
]


def test_every_file_belongs_to_a_model_or_is_a_config():
    assert {path.stem for path in FOLDER.glob("*.yaml")} <= {*MODELS, "paper"}
    assert SECTIONS


def test_every_section_is_valid_for_its_model():
    for model, section in SECTIONS:
        assert section == "default" or section in DATASETS, (model, section)
        content = yaml.safe_load((FOLDER / f"{model}.yaml").read_text(encoding="utf-8"))[section]
        settings = make_settings(MODELS[model].settings, content)
        for name, value in content.items():
            chosen = getattr(settings, name)
            as_written = list(chosen) if isinstance(chosen, tuple) else chosen
            assert as_written == value, (model, section, name)
        assert settings_for(None if section == "default" else section, model) == content


def test_the_paper_s_heterophilous_graphs_have_settings():
    for graph in ("texas", "wisconsin", "cornell", "chameleon", "squirrel", "crocodile"):
        assert has_settings_for(graph)
    for graph in ("cora", "citeseer", "pubmed"):
        assert has_settings_for(graph, "hpgmn-gcn")
        assert has_settings_for(graph, "hpgmn-appnp")


def test_an_unknown_graph_has_the_default_settings():
    for model in MODELS:
        assert not has_settings_for("mine", model)
        assert settings_for("mine", model) == settings_for(None, model)
        make_settings(MODELS[model].settings, settings_for("mine", model))


def test_the_settings_returned_are_a_copy():
    settings_for("texas")["hidden_dim"] = -1
    assert settings_for("texas")["hidden_dim"] > 0


def test_the_paper_config_is_the_paper_s_model():
    config = read_config("paper")
    assert config["model"] == "hpgmn"
    settings = make_settings(HPGMNSettings, config["settings"])
    assert settings.statistics == ("attributes", "class_counts", "class_means", "diffusion")
    assert settings.gate is False
    assert settings.kpattern_reduction == "sum"
    assert settings.memory is True
    assert settings.memory_dim is None
    assert settings.unit_encodings is False
    assert (settings.diffusion, settings.normalization) == ("ppr", "column")
    assert settings.diffusion_self_loop == 0
    assert settings.diffusion_self_entry is True
    assert settings.neighbors == "out"
    assert (settings.encoder_layers, settings.classifier_layers) == (2, 2)
    assert settings.consistency_weight == 0
    for name in ("attributes", "class_counts", "class_means", "diffusion"):
        assert getattr(settings, f"{name}_scaling") == "raw"
        assert getattr(settings, f"{name}_dropout") == 0


def test_the_paper_config_leaves_nothing_of_the_model_to_our_defaults():
    """A better default of ours must not change the paper's model."""
    given = set(read_config("paper")["settings"])
    decides_the_model = {
        *("statistics", "neighbors", "diffusion", "normalization", "teleport", "gate", "memory"),
        *("num_patterns", "hidden_dim", "encoder_layers", "classifier_layers", "unit_encodings"),
        *("kpattern_reduction", "kpattern_weight", "entropy_weight", "norm_weight", "dropout"),
        *("lr", "weight_decay", "epochs", "patience", "diffusion_self_entry"),
    }
    assert decides_the_model <= given


def test_a_file_of_settings_alone_is_wrapped(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text("lr: 0.1\n")
    assert read_config(str(path)) == {"settings": {"lr": 0.1}}


def test_a_config_of_a_run_comes_whole(tmp_path):
    path = tmp_path / "config.yaml"
    content = {"graph": "texas", "model": "hpgmn", "protocol": None, "metric": "accuracy"}
    content |= {"splits": [0, 2], "seeds": 3, "device": "cpu", "settings": {"lr": 0.1}}
    path.write_text(yaml.safe_dump(content | {"version": "0.1.0"}))
    expected = {name: value for name, value in content.items() if value is not None}
    assert read_config(str(path)) == expected | {"version": "0.1.0"}


def test_empty_settings_are_no_settings(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model: hpgmn\nsettings:\n")
    assert read_config(str(path)) == {"model": "hpgmn", "settings": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", r"is not valid YAML.* Write lines such as 'lr: 0\.01'\."),
        ("- a", "must hold 'name: value' lines"),
        ("settings: 3", "'settings' must be a mapping"),
        ("settings: {}\nseed: 3", r"Unknown entry 'seed'\. Did you mean 'seeds'\?"),
        ("settings: {}\nsplits: [a]", "'splits' must be a list of split numbers"),
        ("settings: {}\nmodel: [a]", "'model' must be a model's name"),
        ("settings: {}\ncalibrate: 1", "'calibrate' must be true or false"),
        ("settings: {}\nseeds: true", "'seeds' must be a whole number"),
    ],
)
def test_a_bad_config_says_what_to_write(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SettingError, match=message):
        read_config(str(path))


def test_a_missing_config_is_an_error():
    with pytest.raises(SettingError, match=r"Did you mean 'paper'\? .* path of a YAML file\."):
        read_config("papr")
    with pytest.raises(SettingError, match="does not exist"):
        read_config("nowhere/mine.yaml")
