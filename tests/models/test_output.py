"""What every model returns."""

from __future__ import annotations

import torch

from hpgmn.models.output import Output


def test_an_output_has_its_own_empty_penalties_and_details() -> None:
    one, other = Output(torch.zeros(1, 2, 3)), Output(torch.ones(1, 2, 3))
    one.penalties["entropy"] = torch.ones(1)
    one.details["gate"] = torch.ones(1, 2)
    assert other.penalties == {}
    assert other.details == {}
    assert torch.equal(one.logits, torch.zeros(1, 2, 3))
