"""Tests of counted work against published MACs and manually computed bytes; roofline and memory on made-up numbers."""

import functools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainstone.measure import flops
from trainstone.measure.flops import Op, StepWork, count_work, estimate_training_bytes, roofline_seconds
from trainstone.models.resnet import build_resnet

BATCH = 2


def make_step(depth: int, batch: int) -> Callable[[], Tensor]:
    with torch.device("meta"):
        model = build_resnet(depth)
        images, labels = torch.empty(batch, 3, 224, 224), torch.empty(batch, dtype=torch.int64)
    return lambda: F.cross_entropy(model(images), labels)


@functools.cache
def resnet50_work(batch: int) -> StepWork:
    return count_work(make_step(50, batch))


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta", requires_grad=True)


def find(work: StepWork, name: str) -> Op:
    (op,) = [op for op in work.ops if op.name.split(".")[1] == name]
    return op


# Published with torchvision's weights (docs: torchvision/models.html), in GFLOPS that mean multiply-adds.
@pytest.mark.parametrize(("depth", "giga_macs"), [(18, 1.814), (50, 4.089), (152, 11.514)])
def test_count_work_forward_macs_equal_published(depth, giga_macs):
    assert round(count_work(make_step(depth, BATCH), backward=False).flops / 2 / BATCH / 1e9, 3) == giga_macs


def test_count_work_resnet50_has_24_3_gflop_per_image():
    work = resnet50_work(BATCH)
    assert round(work.flops / BATCH / 1e9, 1) == 24.3
    assert work.bytes_moved == sum(op.bytes_moved for op in work.ops)
    assert work.parameter_bytes == 4 * 25_557_032


def test_count_work_convolution_equals_manual_count():
    images, kernel = torch.empty(2, 3, 8, 8, device="meta"), meta(4, 3, 3, 3)
    work = count_work(lambda: F.conv2d(images, kernel, padding=1).square().sum())
    num_images, num_kernel, num_out = 2 * 3 * 8 * 8, 4 * 3 * 3 * 3, 2 * 4 * 8 * 8
    macs = num_out * 3 * 3 * 3
    forward, backward = find(work, "convolution"), find(work, "convolution_backward")
    assert (forward.flops, forward.bytes_moved) == (2 * macs, 4 * (num_images + num_kernel + num_out))
    # reads the output's gradient, images and kernel; writes the kernel's gradient only: images need none
    assert (backward.flops, backward.bytes_moved) == (2 * macs, 4 * (num_out + num_images + 2 * num_kernel))
    assert forward.input_shapes == ((2, 3, 8, 8), (4, 3, 3, 3))
    assert work.flops == 4 * macs
    assert work.saved_tensor_bytes == (4 * num_out, 4 * num_images)  # for square and convolution; no kernel
    assert work.parameter_bytes == 4 * num_kernel


@pytest.mark.parametrize(
    ("run", "moved"),
    [
        (lambda x, y, z: F.relu(x * 2.0), {"relu": 800}),
        (lambda x, y, z: F.relu(x * 2.0, inplace=True), {"relu_": 800}),
        (lambda x, y, z: x + torch.mul(y, y), {"mul": 800, "add": 1200}),  # each distinct tensor is read once
        (lambda x, y, z: x - z.expand(10, 10), {"sub": 840}),  # an expanded tensor counts its memory once
        # Factories and copies do not read their target.
        (
            lambda x, y, z: x * 1.0 - torch.zeros_like(x).copy_(y).zero_(),
            {"zeros_like": 400, "copy_": 800, "zero_": 400},
        ),
        (lambda x, y, z: (x + 1.0) + 1.0 + 1.0, {"add": 2400}),  # equal calls are one operator
    ],
)
def test_count_work_bytes_moved_equal_manual_count(run: Callable[..., Tensor], moved: dict[str, int]):
    x, y, z = meta(10, 10), torch.empty(10, 10, device="meta"), meta(10)
    work = count_work(lambda: run(x, y, z).sum())
    assert {name: find(work, name).bytes_moved for name in moved} == moved


def test_count_work_views_and_empty_tensors_move_no_bytes():
    x = meta(10, 10)

    def run() -> Tensor:
        torch.empty_like(x)
        torch.empty(1000, device="meta")
        views = x.t().permute(1, 0)[2:].detach().view(-1).unsqueeze_(0)
        assert views.shape == (1, 80)
        return (x * 1.0).sum()

    names = {op.name for op in count_work(run).ops}
    assert names == {"aten.mul.Tensor", "aten.sum.default", "aten.ones_like.default"}


def test_roofline_seconds_sums_compute_and_memory_bound_operators():
    ops = [
        Op("bound by arithmetic", (), 1, flops=1000, bytes_moved=10),  # 10 s against 1 s
        Op("bound by memory", (), 2, flops=200, bytes_moved=50),  # 2 s against 5 s
        Op("only memory", (), 1, flops=0, bytes_moved=30),  # 3 s
    ]
    assert roofline_seconds(ops, peak_flops=100, bytes_per_second=10) == (10, 8)


def test_estimate_training_bytes_equals_manual_estimate():
    work = StepWork(0, 0, saved_tensor_bytes=(200, 100, 20), parameter_bytes=1000, ops=())
    assert estimate_training_bytes(work) == round(3000 + 320 + flops.HEAP_HOLES_FACTOR * 320)
    mapped = estimate_training_bytes(work, heap_block_bytes=150)  # the block of 200 is not in the heap
    assert mapped == round(3000 + 320 + flops.HEAP_HOLES_FACTOR * 120)


# Growth of the peak resident memory (MiB) over three to six steps after the model was built, in fresh processes:
# ResNet-50, fp32, channels-last, SGD momentum, 2 cores, torch 2.13, glibc 2.36, with and without GLIBC_TUNABLES.
@pytest.mark.parametrize(
    ("batch", "heap_block_bytes", "measured_mib"),
    [
        (2, math.inf, 440),
        (64, math.inf, 9027),
        (2, flops.GLIBC_HEAP_BLOCK_BYTES, 463),
        (64, flops.GLIBC_HEAP_BLOCK_BYTES, 5669),
    ],
)
def test_estimate_training_bytes_is_near_measured_memory(batch, heap_block_bytes, measured_mib):
    work = resnet50_work(batch)
    estimate = estimate_training_bytes(work, heap_block_bytes)
    growth_mib = (estimate - work.parameter_bytes) / 2**20  # the weights were allocated before
    assert 0.97 < growth_mib / measured_mib < 1.25
