import numpy as np
import pytest
import torch
from torch.nn import functional

from hpgmn.base.metrics import class_loss
from hpgmn.base.objectives import Classification, Regression

LABELS = np.array([[2.0, 4.0, np.nan, 9.0], [1.0, np.nan, 3.0, 8.0]])
VALID = torch.tensor([[True, True, False, False], [True, False, True, True]])


@pytest.mark.parametrize("kind", ["squared", "huber"])
def test_the_loss_is_that_of_standardised_targets(kind):
    outputs = torch.randn(2, 4, 1, generator=torch.Generator().manual_seed(0)) * 3
    labels = torch.from_numpy(np.nan_to_num(LABELS))
    loss = Regression.of(LABELS, kind, "cpu").loss(outputs, labels, VALID)
    for row in range(2):
        known = LABELS[row][~np.isnan(LABELS[row])]
        chosen = VALID[row]
        targets = ((labels[row] - known.mean()) / known.std())[chosen].float()
        single = functional.huber_loss if kind == "huber" else functional.mse_loss
        assert loss[row] == pytest.approx(float(single(outputs[row, chosen, 0], targets)))


def test_padding_has_no_gradient_and_values_are_in_the_unit_of_the_targets():
    objective = Regression.of(LABELS, "squared", "cpu")
    outputs = torch.zeros(2, 4, 1, requires_grad=True)
    labels = torch.from_numpy(np.where(VALID.numpy(), np.nan_to_num(LABELS), np.nan))
    torch.autograd.backward(objective.loss(outputs, labels, VALID).sum())
    assert outputs.grad is not None
    assert torch.equal(outputs.grad[..., 0] != 0, VALID & (labels != objective.mean))
    assert objective.values(outputs)[:, 0, 0].tolist() == pytest.approx([5, 4])


def test_ranks_add_their_sums():
    outputs, labels = torch.ones(1, 3, 1), torch.tensor([[1.0, 2.0, 6.0]]).double()
    objective = Regression.of(np.array([[0.0, 4.0]]), "squared", "cpu")
    whole = objective.loss(outputs, labels, torch.ones(1, 3, dtype=torch.bool))
    parts = [torch.tensor([[True, False, False]]), torch.tensor([[False, True, True]])]
    sums: list[torch.Tensor] = []
    objective.loss(outputs, labels, parts[0], lambda part: sums.append(part) or part)
    shared = objective.loss(outputs, labels, parts[1], lambda part: part + sums[0])
    assert shared.tolist() == whole.tolist()


def test_classes_have_the_class_loss():
    logits, labels = torch.randn(1, 3, 2), torch.tensor([[0, 1, 0]])
    valid, weights = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[1.0, 3.0]])
    objective = Classification(2, weights)
    assert torch.equal(
        objective.loss(logits, labels, valid), class_loss(logits, labels, valid, weights)
    )
    assert torch.equal(
        objective.validation_loss(logits, labels, valid), class_loss(logits, labels, valid)
    )
    assert objective.values(logits) is logits
