"""Tests of losses and mixup against their definitions: target matrices, and float64 loops over images and boxes."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainstone.models.losses import cross_entropy, detection_loss, draw_mix, mix_images, mix_loss


def by_targets(logits: Tensor, labels: Tensor, true: float, other: float) -> Tensor:
    classes = logits.shape[1]
    targets = F.one_hot(labels, classes).double() * (true - other) + other
    return -(targets * logits.double().log_softmax(1)).sum(1).mean()


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(1, 6), st.floats(0, 0.99), st.integers(0, 10**6))
def test_cross_entropy_smoothing_equals_smoothed_targets(classes: int, batch: int, a: float, seed: int):
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
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cross_entropy_edge_cases_and_dtypes(over: str, dtype: torch.dtype):
    logits, labels = torch.randn(3, 5), torch.tensor([0, 1, 4])
    assert torch.equal(cross_entropy(logits, labels, smoothing=0.0, over=over), F.cross_entropy(logits, labels))
    short = cross_entropy(logits.to(dtype), labels, smoothing=0.1, over=over)
    assert short.dtype == torch.float32
    assert torch.equal(short, cross_entropy(logits.to(dtype).float(), labels, smoothing=0.1, over=over))
    assert torch.isfinite(cross_entropy(torch.tensor([[1e4, -1e4, 0.0]]), labels[1:2], smoothing=0.1, over=over))
    assert cross_entropy(torch.ones(2, 1), torch.tensor([0, 0]), smoothing=0.1, over="others") == 0  # one class


def draw(batch_size: int = 64, alpha: float = 0.2, seed: int = 1, step: int = 0, rank_number: int = 0):
    return draw_mix(batch_size, alpha, seed=seed, step=step, rank_number=rank_number)


@settings(deadline=None)
@given(st.integers(1, 40), st.floats(1e-3, 10), st.integers(-(2**70), 2**70), st.integers(0, 10**9), st.integers(0, 99))
def test_draw_mix_returns_permutation_and_share(batch_size: int, alpha: float, seed: int, step: int, rank: int):
    permutation, share = draw_mix(batch_size, alpha, seed=seed, step=step, rank_number=rank)
    assert permutation.dtype == torch.int64
    assert sorted(permutation.tolist()) == list(range(batch_size))
    assert (share.shape, share.dtype) == ((1,), torch.float32)
    assert 0 <= float(share) <= 1
    again = draw_mix(batch_size, alpha, seed=seed, step=step, rank_number=rank)
    assert torch.equal(again[0], permutation)
    assert torch.equal(again[1], share)


@pytest.mark.parametrize("other", [{"seed": 2}, {"step": 1}, {"rank_number": 1}, {"seed": 1 + 2**32}])
def test_draw_mix_differs_by_seed_step_and_rank(other: dict[str, int]):
    (permutation, share), (its_permutation, its_share) = draw(), draw(**other)
    assert not torch.equal(permutation, its_permutation)
    assert float(share) != float(its_share)


def test_draw_mix_shares_follow_beta_distribution():
    alpha = 0.4
    shares = torch.cat([draw(2, alpha, step=step)[1] for step in range(2000)])
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.04)
    assert float(shares.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.08)  # Beta(a, a)'s


def test_mix_images_equals_definition_and_keeps_channels_last():
    images = torch.randn(6, 5, 5, 3).permute(0, 3, 1, 2)
    permutation, share = torch.tensor([3, 1, 0, 5, 2, 4]), torch.tensor([0.3])
    mixed = mix_images(images, permutation, share)
    for place in range(6):
        expected = 0.3 * images[place] + 0.7 * images[permutation[place]]
        torch.testing.assert_close(mixed[place], expected, rtol=1e-6, atol=1e-6)
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(mix_images(images, permutation, torch.tensor([1.0])), images)
    assert torch.equal(mix_images(images, permutation, torch.tensor([0.0])), images[permutation])


@pytest.mark.parametrize("share", [0.0, 0.25, 0.8, 1.0])
def test_mix_loss_equals_definition(share: float):
    logits = torch.randn(4, 7, requires_grad=True)
    labels, permutation = torch.tensor([0, 6, 3, 2]), torch.tensor([2, 0, 1, 3])
    loss = mix_loss(F.cross_entropy, logits, labels, permutation, torch.tensor([share]))
    targets = share * F.one_hot(labels, 7) + (1 - share) * F.one_hot(labels[permutation], 7)
    expected = F.cross_entropy(logits, targets.float())
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0], rtol=1e-5, atol=1e-6)


def measure_slowly(
    scores: Tensor, offsets: Tensor, targets: Tensor, target_offsets: Tensor, negatives: float
) -> Tensor:
    """Compute the original's loss one box at a time; keeps the graph."""
    images = []
    for row in range(len(scores)):
        positive, background = [], []
        for place in range(scores.shape[1]):
            own = scores[row, place]
            loss = own.logsumexp(0) - own[targets[row, place]]
            if targets[row, place] == 0:
                background.append(loss)
                continue
            for side in range(4):
                distance = (offsets[row, place, side] - target_offsets[row, place, side]).abs()
                loss = loss + (0.5 * distance**2 if distance < 1 else distance - 0.5)
            positive.append(loss)
        background.sort(key=lambda loss: -loss.item())
        counted = positive + background[: math.floor(negatives * len(positive))]
        images.append(sum(counted) / len(positive) if positive else torch.zeros((), dtype=scores.dtype))
    return sum(images) / len(images)


def make_case(seed: int, batch: int, boxes: int, share: float, num_classes: int = 4) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, boxes, num_classes + 1, generator=generator) * 3
    offsets = torch.randn(batch, boxes, 4, generator=generator) * 2
    positive = torch.rand(batch, boxes, generator=generator) < share
    targets = positive * torch.randint(1, num_classes + 1, (batch, boxes), generator=generator)
    return scores, offsets, targets, torch.randn(batch, boxes, 4, generator=generator) * positive[..., None]


@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 3),
    boxes=st.integers(1, 12),
    share=st.sampled_from([0.0, 0.1, 0.3, 0.9, 1.0]),
    negatives=st.sampled_from([0.5, 1.0, 2.5, 3.0, 100.0]),
)
@settings(deadline=None, max_examples=60)
def test_detection_loss_equals_slow_reference(seed, batch, boxes, share, negatives):
    scores, offsets, targets, target_offsets = make_case(seed, batch, boxes, share)
    ours = scores.clone().requires_grad_(), offsets.clone().requires_grad_()
    loss = detection_loss(*ours, targets, target_offsets, negatives=negatives)
    slow = scores.double().requires_grad_(), offsets.double().requires_grad_()
    expected = measure_slowly(*slow, targets, target_offsets.double(), negatives)
    assert torch.allclose(loss.double(), expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    if expected.requires_grad:
        expected.backward()
    for mine, theirs in zip(ours, slow, strict=True):
        wanted = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        assert torch.allclose(mine.grad.double(), wanted, rtol=1e-4, atol=1e-6)


def test_detection_loss_ignores_infinite_background_and_keeps_nan():
    scores, offsets, targets, target_offsets = make_case(5, 1, 10, 0.3)
    offsets[targets == 0] = math.inf
    offsets.requires_grad_()
    loss = detection_loss(scores, offsets, targets, target_offsets, negatives=3)
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(offsets.grad.isfinite().all())
    scores[0, 0] = math.nan
    assert bool(detection_loss(scores, offsets, targets, target_offsets, negatives=3).isnan())


def test_detection_loss_reduced_precision_returns_fp32():
    scores, offsets, targets, target_offsets = make_case(7, 2, 200, 0.1)
    halved = scores.bfloat16(), offsets.bfloat16()
    loss = detection_loss(*halved, targets, target_offsets, negatives=3)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, detection_loss(*(half.float() for half in halved), targets, target_offsets, negatives=3))


def test_detection_loss_does_not_synchronise_device():
    """Reading a tensor's content fails on the meta device."""
    scores = torch.zeros(2, 30, 5, device="meta", requires_grad=True)
    offsets = torch.zeros(2, 30, 4, device="meta", requires_grad=True)
    targets = torch.zeros(2, 30, dtype=torch.int64, device="meta")
    detection_loss(scores, offsets, targets, torch.zeros(2, 30, 4, device="meta"), negatives=3).backward()
    assert scores.grad.shape == scores.shape
