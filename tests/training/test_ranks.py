"""What ranks say to each other, in two real processes; and a process alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.training.checkpoint import read_tensors
from hpgmn.training.ranks import Ranks, joined

PROGRAM = """
import sys
from pathlib import Path
import torch
from hpgmn.training.ranks import joined
from hpgmn.training.checkpoint import write_tensors

with joined("cpu") as ranks:
    with joined("cpu") as again:  # who has joined is not asked to join again
        assert again == ranks
    own = torch.arange(2 * (ranks.rank + 1) * 3.0).view(2, ranks.rank + 1, 3) + 100 * ranks.rank
    weight = torch.tensor([2.0 + ranks.rank], requires_grad=True)
    total = ranks.total(weight.square())
    (total**2).sum().backward()
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, 3.0)
    parallel = ranks.parallel(layer)
    loss = ranks.total(parallel(torch.tensor([[1.0 + ranks.rank]])).sum()) ** 2
    loss.backward()
    found = {
        "gathered": ranks.gathered(own),
        "total": total.detach(),
        "gradient": weight.grad,
        "loss": loss.detach(),
        "parallel": layer.weight.grad,
        "agreed": ranks.agreed(torch.tensor([7.0 + ranks.rank])),
        "says": torch.tensor(ranks.says(ranks.rank == 0)),
        "counts": torch.tensor(ranks.counts(5 + ranks.rank)),
    }
    for spoken in ("", "größer"):
        assert ranks.words(spoken if ranks.is_first else "nothing") == spoken
    ranks.wait()
    write_tensors(Path(sys.argv[1]) / str(ranks.rank), found, {})
"""


@pytest.mark.distributed
def test_two_ranks_speak(
    tmp_path: Path, several: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
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
        assert found["says"].item() is True
        assert found["counts"].tolist() == [5, 6]
        # loss = (1·w + 2·w)², w = 3: its gradient is 2·9·3, whoever holds which row.
        assert found["loss"].item() == 81
        assert found["parallel"].item() == 54
    # d(total²)/dw on each rank, times the number of ranks, which a mean over ranks takes away.
    assert first["gradient"].item() == 2 * (2 * 13) * (2 * 2)
    assert second["gradient"].item() == 2 * (2 * 13) * (2 * 3)


def test_a_process_alone_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    values = torch.tensor([[1.0, 2.0]])
    with joined("cpu") as ranks:
        assert ranks == Ranks(0, 1, torch.device("cpu"))
        assert ranks.is_first
        for answer in (ranks.total(values), ranks.gathered(values), ranks.agreed(values)):
            assert answer is values
        assert ranks.counts(3) == [3]
        assert ranks.says(True)
        assert not ranks.says(False)
        assert ranks.words("größer") == "größer"
        ranks.wait()
        layer = torch.nn.Linear(1, 1)
        assert ranks.parallel(layer) is layer


def test_a_rank_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(HPGMNError, match="Start as many ranks as there are GPUs"), joined("cuda"):
        pass
