"""Batches of labelled nodes, and rows fetched ahead."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpgmn.base.randomness import Noise
from hpgmn.training.node_batches import LabelledNodes, prefetch


def batch_nodes(labelled: Any, size: int, epoch: int) -> list[Tensor]:
    noise = Noise(torch.tensor([3, 4]), epoch)
    return [part.nodes.masked_fill(~part.valid, -1) for part in labelled.node_batches(size, noise)]


def test_an_epoch_reads_every_train_node_once_in_an_order_of_its_own() -> None:
    labels = np.full((2, 9), -1)
    labels[0, [1, 3, 4, 7, 8]] = [0, 1, 0, 1, 1]
    labels[1, [0, 2, 5]] = 1
    labelled = LabelledNodes.of(labels, torch.device("cpu"))
    first, second = (torch.cat(batch_nodes(labelled, 2, epoch), dim=1) for epoch in (1, 2))
    for order in (first, second):
        assert sorted(order[0].tolist()) == [1, 3, 4, 7, 8]
        assert sorted(order[1].tolist()) == [-1, -1, 0, 2, 5]
        assert order[1, 3:].tolist() == [-1, -1]  # padding comes last
    assert first.tolist() != second.tolist()
    assert [part.shape[1] for part in batch_nodes(labelled, 2, 1)] == [2, 2, 1]
    for part in labelled.node_batches(2, Noise(torch.tensor([3, 4]), 1)):
        for row in range(2):
            for node, label, valid in zip(
                part.nodes[row], part.labels[row], part.valid[row], strict=True
            ):
                assert not valid or labels[row, node] == label


def test_the_next_is_fetched_while_one_is_in_use() -> None:
    fetched = {number: threading.Event() for number in range(4)}

    def fetch(number: int) -> int:
        fetched[number].set()
        return number * number

    found = []
    for number, square in prefetch(range(4), fetch):
        if number < 3:
            assert fetched[number + 1].wait(10)
        found.append((number, square))
    assert found == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert list(prefetch([], fetch)) == []


def test_what_fails_to_be_fetched_fails_where_it_is_used() -> None:
    def fetch(number: int) -> float:
        return 1 / (2 - number)

    pairs = prefetch(range(4), fetch)
    assert [next(pairs), next(pairs)] == [(0, 0.5), (1, 1.0)]
    with pytest.raises(ZeroDivisionError):
        next(pairs)
