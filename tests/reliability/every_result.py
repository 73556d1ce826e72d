"""A digest of every kind of result, as JSON: what two processes must agree on to the last bit.

``python every_result.py FOLDER SEED [GRAPH.npz …]``; a line ``"name": "digest"`` for each result.
"""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hpgmn.base.settings import make_settings
from hpgmn.cli import main
from hpgmn.graph.files import read_graph, write_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import MODELS, find_model
from hpgmn.models.stage import Replica
from hpgmn.statistics.settings import FORMS, MEANS_FORMS
from hpgmn.training.replicas import fit_replicas

WIDTHS = {"hidden_dim": 8, "query_dim": 8, "estimator_hidden": 8, "num_patterns": 4}
QUICK = ["epochs=3", "estimator_epochs=3", "hidden_dim=4", "estimator_hidden=4", "num_patterns=3"]
PASSING = ("seconds", "created", "peak_memory", "crc32", "command")  # the last names folders


class Own(nn.Module):
    """A model of a user's own, with dropout by torch's generator."""

    def __init__(self, num_features, num_classes, hidden_dim=4):
        super().__init__()
        self.first = nn.Linear(num_features, hidden_dim)
        self.second = nn.Linear(hidden_dim, num_classes)

    def forward(self, x, edge_index):
        """Attributes alone."""
        return self.second(nn.functional.dropout(self.first(x).relu(), 0.5, self.training))


def lasting(content):
    """A record without times, memory and dates."""
    if isinstance(content, dict):
        kept = {key: value for key, value in content.items() if not key.startswith(PASSING)}
        return {key: lasting(value) for key, value in kept.items()}
    return [lasting(one) for one in content] if isinstance(content, list) else content


def digest(*parts):
    """Of tensors, arrays, bytes and whatever JSON can hold, the order of keys included."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().numpy()
        if isinstance(part, np.ndarray):
            part = np.ascontiguousarray(part).tobytes()
        if not isinstance(part, bytes):
            part = json.dumps(lasting(part)).encode()
        found.update(part)
    return found.hexdigest()


def trained(graph, name, seed, **values):
    """Parameters, logits and curves of a model on two splits."""
    cls = find_model(name).settings
    names = {info.name for info in dataclasses.fields(cls)}
    chosen = WIDTHS | {one: 3 for one in names if one.endswith("epochs")} | values
    settings = make_settings(cls, {key: value for key, value in chosen.items() if key in names})
    splits = [graph.split(0), graph.split(1 if len(graph.splits or ()) > 1 else 0)]
    replicas = [Replica(number, seed, settings) for number in (0, 1)]
    fitted = fit_replicas(
        graph, find_model(name), replicas, [(one.train, one.val) for one in splits]
    )
    parameters = [value for stage in fitted.done.values() for value in stage.values()]
    curves = [rows for stage in fitted.history.values() for rows in stage.values()]
    return digest(*parameters, fitted.logits, *curves)


def of_models(graph, seed):
    """Every model of the registry, and one of a user's own."""
    found = {name: trained(graph, name, seed) for name in [*MODELS, "every_result:Own"]}
    more = {"entropy_weight": 0.1, "statistics": ("attributes", "class_counts", "class_means")}
    found["hpgmn in batches"] = trained(graph, "hpgmn", seed, batch_size=16, **more)
    return found


def of_forms(graph, seed):
    """Every form of diffusion and of class means, and neighbours of neighbours."""
    found = {
        f"diffusion {form} {kind}": trained(
            graph, "hpgmn", seed, diffusion_form=form, diffusion=kind, statistics=("diffusion",)
        )
        for form in FORMS
        for kind in ("ppr", "heat")
    }
    for form in MEANS_FORMS:
        size = 0 if form in ("dense", "factored") else 16
        values = {"class_means_form": form, "batch_size": size, "statistics": ("class_means",)}
        found[f"class means {form}"] = trained(graph, "hpgmn", seed, **values)
    kinds = ("neighbor_class_counts", "neighbor_attributes", "adjacency")
    found["of neighbours"] = trained(graph, "hpgmn", seed, statistics=kinds, neighbors="both")
    return found


def of_library(graph, seed):
    """The classifier, an audit and an explanation."""
    from hpgmn.auditing import audit
    from hpgmn.estimators.classifier import HPGMNClassifier

    model = HPGMNClassifier(seed=seed, epochs=3, estimator_epochs=3, hidden_dim=4).fit(graph, 0)
    return {
        "classifier": digest(model.predict_proba(graph)),
        "audit": digest(audit(graph, training=False).as_dict()),
    }


def of_commands(graph, folder):
    """A run, its predictions and explanation, a search, and a training on row shards."""
    write_graph(graph, folder / "graph.npz")
    path, run, shards = (str(folder / name) for name in ("graph.npz", "run", "shards"))
    quick = [word for one in QUICK for word in ("--set", one)]
    _quiet()
    kinds = ["--set", "statistics=attributes,class_counts,class_means"]
    study, sharded = ["--study", str(folder / "study.db")], ["--out", str(folder / "sharded")]
    commands = [
        ["train", path, "--model", "hpgmn", "--splits", "0", *quick, "--out", run],
        ["predict", run, "--out", str(folder / "predictions.csv")],
        ["explain", run, "--node", "3", "--json"],
        ["tune", path, "--splits", "0", "--trials", "3", *quick[:4], "--json", *study],
        ["shard", path, "--out", shards, "--ranges", "2", *quick[2:4], *kinds],
        ["train-shards", shards, *quick[:2], *quick[4:6], "--set", "batch_size=16", *sharded],
    ]
    found = {}
    for words in commands:
        device = ["--device", "cpu"] if words[0] in ("train", "tune", "train-shards") else []
        said = _said([*words, *device])
        if words[0] in ("explain", "tune"):
            said = said.replace(str(folder), "FOLDER")
            found[words[0]] = digest(json.loads(said))
    found["predict"] = digest((folder / "predictions.csv").read_bytes())
    for name in ("run", "sharded"):
        metrics = json.loads((folder / name / "metrics.json").read_text())
        metrics["config"]["graph"] = ""
        files = ("model.safetensors", "predictions.parquet", "history.jsonl")
        found[name] = digest(metrics, *((folder / name / file).read_bytes() for file in files))
    return found


def _quiet():
    """No pages and pictures: they cost seconds, and hold times."""
    import hpgmn.runs.report_data
    import hpgmn.runs.train
    import hpgmn.runs.tune_results

    hpgmn.runs.train.explain_run = lambda *_: None
    hpgmn.runs.report_data.write_report = lambda *_: None
    hpgmn.runs.tune_results.draw = lambda *_: False


def _said(words):
    """What a command prints."""
    import contextlib
    import io

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main(words) == 0, words
    return text.getvalue()


def every_result(folder, seed, parts, graphs):
    """All of them for a seed; parts: m models, f forms, l library, c commands."""
    graph = trading_network(num_nodes=120, seed=seed).graph
    found: dict[str, str] = {}
    if "m" in parts:
        found |= of_models(graph, seed)
    if "f" in parts:
        found |= of_forms(graph, seed)
    if "l" in parts:
        found |= of_library(graph, seed)
    if "c" in parts:
        found |= of_commands(graph, folder)
    for path in graphs:
        for name in ("hpgmn", "gcn", "linkx"):
            found[f"{name} on {Path(path).stem}"] = trained(read_graph(path), name, seed)
    return found


if __name__ == "__main__":
    where, number, asked, *given = sys.argv[1:]
    print("\n" + json.dumps(every_result(Path(where), int(number), asked, given)))
