"""What the tests of statistics share: one comparison of an operator with dense matrices."""

import numpy as np
import pytest
import torch


def compare(statistic, matrices, *, rtol=1e-5, atol=1e-5):
    """Check products, their gradients and rows of a statistic against dense float64 algebra.

    Products are taken with and without ``nodes`` (some of them twice) and with and without
    ``columns`` (some of them zero); weights are unlike in every replica. The same is asked of the
    statistic of some nodes, and of some nodes of those.

    Args:
        statistic: what is checked.
        matrices: (R, N, width) the same matrices in full.
        rtol: relative tolerance.
        atol: absolute tolerance.
    """
    matrices = np.asarray(matrices, np.float64)
    replicas, num_nodes, _ = matrices.shape
    _compare_products(statistic, matrices, (rtol, atol), ("", "nodes", "columns", "both"))
    generator = torch.Generator().manual_seed(1)
    every = np.arange(replicas)[:, None]
    for nodes in (
        torch.randint(num_nodes, (replicas, 3), generator=generator),
        torch.randint(num_nodes, (1, num_nodes + 1), generator=generator).expand(replicas, -1),
    ):
        chosen = statistic.some(nodes)
        _compare_products(chosen, matrices[every, nodes], (rtol, atol), ("columns", "nodes"))
        fewer = torch.randint(nodes.shape[1], (replicas, 2), generator=generator)
        expected = matrices[every, nodes.gather(1, fewer)]
        _compare_products(chosen.some(fewer), expected, (rtol, atol), ("",))


def _compare_products(statistic, matrices, tolerance, cases):
    replicas, num_nodes, width = matrices.shape
    rtol, atol = tolerance
    assert statistic.width == width
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(replicas, width, 3, generator=generator)
    some = torch.randint(num_nodes, (replicas, num_nodes + 2), generator=generator)
    factors = 2.0 * (torch.rand(replicas, width, generator=generator) < 0.5)
    for case in cases:
        nodes = some if case in ("nodes", "both") else None
        columns = factors if case in ("columns", "both") else None
        own = weight.clone().requires_grad_()
        found = statistic.times(own, nodes, columns)
        upstream = torch.randn(found.shape, generator=generator)
        (found * upstream).sum().backward()
        for replica in range(replicas):
            matrix = torch.from_numpy(matrices[replica])
            exact_weight = weight[replica].double().requires_grad_()
            kept = torch.ones(width) if columns is None else columns[replica]
            exact = matrix @ torch.diag(kept.double()) @ exact_weight
            exact = exact if nodes is None else exact[nodes[replica]]
            (exact * upstream[replica]).sum().backward()
            torch.testing.assert_close(found[replica].double(), exact, rtol=rtol, atol=atol)
            torch.testing.assert_close(
                own.grad[replica].double(), exact_weight.grad, rtol=rtol, atol=atol * num_nodes
            )
    for replica in range(replicas):
        rows = statistic.rows(some[replica], replica).double().numpy()
        np.testing.assert_allclose(rows, matrices[replica, some[replica]], rtol=rtol, atol=atol)


@pytest.fixture(scope="session")
def assert_acts_like():
    """The comparison as a fixture, so that hypothesis may use it in every example."""
    return compare
