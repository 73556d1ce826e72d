"""Rounds of the sketch: what they leave, and S·Ω by a dense inverse."""

import numpy as np

from hpgmn.base.randomness import signs, text_keys
from hpgmn.base.sparse import transition
from hpgmn.shards import shard
from hpgmn.statistics import StatisticsSettings


def test_rows_are_the_exact_diffusion_times_signs(tmp_path, make_graph):
    graph = make_graph()
    settings = StatisticsSettings(
        statistics=("diffusion",),
        neighbors="out",
        diffusion_form="sketch",
        diffusion_dim=16,
        diffusion_scaling="raw",
        diffusion_self_entry=True,
        teleport=0.5,
    )
    shards = shard(graph, tmp_path, graph.y, settings, ranges=4, keep=True).shards
    matrix = transition(graph.adjacency("out"), "column").toarray().astype(np.float64)
    exact = 0.5 * np.linalg.inv(np.eye(60) - 0.5 * matrix)
    omega = signs(text_keys(np.arange(60).astype(np.str_)), 0, 16).numpy() / 4
    found = np.concatenate([shards.statistic("diffusion", part) for part in range(4)])
    np.testing.assert_allclose(found, exact @ omega, atol=2e-5)
    # Rounds that nobody needs any more are gone.
    assert list((tmp_path / "work").glob("diffusion-*")) == []
