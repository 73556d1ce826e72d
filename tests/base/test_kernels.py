"""The kernels against the tensor operations that they replace; needs a GPU, see tests/cuda."""

import pytest
import torch

from hpgmn.base import randomness
from hpgmn.base.randomness import DropRate, Noise, dropout, relu_dropout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("layout", ["contiguous", "side by side", "flat"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_by_kernel_is_dropout_by_tensor_operations(layout, dtype, monkeypatch):
    assert randomness.load_kernels() is not None
    x = torch.randn(3, 70, 41, device="cuda", dtype=dtype)
    if layout == "side by side":
        x = torch.randn(70, 3 * 41, device="cuda", dtype=dtype).view(70, 3, 41).transpose(0, 1)
    if layout == "flat":
        x = torch.randn(3, 2870, device="cuda", dtype=dtype)
    weight = torch.randn_like(x)
    rate = DropRate([0.0, 0.3, 0.9], "cuda")
    noise = Noise(torch.tensor([5, -6, 2**62], device="cuda"), 7)

    def both():
        found = []
        for function in (dropout, relu_dropout):
            given = x.detach().clone().requires_grad_()
            result = function(given, rate, noise, "place")
            (result * weight).sum().backward()
            found += [result.detach(), given.grad]
        if x.dim() == 3:
            bias = torch.randn(3, 1, 41, device="cuda", generator=torch.Generator("cuda"))
            given = x.detach().clone().requires_grad_()
            bias.requires_grad_()
            result = relu_dropout(given * 1, rate, noise, "place", bias)
            (result * weight).sum().backward()
            found += [result.detach(), given.grad, bias.grad]
        return found

    fused = both()
    monkeypatch.setattr(randomness, "load_kernels", lambda: None)
    for one, other in zip(fused, both(), strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-2 if dtype is torch.bfloat16 else 1e-6, atol=0
        )
        if dtype is torch.float32:
            assert torch.equal(one == 0, other == 0)


@pytest.mark.parametrize("shape", [(3, 70, 41), (3, 5), (3, 2000)])
def test_only_the_chosen_replicas_are_replaced(shape):
    values, kept = torch.randn(*shape, device="cuda"), torch.randn(*shape, device="cuda")
    chosen = torch.tensor([True, False, True], device="cuda")
    expected = torch.where(chosen.view(-1, *[1] * (len(shape) - 1)), values, kept)
    randomness.load_kernels().replace(chosen, values, kept)
    assert torch.equal(kept, expected)
