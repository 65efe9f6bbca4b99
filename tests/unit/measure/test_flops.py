"""Counted work against published MACs and bytes worked out by hand; roofline and memory on made-up numbers."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainstone.measure.flops import (
    GLIBC_HEAP_BLOCK_BYTES,
    HEAP_HOLES_FACTOR,
    Op,
    Roofline,
    Work,
    count_work,
    estimate_training_bytes,
    roofline_seconds,
)
from trainstone.models.resnet import build_resnet

BATCH = 2


@functools.cache
def resnet_work(depth: int) -> Work:
    with torch.device("meta"):
        model = build_resnet(depth)
        images, labels = torch.empty(BATCH, 3, 224, 224), torch.empty(BATCH, dtype=torch.int64)
    return count_work(lambda: F.cross_entropy(model(images), labels))


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta", requires_grad=True)


def find(work: Work, name: str) -> Op:
    (op,) = [op for op in work.ops if op.name.split(".")[1] == name]
    return op


# As published with torchvision's weights (docs: torchvision/models.html), in GFLOPS that mean multiply-adds.
@pytest.mark.parametrize(("depth", "giga_macs"), [(18, 1.814), (34, 3.664), (50, 4.089), (101, 7.801), (152, 11.514)])
def test_forward_macs_are_the_published_ones(depth, giga_macs):
    assert round(resnet_work(depth).forward_flops / 2 / BATCH / 1e9, 3) == giga_macs


def test_resnet50_trains_at_24_3_gflop_an_image():
    work = resnet_work(50)
    assert round(work.flops / BATCH / 1e9, 1) == 24.3
    assert work.flops == sum(op.flops for op in work.ops)
    assert work.bytes_moved == sum(op.bytes_moved for op in work.ops)
    assert work.parameter_bytes == 4 * 25_557_032


def test_convolution_by_hand():
    images, kernel = torch.empty(2, 3, 8, 8, device="meta"), meta(4, 3, 3, 3)
    work = count_work(lambda: F.conv2d(images, kernel, padding=1).square().sum())
    num_images, num_kernel, num_out = 2 * 3 * 8 * 8, 4 * 3 * 3 * 3, 2 * 4 * 8 * 8
    macs = num_out * 3 * 3 * 3
    forward, backward = find(work, "convolution"), find(work, "convolution_backward")
    assert (forward.flops, forward.bytes_moved) == (2 * macs, 4 * (num_images + num_kernel + num_out))
    # reads the output's gradient, images and kernel; writes the kernel's gradient only: images need none
    assert (backward.flops, backward.bytes_moved) == (2 * macs, 4 * (num_out + num_images + 2 * num_kernel))
    assert forward.input_shapes == ((2, 3, 8, 8), (4, 3, 3, 3))
    assert (work.forward_flops, work.flops) == (2 * macs, 4 * macs)
    assert work.saved_tensor_bytes == (4 * num_out, 4 * num_images)  # for square and convolution; no kernel
    assert work.parameter_bytes == 4 * num_kernel


@pytest.mark.parametrize("inplace", [False, True])
def test_relu_reads_once_and_writes_once(inplace):
    x = meta(10, 10)
    work = count_work(lambda: F.relu(x * 2.0, inplace=inplace).sum())
    assert find(work, "relu_" if inplace else "relu").bytes_moved == 2 * 400
    assert work.saved_tensor_bytes == (400,)  # the result


def test_a_sum_or_product_reads_each_distinct_tensor_once():
    x, y = meta(10, 10), torch.empty(10, 10, device="meta")

    def run() -> Tensor:
        torch.mul(y, y)
        return (x + y).sum()

    work = count_work(run)
    assert find(work, "add").bytes_moved == 3 * 400
    assert find(work, "mul").bytes_moved == 2 * 400


def test_expanded_tensor_is_as_large_as_its_memory():
    x, y = meta(10, 10), meta(10)
    work = count_work(lambda: (x + y.expand(10, 10)).sum())
    assert find(work, "add").bytes_moved == 400 + 40 + 400


def test_views_and_empty_tensors_move_nothing():
    x = meta(10, 10)

    def run() -> Tensor:
        torch.empty_like(x)
        torch.empty(1000, device="meta")
        views = x.t().permute(1, 0)[2:].detach().view(-1).unsqueeze_(0)
        assert views.shape == (1, 80)
        return (x * 1.0).sum()

    names = {op.name for op in count_work(run).ops}
    assert names == {"aten.mul.Tensor", "aten.sum.default", "aten.ones_like.default"}


def test_factories_and_copies_do_not_read_their_target():
    x = meta(10, 10)

    def run() -> Tensor:
        torch.zeros_like(x).copy_(x.detach()).zero_()
        return (x * 1.0).sum()

    work = count_work(run)
    assert find(work, "zeros_like").bytes_moved == 400
    assert find(work, "copy_").bytes_moved == 2 * 400
    assert find(work, "zero_").bytes_moved == 400


def test_equal_calls_are_one_op_with_a_count():
    x = meta(10, 10)
    op = find(count_work(lambda: ((x + 1.0) + 1.0 + 1.0).sum()), "add")
    assert (op.count, op.bytes_moved) == (3, 3 * 800)


def test_shared_and_unused_parameters():
    layer, unused = nn.Linear(10, 10, bias=False, device="meta"), nn.Linear(5, 5, device="meta")
    x = torch.empty(3, 10, device="meta")
    work = count_work(lambda: layer(layer(x)).sum())
    assert work.parameter_bytes == 400
    assert work.saved_tensor_bytes == (120, 120)
    assert unused.weight.grad is None


def test_real_tensors_count_as_meta_ones_do():
    def count(device: str) -> Work:
        layer = nn.Conv2d(3, 4, 3, device=device)
        images = torch.ones(1, 3, 8, 8, device=device)
        return count_work(lambda: layer(images).relu().sum())

    assert count("cpu") == count("meta")


def test_the_loss_must_be_a_scalar_with_a_gradient():
    with pytest.raises(ValueError, match="scalar loss"):
        count_work(lambda: meta(3) * 2)
    with pytest.raises(ValueError, match="with a gradient"):
        count_work(lambda: torch.empty((), device="meta"))


def test_roofline_of_known_operators():
    ops = [
        Op("bound by arithmetic", (), 1, flops=1000, bytes_moved=10),  # 10 s against 1 s
        Op("bound by memory", (), 2, flops=200, bytes_moved=50),  # 2 s against 5 s
        Op("only memory", (), 1, flops=0, bytes_moved=30),  # 3 s
    ]
    assert roofline_seconds(ops, peak_flops=100, bytes_per_second=10) == Roofline(10, 8, 18)
    assert roofline_seconds([], 1, 1) == Roofline(0, 0, 0)


def test_memory_estimate_by_hand():
    work = Work(0, 0, 0, saved_tensor_bytes=(100, 50, 10), parameter_bytes=1000, ops=())
    assert estimate_training_bytes(work, 2) == round(3000 + 320 + HEAP_HOLES_FACTOR * 320)
    assert estimate_training_bytes(work, 2, optimizer_slots=0) == round(2000 + 320 + HEAP_HOLES_FACTOR * 320)
    mapped = estimate_training_bytes(work, 2, heap_block_bytes=150)  # the block of 200 leaves no hole
    assert mapped == round(3000 + 320 + HEAP_HOLES_FACTOR * 120)


# Growth of the peak resident memory (MiB) over three to six steps after the model was built, in fresh processes:
# ResNet-50, fp32, channels-last, SGD momentum, 2 cores, torch 2.13, glibc 2.36, with and without GLIBC_TUNABLES.
@pytest.mark.parametrize(
    ("batch", "heap_block_bytes", "measured_mib"),
    [
        (2, math.inf, 440),
        (8, math.inf, 1152),
        (16, math.inf, 2354),
        (64, math.inf, 9027),
        (2, GLIBC_HEAP_BLOCK_BYTES, 463),
        (8, GLIBC_HEAP_BLOCK_BYTES, 1186),
        (16, GLIBC_HEAP_BLOCK_BYTES, 1945),
        (64, GLIBC_HEAP_BLOCK_BYTES, 5669),
    ],
)
def test_memory_estimate_against_measured_runs(batch, heap_block_bytes, measured_mib):
    work = resnet_work(50)
    estimate = estimate_training_bytes(work, batch / BATCH, heap_block_bytes=heap_block_bytes)
    growth_mib = (estimate - work.parameter_bytes) / 2**20  # the weights were there before
    assert 0.97 < growth_mib / measured_mib < 1.25
