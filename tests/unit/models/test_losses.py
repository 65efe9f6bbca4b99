"""Both conventions of label smoothing against a matrix of targets."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainstone.models.losses import cross_entropy


def by_targets(logits: Tensor, labels: Tensor, true: float, other: float) -> Tensor:
    classes = logits.shape[1]
    targets = F.one_hot(labels, classes).double() * (true - other) + other
    return -(targets * logits.double().log_softmax(1)).sum(1).mean()


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(1, 6), st.floats(0, 0.99), st.integers(0, 10**6))
def test_smoothing_is_that_of_the_targets(classes: int, batch: int, a: float, seed: int):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, classes, generator=generator) * 3
    labels = torch.randint(classes, (batch,), generator=generator)
    tensorflow = by_targets(logits, labels, 1 - a + a / classes, a / classes)
    mxnet = by_targets(logits, labels, 1 - a, a / (classes - 1))
    found = cross_entropy(logits, labels, smoothing=a, over="all")
    torch.testing.assert_close(found.double(), tensorflow, rtol=1e-5, atol=1e-6)
    found = cross_entropy(logits, labels, smoothing=a, over="others")
    torch.testing.assert_close(found.double(), mxnet, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("over", ["all", "others"])
def test_the_gradient_is_the_distance_from_the_targets(over: str):
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(1), requires_grad=True)
    labels = torch.tensor([0, 3, 9, 3])
    (gradient,) = torch.autograd.grad(cross_entropy(logits, labels, smoothing=0.1, over=over), logits)
    true, other = (0.9, 0.1 / 9) if over == "others" else (0.91, 0.01)
    targets = F.one_hot(labels, 10) * (true - other) + other
    torch.testing.assert_close(gradient, (logits.detach().softmax(1) - targets) / 4, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("over", ["all", "others"])
def test_without_smoothing_it_is_the_plain_cross_entropy(over: str):
    logits, labels = torch.randn(3, 5), torch.tensor([0, 1, 4])
    assert torch.equal(cross_entropy(logits, labels, smoothing=0.0, over=over), F.cross_entropy(logits, labels))


@pytest.mark.parametrize("over", ["all", "others"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_logits_give_an_fp32_loss(over: str, dtype: torch.dtype):
    logits, labels = torch.randn(3, 5).to(dtype), torch.tensor([0, 1, 4])
    loss = cross_entropy(logits, labels, smoothing=0.1, over=over)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, cross_entropy(logits.float(), labels, smoothing=0.1, over=over))


@pytest.mark.parametrize("over", ["all", "others"])
def test_sure_logits_do_not_overflow(over: str):
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    assert torch.isfinite(cross_entropy(logits, torch.tensor([1]), smoothing=0.1, over=over))


def test_one_class_alone_costs_nothing():
    assert cross_entropy(torch.ones(2, 1), torch.tensor([0, 0]), smoothing=0.1, over="others") == 0
