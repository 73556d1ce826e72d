"""Train, export as ONNX, and predict with onnxruntime from rows of statistics.

python export_onnx.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import hpgmn

graph = hpgmn.trading_network(num_nodes=500, seed=0).graph
folder = Path(tempfile.mkdtemp())

# Train; `hpgmn export RUN --onnx model.onnx` does the same as export_onnx.
run = hpgmn.train(graph, model="hpgmn", settings={"epochs": 60}, splits=0, out=folder / "run")
description = run.export_onnx(folder / "model.onnx")
about = json.loads(description.read_text())
print([(one["name"], one["shape"]) for one in about["inputs"]])

# The statistics need the graph, so hpgmn computes them; what follows needs onnxruntime alone.
rows = run.statistics(nodes=[0, 1, 2])
session = onnxruntime.InferenceSession(folder / "model.onnx")
[probabilities] = session.run(["probabilities"], rows)
decisions = np.log(probabilities) + about["decision"]["offsets"]
for chances, number in zip(probabilities, decisions.argmax(axis=1), strict=True):
    print(f"{about['class_names'][number]}, probability {chances[number]:.3f}")
print(f"largest difference {np.abs(probabilities - run.predict().probabilities[:3]).max():.0e}")
