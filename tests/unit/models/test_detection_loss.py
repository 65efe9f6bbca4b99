"""SSD's loss and its gradients against loops over pictures and boxes in float64."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainstone.models.detection_loss import detection_loss
from trainstone.models.ssd import build_ssd


def measure_slowly(
    scores: Tensor, offsets: Tensor, targets: Tensor, target_offsets: Tensor, negatives: float
) -> Tensor:
    """The original's words, a box at a time; keeps the graph."""
    pictures = []
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
        pictures.append(sum(counted) / len(positive) if positive else torch.zeros((), dtype=scores.dtype))
    return sum(pictures) / len(pictures)


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
@settings(deadline=None, max_examples=80)
def test_loss_and_gradients_are_those_of_the_slow_way(seed, batch, boxes, share, negatives):
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


def test_picture_without_an_object_counts_as_zero_but_is_counted():
    scores, offsets, targets, target_offsets = make_case(3, 1, 20, 0.3)
    alone = detection_loss(scores, offsets, targets, target_offsets, negatives=3)
    empty = torch.zeros_like(targets), torch.zeros_like(target_offsets)
    pairs = zip((scores, offsets, targets, target_offsets), (scores, offsets, *empty), strict=True)
    together = detection_loss(*(torch.cat(pair) for pair in pairs), negatives=3)
    assert torch.allclose(together, alone / 2)


def test_equally_hard_negatives_are_counted_no_more_than_asked_for():
    targets = torch.tensor([[1, 0, 0, 0, 0, 0]])
    loss = detection_loss(torch.zeros(1, 6, 3), torch.zeros(1, 6, 4), targets, torch.zeros(1, 6, 4), negatives=3)
    assert math.isclose(loss.item(), 4 * math.log(3), rel_tol=1e-6)


def test_what_is_not_counted_may_be_infinite():
    scores, offsets, targets, target_offsets = make_case(5, 1, 10, 0.3)
    offsets[targets == 0] = math.inf
    offsets.requires_grad_()
    loss = detection_loss(scores, offsets, targets, target_offsets, negatives=3)
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(offsets.grad.isfinite().all())


def test_scores_that_are_no_numbers_give_a_loss_that_is_none():
    scores, offsets, targets, target_offsets = make_case(6, 2, 10, 0.3)
    scores[0, 0] = math.nan
    assert bool(detection_loss(scores, offsets, targets, target_offsets, negatives=3).isnan())


def test_reduced_precision_is_summed_in_fp32():
    scores, offsets, targets, target_offsets = make_case(7, 2, 200, 0.1)
    halved = scores.bfloat16(), offsets.bfloat16()
    loss = detection_loss(*halved, targets, target_offsets, negatives=3)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, detection_loss(*(half.float() for half in halved), targets, target_offsets, negatives=3))


def test_every_parameter_gets_a_gradient_from_a_batch_without_objects():
    model = build_ssd(18, num_classes=2, image_size=64, width=16)
    scores, offsets = model(torch.randn(2, 3, 64, 64))
    targets = torch.zeros(scores.shape[:2], dtype=torch.int64)
    loss = detection_loss(scores, offsets, targets, torch.zeros_like(offsets), negatives=3)
    assert loss.item() == 0
    loss.backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_nothing_waits_for_the_device():
    """The meta device has no content: whatever looks at one fails there."""
    scores = torch.zeros(2, 30, 5, device="meta", requires_grad=True)
    offsets = torch.zeros(2, 30, 4, device="meta", requires_grad=True)
    targets = torch.zeros(2, 30, dtype=torch.int64, device="meta")
    detection_loss(scores, offsets, targets, torch.zeros(2, 30, 4, device="meta"), negatives=3).backward()
    assert scores.grad.shape == scores.shape
