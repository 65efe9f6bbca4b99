"""Mixup against its definition, and draws that depend on seed, step and rank alone."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.models.mixing import draw_mix, mix_images, mix_loss


def draw(batch_size: int = 64, alpha: float = 0.2, seed: int = 1, step: int = 0, rank_number: int = 0):
    return draw_mix(batch_size, alpha, seed=seed, step=step, rank_number=rank_number)


@settings(deadline=None)
@given(st.integers(1, 40), st.floats(1e-3, 10), st.integers(-(2**70), 2**70), st.integers(0, 10**9), st.integers(0, 99))
def test_a_draw_is_a_permutation_and_a_share(batch_size: int, alpha: float, seed: int, step: int, rank: int):
    permutation, share = draw_mix(batch_size, alpha, seed=seed, step=step, rank_number=rank)
    assert permutation.dtype == torch.int64
    assert sorted(permutation.tolist()) == list(range(batch_size))
    assert (share.shape, share.dtype) == ((1,), torch.float32)
    assert 0 <= float(share) <= 1
    again = draw_mix(batch_size, alpha, seed=seed, step=step, rank_number=rank)
    assert torch.equal(again[0], permutation)
    assert torch.equal(again[1], share)


@pytest.mark.parametrize("other", [{"seed": 2}, {"step": 1}, {"rank_number": 1}, {"seed": 1 + 2**32}])
def test_each_seed_step_and_rank_draws_anew(other: dict[str, int]):
    (permutation, share), (its_permutation, its_share) = draw(), draw(**other)
    assert not torch.equal(permutation, its_permutation)
    assert float(share) != float(its_share)


def test_shares_follow_the_beta_distribution():
    alpha = 0.4
    shares = torch.cat([draw(2, alpha, step=step)[1] for step in range(4000)])
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(shares.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.06)  # Beta(a, a)'s


def test_partners_are_drawn_evenly():
    firsts = torch.stack([draw(4, step=step)[0] for step in range(4000)])
    for place in range(4):
        assert torch.bincount(firsts[:, place], minlength=4).div(4000).sub(0.25).abs().max() < 0.03


def test_pictures_are_mixed_by_definition_and_stay_channels_last():
    images = torch.randn(6, 5, 5, 3).permute(0, 3, 1, 2)
    permutation, share = torch.tensor([3, 1, 0, 5, 2, 4]), torch.tensor([0.3])
    mixed = mix_images(images, permutation, share)
    for place in range(6):
        expected = 0.3 * images[place] + 0.7 * images[permutation[place]]
        torch.testing.assert_close(mixed[place], expected, rtol=1e-6, atol=1e-6)
    assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_a_full_share_changes_nothing_and_none_gives_the_partners():
    images, permutation = torch.randn(4, 3, 2, 2), torch.tensor([1, 2, 3, 0])
    assert torch.equal(mix_images(images, permutation, torch.tensor([1.0])), images)
    assert torch.equal(mix_images(images, permutation, torch.tensor([0.0])), images[permutation])


@pytest.mark.parametrize("share", [0.0, 0.25, 0.8, 1.0])
def test_losses_are_mixed_by_definition(share: float):
    logits = torch.randn(4, 7, requires_grad=True)
    labels, permutation = torch.tensor([0, 6, 3, 2]), torch.tensor([2, 0, 1, 3])
    loss = mix_loss(F.cross_entropy, logits, labels, permutation, torch.tensor([share]))
    targets = share * F.one_hot(labels, 7) + (1 - share) * F.one_hot(labels[permutation], 7)
    expected = F.cross_entropy(logits, targets.float())
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0], rtol=1e-5, atol=1e-6)
