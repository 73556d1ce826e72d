"""A user's own model: found by name, its keywords are settings, its replicas are its own."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS, find_model, is_custom
from hpgmn.models.custom import custom_model
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, logits, make_task
from hpgmn.training.replicas import fit_replicas, replica_bytes
from hpgmn.training.saved import SavedModel
from hpgmn.training.state import read_state, write_state
from hpgmn.training.trainer import train

EXAMPLES = Path(__file__).parents[2] / "examples"

Write = Callable[[str], str]
HEAD = "import torch\nfrom torch import nn\nfrom hpgmn.models import MODELS\nimport numpy\n"
RETURN, INIT = "return self.out(hidden)", "super().__init__()"
ENTRY = 'MINE = MODELS["mlp"]'
BODY = """
class Net(nn.Module):
    '''A small one.

    With more to say.
    '''
    def __init__(self, num_features, num_classes, width=4, slope=0.1, flag=True, word="a",
                 dropout=0.5):
        super().__init__()
        self.parts = nn.ModuleDict({"a.b".replace(".", "_"): nn.Linear(num_features, width)})
        self.out = nn.Linear(width, num_classes)
        self.dropout, self.slope, self.flag, self.word = dropout, slope, flag, word

    def forward(self, x, edge_index):
        source, target = edge_index
        hidden = self.parts["a_b"](x)
        hidden = hidden + torch.zeros_like(hidden).index_add(0, target, hidden[source])
        hidden = nn.functional.dropout(hidden.relu() + self.slope, self.dropout, self.training)
        return self.out(hidden)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module into the current folder under a name of its own; gives that name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def make(body):
        name = f"written_{tmp_path.name}".replace("-", "_").replace("[", "_").replace("]", "_")
        (tmp_path / f"{name}.py").write_text(HEAD + body, encoding="utf-8")
        return name

    yield make
    for name in set(sys.modules) - before:
        if name.startswith("written_"):
            del sys.modules[name]


def replicas_of(name, count=2, **settings):
    cls = find_model(name).settings
    values = {"epochs": 8, "patience": 0, "dropout": 0.5} | settings
    return [Replica(0, seed, make_settings(cls, values)) for seed in range(count)]


def masks_of(graph, count=2):
    split = graph.split(0)
    return [(split.train, split.val)] * count


def test_a_name_with_a_colon_is_the_users_own():
    assert is_custom("mine:Net")
    assert not any(is_custom(name) for name in MODELS)


def test_keywords_become_settings_with_their_defaults(write):
    entry = find_model(f"{write(BODY)}:Net")
    kept = {info.name: info.default for info in fields(entry.settings)}
    assert (kept["width"], kept["slope"], kept["flag"], kept["word"]) == (4, 0.1, True, "a")
    assert kept["dropout"] == 0.5
    assert kept["lr"] == 0.01
    assert entry.summary == "A small one."
    made = make_settings(entry.settings, {"width": "6", "flag": "no", "word": "b"})
    assert (made.width, made.flag, made.word) == (6, False, "b")


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_a_replica_is_the_module_with_its_own_weights(write, small_graph, neighbors, kind):
    name = f"{write(BODY)}:Net"
    graph = small_graph
    if kind == "sparse":
        graph = Graph(sp.csr_array(small_graph.x), small_graph.edge_index, small_graph.y)
        graph = graph.with_splits(small_graph.splits)
    entry = find_model(name)
    replicas = replicas_of(name, neighbors=neighbors, width=5, slope=0.3)
    fitted = fit_replicas(graph, entry, replicas, masks_of(graph))
    adjacency = torch.from_numpy(graph.adjacency(neighbors).toarray()).bool().float()
    x = torch.from_numpy(np.asarray(small_graph.x))
    for replica in range(2):
        own = {key: value[replica] for key, value in fitted.done["main"].items()}
        hidden = x @ own["parts/a_b/weight"].T + own["parts/a_b/bias"]
        hidden = (hidden + adjacency @ hidden).relu() + 0.3
        expected = hidden @ own["out/weight"].T + own["out/bias"]
        torch.testing.assert_close(fitted.logits[replica], expected, rtol=1e-4, atol=1e-5)
    assert (fitted.logits[0] != fitted.logits[1]).any()


WEIGHTED = BODY.replace("x, edge_index):", "x, edge_index, edge_weight):").replace(
    "hidden[source])", "edge_weight[:, None] * hidden[source])"
)


@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_a_forward_that_takes_edge_weights_receives_them(write, neighbors, is_weighted):
    """Repeated edges are merged, opposite ones too where direction does not matter."""
    edges = np.array([[0, 0, 1, 2, 2, 3, 4, 4], [1, 1, 0, 1, 3, 2, 4, 0]])
    weights = np.array([1.5, 0.5, 4.0, 3.0, 0.25, 2.0, 9.0, 0.7], np.float32)
    split = np.array([True, True, True, False, False])
    graph = Graph(
        np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32),
        edges,
        np.array([0, 1, 0, 1, 0]),
        edge_weight=weights if is_weighted else None,
        train_mask=split,
        val_mask=~split,
        test_mask=np.zeros_like(split),
    )
    out = np.zeros((5, 5), np.float32)
    for (source, target), weight in zip(edges.T, weights, strict=True):
        if source != target:
            out[source, target] += weight
    dense = {"out": out, "in": out.T, "undirected": out + out.T}[neighbors]
    dense = torch.from_numpy(dense if is_weighted else (dense > 0).astype(np.float32))
    name = f"{write(WEIGHTED)}:Net"
    replicas = replicas_of(name, neighbors=neighbors, epochs=3)
    fitted = fit_replicas(graph, find_model(name), replicas, masks_of(graph))
    x = torch.from_numpy(np.asarray(graph.x))
    for replica in range(2):
        own = {key: value[replica] for key, value in fitted.done["main"].items()}
        hidden = x @ own["parts/a_b/weight"].T + own["parts/a_b/bias"]
        hidden = (hidden + dense @ hidden).relu() + 0.1
        expected = hidden @ own["out/weight"].T + own["out/bias"]
        torch.testing.assert_close(fitted.logits[replica], expected, rtol=1e-4, atol=1e-5)


def test_edge_weights_are_read_only(write, small_graph):
    changed = WEIGHTED.replace(RETURN, f"edge_weight.mul_(2); {RETURN}")
    name = f"{write(changed)}:Net"
    with pytest.raises(HPGMNError, match="writes into x or edge_index or edge_weight"):
        fit_replicas(small_graph, find_model(name), replicas_of(name), masks_of(small_graph))


def test_a_replica_alone_is_the_replica_among_others(write, small_graph):
    name = f"{write(BODY)}:Net"
    replicas = replicas_of(name, 3)
    entry = find_model(name)
    many = fit_replicas(small_graph, entry, replicas, masks_of(small_graph, 3))
    alone = fit_replicas(small_graph, entry, [replicas[1]], masks_of(small_graph, 1))
    torch.testing.assert_close(many.logits[1], alone.logits[0], rtol=1e-4, atol=1e-5)


def test_a_parameter_may_be_a_single_number(write, small_graph):
    alpha = f"{INIT}\n        self.alpha = nn.Parameter(torch.tensor(0.5))"
    own = BODY.replace(INIT, alpha).replace(RETURN, "return self.alpha * self.out(hidden)")
    name = f"{write(own)}:Net"
    fitted = fit_replicas(small_graph, find_model(name), replicas_of(name), masks_of(small_graph))
    [found] = [value for key, value in fitted.done["main"].items() if key.endswith("alpha")]
    assert found.shape == (2,)
    assert (found != 0.5).any()  # trained
    assert fitted.logits.isfinite().all()


def test_it_learns_and_leaves_torchs_generator_alone(write, small_graph):
    name = f"{write(BODY)}:Net"
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    replicas = replicas_of(name, epochs=150, lr=0.05, dropout=0.0)
    train_mask = small_graph.split(0).train
    fitted = fit_replicas(small_graph, find_model(name), replicas, [(train_mask, train_mask)] * 2)
    assert torch.equal(torch.rand(3), expected)
    assert fitted.val_score.tolist() == [1.0, 1.0]


def test_a_resumed_training_repeats_the_bits(write, small_graph, tmp_path):
    name = f"{write(BODY)}:Net"
    entry = find_model(name)
    task = make_task(small_graph, replicas_of(name), masks_of(small_graph), "cpu")

    def watch(state, stage):
        if state.current.epoch == 3:
            write_state(tmp_path / "state", state, "own")

    whole = train(task, entry, watch=watch)
    again = train(task, entry, state=read_state(tmp_path / "state", "own", task.device))
    for key, value in whole.done["main"].items():
        assert torch.equal(value, again.done["main"][key]), key


def test_a_saved_model_is_read_only_when_its_code_is_named(write, small_graph, tmp_path):
    name = f"{write(BODY)}:Net"
    entry = find_model(name)
    fitted = fit_replicas(small_graph, entry, replicas_of(name), masks_of(small_graph))
    path = tmp_path / "model.safetensors"
    split = small_graph.split(0)
    SavedModel.of(entry, fitted, small_graph, [split.train] * 2).write(path)
    again = SavedModel.read(path, name)
    torch.testing.assert_close(again.logits(small_graph), fitted.logits)
    with pytest.raises(HPGMNError, match=f"code is imported only when you .*{name}"):
        SavedModel.read(path)
    with pytest.raises(HPGMNError, match=rf"holds the model '{name}', not 'other:Net'\."):
        SavedModel.read(path, "other:Net")


@pytest.mark.parametrize(
    "change", [("relu()", "tanh()"), ("self.out(hidden)", "self.out(hidden) + self.out.bias")]
)
def test_a_model_whose_code_changed_is_rejected(write, small_graph, tmp_path, change):
    module = write(BODY)
    name = f"{module}:Net"
    entry = find_model(name)
    fitted = fit_replicas(small_graph, entry, replicas_of(name), masks_of(small_graph))
    path = tmp_path / "model.safetensors"
    SavedModel.of(entry, fitted, small_graph, [small_graph.split(0).train] * 2).write(path)
    assert BODY.replace(*change) != BODY
    write(BODY.replace(*change))
    del sys.modules[module]
    with pytest.raises(HPGMNError, match=f"The code of {name} has changed since"):
        SavedModel.read(path, name)


def test_parameters_that_differ_from_the_trained_ones_are_rejected(write, small_graph):
    name = f"{write(BODY)}:Net"
    entry = find_model(name)
    replicas = replicas_of(name)
    fitted = fit_replicas(small_graph, entry, replicas, masks_of(small_graph))
    task = make_task(small_graph, replicas, masks_of(small_graph), "cpu")
    fewer = {key: value for key, value in fitted.done["main"].items() if key != "out/bias"}
    narrower = fitted.done["main"] | {"out/bias": torch.zeros(2, 2)}
    for changed in (fewer, narrower):
        with pytest.raises(HPGMNError, match="are not those that were trained"):
            logits(task, entry, {"main": changed})


@pytest.mark.parametrize("name", ["pkg/mine.py:Net", "./mine.py:Net", "mine.py:Net"])
def test_a_file_is_named_as_a_module(name):
    dotted = "pkg.mine" if "pkg" in name else "mine"
    with pytest.raises(HPGMNError, match="is a file") as caught:
        custom_model(name)
    assert caught.value.remedy is not None
    assert (caught.value.remedy.option, caught.value.remedy.value) == ("model", f"{dotted}:Net")


def test_double_logits_are_taken_as_floats(write, small_graph):
    name = f"{write(BODY.replace(RETURN, 'return self.out(hidden).double()'))}:Net"
    fitted = fit_replicas(small_graph, find_model(name), replicas_of(name), masks_of(small_graph))
    assert fitted.logits.dtype == torch.float32


def test_a_mistake_is_placed_in_the_users_file(write, small_graph):
    module = write(BODY.replace("self.out(hidden)", "self.nothing(hidden)"))
    line = 1 + (HEAD + BODY).splitlines().index("        return self.out(hidden)")
    with pytest.raises(HPGMNError, match=rf"'nothing' \({module}\.py, line {line}\)"):
        fit_replicas(
            small_graph,
            find_model(f"{module}:Net"),
            replicas_of(f"{module}:Net"),
            masks_of(small_graph),
        )


def test_an_entry_may_be_named_instead_of_a_class(write, small_graph):
    name = f"{write(ENTRY)}:MINE"
    entry = find_model(name)
    assert entry == replace(MODELS["mlp"], name=name, source=entry.source)
    assert len(entry.source) == 64
    fitted = fit_replicas(small_graph, entry, replicas_of(name), masks_of(small_graph))
    same = fit_replicas(small_graph, MODELS["mlp"], replicas_of("mlp"), masks_of(small_graph))
    assert torch.equal(fitted.logits, same.logits)


def test_the_size_estimate_covers_the_parameters(write, small_graph):
    name = f"{write(BODY)}:Net"
    [replica] = replicas_of(name, 1, width=50)
    parameters = 5 * 50 + 50 + 50 * 3 + 3
    assert replica_bytes(small_graph, find_model(name), replica.settings) > 4 * 4 * parameters


@pytest.mark.parametrize(
    ("body", "attribute", "message"),
    [
        (BODY, "Ned", r"Unknown class in written_.*: 'Ned'. Did you mean 'Net'\?"),
        ("Net = 3", "Net", "not a class derived from torch.nn.Module"),
        ("class Net(nn.Module):\n    pass", "Net", "must take num_features and num_classes"),
        (
            BODY.replace("num_classes, width=4", "num_classes, *, width"),
            "Net",
            "[Gg]ive 'width' a default",
        ),
        (BODY.replace("width=4", "width=None"), "Net", "[Gg]ive 'width' a default"),
        (BODY.replace("slope=0.1", "lr=0.1"), "Net", "'lr' is a setting of training"),
        (BODY.replace("dropout=0.5", "dropout=0"), "Net", r"\(got 0\).*dropout=0.5"),
        ("import nothing_of_this_name", "Net", "imports nothing_of_this_name, which is not"),
        ("1 / 0", "Net", r"Importing written_.* failed: ZeroDivisionError.*line 5"),
    ],
)
def test_unusable_modules_are_rejected(write, body, attribute, message):
    name = write(body)
    with pytest.raises(HPGMNError, match=message):
        find_model(f"{name}:{attribute}")


@pytest.mark.parametrize("name", ["nowhere_at_all:Net", "nowhere.at.all:Net"])
def test_a_missing_module_says_where_to_run(write, name):
    with pytest.raises(HPGMNError, match=r"There is no module 'nowhere.*own_model:TwoHop"):
        custom_model(name)


@pytest.mark.parametrize("name", [":Net", "mine:", "mine:a b"])
def test_a_name_must_have_both_parts(name):
    with pytest.raises(HPGMNError, match="does not name a model"):
        custom_model(name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (RETURN, "return hidden", r"column for each class, \(18, 3\) \(got \(18, 4\)\)"),
        (RETURN, "return (hidden,)", r"\(got tuple\)"),
        (RETURN, "return self.out(hidden).detach()", "does not depend on its parameters"),
        (RETURN, f"x.mul_(2); {RETURN}", "writes into x or edge_index"),
        (
            RETURN,
            "y = hidden.exp(); z = self.out(y); y.mul_(2); return z",
            "Training .*:Net failed: one of the variables needed for gradient",
        ),
        (RETURN, "return hidden @ hidden", "Net failed: RuntimeError.*line"),
        (INIT, f"{INIT}; 1 / 0", r"Making written_.*:Net failed: ZeroDivisionError.*line"),
        (INIT, f"{INIT}; self.norm = nn.BatchNorm1d(4)", "BatchNorm1d keeps running statistics"),
        (INIT, f"{INIT}; self.late = nn.LazyLinear(4)", "a lazy layer has no width yet"),
        (
            "self.dropout, self.slope",
            "self.requires_grad_(False)\n        self.dropout, self.slope",
            "no parameters to train",
        ),
    ],
)
def test_an_error_of_the_module_names_its_line(write, small_graph, old, new, message):
    name = f"{write(BODY.replace(old, new))}:Net"
    with pytest.raises(HPGMNError, match=message):
        fit_replicas(small_graph, find_model(name), replicas_of(name), masks_of(small_graph))


def test_parameters_that_the_module_does_not_train_stay(write, small_graph):
    fixed = "self.parts.requires_grad_(False)\n        self.name = nn.Parameter(torch.ones(()))"
    body = BODY.replace("self.dropout, self.slope", f"{fixed}\n        self.dropout, self.slope")
    name = f"{write(body.replace(RETURN, 'return self.name * self.out(hidden)'))}:Net"
    task = make_task(small_graph, replicas_of(name), masks_of(small_graph), "cpu")
    stage = find_model(name).stages["main"](task, {})
    initialise(stage.model, task.keys("main"))
    first = {key: value.detach().clone() for key, value in stage.model.named_parameters()}
    last = train(task, find_model(name)).done["main"]
    kept = {key for key, value in first.items() if torch.equal(value, last[key])}
    assert kept == {"fixed:parts/a_b/weight", "fixed:parts/a_b/bias"}
    assert set(first) - kept == {"name", "out/weight", "out/bias"}
    assert (first["fixed:parts/a_b/weight"][0] != first["fixed:parts/a_b/weight"][1]).any()


def test_a_random_buffer_is_the_same_whatever_was_drawn_before(write, small_graph):
    buffer = 'self.register_buffer("mixer", torch.randn(num_classes, num_classes))'
    body = BODY.replace(INIT, f"{INIT}; {buffer}").replace(RETURN, f"{RETURN} @ self.mixer")
    name = f"{write(body)}:Net"
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        entry, replicas = find_model(name), replicas_of(name)
        found.append(fit_replicas(small_graph, entry, replicas, masks_of(small_graph)).logits)
    assert torch.equal(*found)


def test_dropout_is_rejected_where_the_module_takes_none(write, small_graph):
    body = BODY.replace(",\n                 dropout=0.5", "")
    body = body.replace("self.dropout, self.slope", "self.rest, self.slope")
    body = body.replace("= dropout, slope", "= None, slope").replace("self.dropout", "0.0")
    name = f"{write(body)}:Net"
    entry = find_model(name)
    usual = replicas_of(name, dropout=0.2)
    fit_replicas(small_graph, entry, usual, masks_of(small_graph))
    with pytest.raises(HPGMNError, match="takes no dropout"):
        fit_replicas(small_graph, entry, replicas_of(name, dropout=0.4), masks_of(small_graph))


@pytest.mark.slow
def test_the_example_runs_as_its_first_lines_say(small_graph, tmp_path):
    from hpgmn.graph.files import write_graph

    write_graph(small_graph, tmp_path / "small.npz")
    lines = (EXAMPLES / "own_model.py").read_text(encoding="utf-8").splitlines()
    words = lines[2].split()
    assert words[:3] == ["hpgmn", "train", "texas"]
    assert len(lines) <= 33
    words = [*words[1:2], str(tmp_path / "small.npz"), *words[3:]]
    short = ["--set", "epochs=3", "--set", "estimator_epochs=3", "--out", str(tmp_path / "runs")]
    done = subprocess.run(
        [sys.executable, "-m", "hpgmn", *words, *short],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "own_model:TwoHop" in done.stdout
    assert (tmp_path / "runs" / "own_model-TwoHop" / "metrics.json").is_file()
