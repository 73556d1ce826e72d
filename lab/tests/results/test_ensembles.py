import json

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab import paper
from hpgmn_lab.results import ensembles
from hpgmn_lab.results.page import page


def made_member(name, model, weight, scores, val, loss=0.5):
    return {
        "name": name,
        "model": model,
        "settings": {},
        "weight": weight,
        "val_score": [val / 100] * len(scores),
        "val_loss": [loss] * len(scores),
        "test_score": [score / 100 for score in scores],
        "seconds": 3.0,
    }


def made_record(graph, scores, members, *, groups=1, seeds=1, **changes):
    splits = len(scores) // groups
    return {
        "graph": graph,
        "protocol": "sound",
        "metric": "accuracy",
        "splits": list(range(splits)),
        "groups": groups,
        "seeds": seeds,
        "time_limit": None,
        "test_score": [score / 100 for score in scores],
        "val_score": [0.9] * len(scores),
        "members": members,
        "skipped": [{"name": "boosting", "model": "boosting", "reason": "no lightgbm"}],
        "nodes": {"train": [48] * splits, "val": [32] * splits, "test": [20] * splits},
        "seconds": 61.4,
        "version": "9.8.7",
        "hardware": {"processor": "A", "threads": 2, "device": "cpu", "torch": "2.0.1"},
        "created": "2030-01-02T03:04:05+00:00",
        "command": f"hpgmn reproduce ensembles --graphs {graph} --device cpu",
    } | changes


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"name": record["graph"], "record": record}) for record in records]
    path.write_text("\n".join(lines) + "\n")
    return path


MEMBERS = [
    made_member("graphsage", "graphsage", 0.28, [74.0, 76.0], val=74.0),
    made_member("out, light", "hpgmn", 0.70, [74.0, 75.0], val=75.0),
    made_member("gcn", "gcn", 0.02, [76.0, 77.0], val=75.0, loss=0.6),
]


def test_the_single_model_is_the_best_by_validation_then_by_loss(tmp_path):
    path = write(tmp_path / "e.jsonl", made_record("squirrel", [76.0, 77.0], MEMBERS))
    [pool] = ensembles.read_pools(path)
    assert [member["name"] for member in pool.members] == ["out, light", "gcn", "graphsage"]
    [row] = ensembles.single_frame([pool]).to_numpy().tolist()
    assert row == [
        *("squirrel", "hpgmn, out, light", "74.5 ± 0.7", "76.71, FaberNet", "no, 2.2 short"),
        *("hpgmn, out, light", "74.5 ± 0.7", "72.3", "yes"),
    ]


def test_the_ensemble_shows_its_gain_and_the_members_with_weight(tmp_path):
    path = write(tmp_path / "e.jsonl", made_record("squirrel", [76.0, 77.0], MEMBERS))
    pools = ensembles.read_pools(path)
    [row] = ensembles.ensemble_frame(pools).to_numpy().tolist()
    assert row[:4] == ["squirrel", "76.5 ± 0.7", "76.71, FaberNet", "yes"]  # inside the interval
    assert row[4].startswith("+2.0 (")
    assert row[5] == "hpgmn, out, light 0.70, graphsage 0.28; 1 other"
    [row] = ensembles.command_frame(pools).to_numpy().tolist()
    assert row[:4] == [f"`{pools[0].record['command']}`", "3 of 4", "1", "61"]


def test_small_graphs_show_the_interval_of_their_mean(tmp_path):
    record = made_record(
        "texas",
        [84.0, 85.0, 84.5],
        [made_member("alone", "mlp", 1.0, [80.0, 81.0, 79.0], val=80.0)],
    )
    pools = ensembles.read_pools(write(tmp_path / "e.jsonl", record))
    [row] = ensembles.ensemble_frame(pools).to_numpy().tolist()
    assert row[1] == "84.5 ± 0.5 (83.3 to 85.7)"  # as in test_paper
    [row] = ensembles.single_frame(pools).to_numpy().tolist()
    assert row[-4:] == ["–"] * 4  # no form of HP-GMN among the members


def test_seeds_of_a_split_are_averaged_and_groups_of_one_split_are_runs(tmp_path):
    two_seeds = made_member("a", "hpgmn", 1.0, [70.0, 72.0, 80.0, 84.0], val=80.0)
    of_groups = made_member("a", "hpgmn-appnp", 1.0, [84.0] * 10, val=80.0)
    path = write(
        tmp_path / "e.jsonl",
        made_record("cora", [84.0, 85.0, 84.0, 85.0, 84.5], [of_groups], groups=5, seeds=2),
        made_record("squirrel", [76.0, 77.0], [two_seeds], seeds=2),
    )
    squirrel, cora = ensembles.read_pools(path)  # in the paper's order
    assert squirrel.single(squirrel.members[0]) == pytest.approx([71.0, 82.0])
    assert len(cora.single(cora.members[0])) == 10
    assert cora.gain.mean == pytest.approx(0.005)
    assert cora.gain.over == "seeds"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": "nowhere"}, "unknown graph 'nowhere'"),
        ({"test_score": [0.7]}, "1 of 2 values of test_score"),
        ({"members": []}, "no members"),
        ({"members": MEMBERS[:2]}, "the weights do not add up to one"),
        ({"seeds": 2}, "'graphsage' has another number of values of test_score"),
    ],
)
def test_a_record_that_does_not_match_is_refused(tmp_path, changes, message):
    path = write(tmp_path / "e.jsonl", made_record("squirrel", [76.0, 77.0], MEMBERS) | changes)
    with pytest.raises(HPGMNError, match=message):
        ensembles.read_pools(path)


def test_the_page_shows_both_tables_and_what_does_not_count(tmp_path, cells):
    empty = page(tmp_path)[0]
    assert "Single model" not in empty
    write(tmp_path / "ensembles.jsonl", made_record("squirrel", [76.0, 77.0], MEMBERS))
    text = page(tmp_path)[0]
    assert text.index("## Single model and ensemble") < text.index("## When a number counts")
    assert cells(text, "squirrel", "76.5 ± 0.7")[3] == "yes"
    for disputed in paper.DISPUTED:
        assert f"- **{disputed.method}** ({disputed.claim})" in text
