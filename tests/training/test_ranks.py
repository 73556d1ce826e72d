"""Collective operations of two real processes, and of a process alone."""

import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import read_tensors
from hpgmn.training.ranks import Ranks, join_ranks

PROGRAM = """
import sys
from pathlib import Path
import torch
from hpgmn.training.ranks import join_ranks
from hpgmn.base.files import write_tensors

with join_ranks("cpu") as ranks:
    with join_ranks("cpu") as again:  # who has joined is not asked to join again
        assert again == ranks
    own = torch.arange(2 * (ranks.rank + 1) * 3.0).view(2, ranks.rank + 1, 3) + 100 * ranks.rank
    weight = torch.tensor([2.0 + ranks.rank], requires_grad=True)
    total = ranks.sum(weight.square())
    (total**2).sum().backward()
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, 3.0)
    parallel = ranks.average_gradients(layer)
    loss = ranks.sum(parallel(torch.tensor([[1.0 + ranks.rank]])).sum()) ** 2
    loss.backward()
    found = {
        "gathered": ranks.gather(own),
        "total": total.detach(),
        "gradient": weight.grad,
        "loss": loss.detach(),
        "parallel": layer.weight.grad,
        "agreed": ranks.broadcast(torch.tensor([7.0 + ranks.rank])),
        "any": torch.tensor(ranks.any(ranks.rank == 1)),
        "mean": ranks.reduce_nodes(own),
        "sum": ranks.reduce_nodes(own, "sum"),
        "counts": torch.tensor(ranks.gather_numbers(5 + ranks.rank)),
    }
    for text in ("", "größer"):
        assert ranks.broadcast_text(text if ranks.is_first else "nothing") == text
    ranks.barrier()
    write_tensors(Path(sys.argv[1]) / str(ranks.rank), found, {})
"""


@pytest.mark.distributed
def test_collectives_of_two_ranks(tmp_path, several):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = several(2, str(program), str(tmp_path))
    assert "Warning" not in done.stderr
    first, second = (read_tensors(tmp_path / name)[0] for name in ("0", "1"))
    expected = torch.cat(
        [torch.arange(6.0).view(2, 1, 3), torch.arange(12.0).view(2, 2, 3) + 100], dim=1
    )
    assert torch.equal(first["gathered"], expected)
    assert second["gathered"].shape == (2, 0, 3)
    for found in (first, second):
        assert found["total"].item() == 2**2 + 3**2
        assert found["agreed"].item() == 7
        assert found["any"].item() is True
        torch.testing.assert_close(found["mean"], expected.mean(dim=1))
        torch.testing.assert_close(found["sum"], expected.sum(dim=1))
        assert found["counts"].tolist() == [5, 6]
        # loss = (1·w + 2·w)², w = 3: its gradient is 2·9·3, whoever holds which row.
        assert found["loss"].item() == 81
        assert found["parallel"].item() == 54
    # d(total²)/dw on each rank, times the number of ranks, which a mean over ranks takes away.
    assert first["gradient"].item() == 2 * (2 * 13) * (2 * 2)
    assert second["gradient"].item() == 2 * (2 * 13) * (2 * 3)


def test_a_process_alone_is_one_rank(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    values = torch.tensor([[1.0, 2.0]])
    with join_ranks("cpu") as ranks:
        assert ranks == Ranks(0, 1, torch.device("cpu"))
        assert ranks.is_first
        for answer in (ranks.sum(values), ranks.gather(values), ranks.broadcast(values)):
            assert answer is values
        assert ranks.gather_numbers(3) == [3]
        assert ranks.any(True)
        assert not ranks.any(False)
        assert ranks.broadcast_text("größer") == "größer"
        ranks.barrier()
        layer = torch.nn.Linear(1, 1)
        assert ranks.average_gradients(layer) is layer


def test_a_rank_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(HPGMNError, match="at most one rank per GPU"), join_ranks("cuda"):
        pass
