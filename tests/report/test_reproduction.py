"""The command line of a report."""

from hpgmn.report.reproduction import train_command


def test_command_formats_values_as_the_command_line_reads_them():
    config = {"graph": "g", "model": "m", "metric": "accuracy", "splits": [0], "seeds": 1}
    settings = {"a": None, "b": False, "c": [1, "x"], "d": 1e-5}
    words = train_command(config | {"settings": settings})
    assert words[-8:] == [
        *("--set", "a=none", "--set", "b=false", "--set", "c=1,x", "--set", "d=1e-05")
    ]
    more = train_command(config | {"settings": {}, "protocol": "geom", "device": "cpu"})
    assert more[-4:] == ["--protocol", "geom", "--device", "cpu"]
    assert train_command(config | {"settings": {}, "calibrate": False})[-1] == "--no-calibration"
    rare = train_command(config | {"settings": {}, "threshold": "recall=0.8", "conformal": True})
    assert rare[-3:] == ["--threshold", "recall=0.8", "--conformal"]


def test_command_repeats_the_options_of_tables():
    config = {"graph": "g", "model": "m", "metric": "precision@5", "splits": [0], "seeds": 1}
    tables = {
        "id": "email",
        "split": "",
        "weight": "amount",
        "drop": ["a", "b c"],
        "categories": ["zip"],
        "edge_categories": ["kind"],
        "split_by": ["time", "when"],
        "drop_unknown_edges": True,
        "directed": False,
    }
    words = train_command(config | {"settings": {}, "positive": "fraud", "tables": tables})
    assert words[11:] == [
        *("--positive", "fraud", "--id", "email", "--split-column", "", "--weight", "amount"),
        *("--drop", "a", "--drop", "b c", "--category", "zip", "--edge-category", "kind"),
        *("--split-by", "time", "when", "--drop-unknown-edges", "--undirected"),
    ]


def test_command_of_an_ensemble_names_no_model_and_no_settings():
    config = {"graph": "g", "model": "ensemble", "metric": "roc_auc", "splits": [0, 1], "seeds": 2}
    assert train_command(config | {"settings": {}}) == [
        *("hpgmn", "train", "g", "--metric", "roc_auc", "--splits", "0,1", "--seeds", "2"),
        "--ensemble",
    ]
    selection = {"time_limit": 60.0, "settings": {"lr": 0.1}, "members": ["a", "b"]}
    more = {"selection": selection, "refit": True, "deterministic": True}
    assert train_command(config | {"settings": {}, "first_seed": 5} | more)[7:] == [
        *("--seeds", "2", "--first-seed", "5", "--set", "lr=0.1"),
        *("--members", "a,b", "--time-limit", "60", "--ensemble", "--deterministic", "--refit"),
    ]
