"""A made-up profile: five steps of ResNet-50 on a CPU, or ten on a GPU with kernels, streams and pipes."""

import gzip
import math
import random
from pathlib import Path
from typing import Any

from made_results import make_result, write_run
from trainstone.results.profiled import (
    CoreUse,
    KernelTime,
    LaneTime,
    OperatorTime,
    Overhead,
    RooflineChart,
    StepParts,
    Timeline,
)
from trainstone.results.roofline import WorkedOp, judge_roofline
from trainstone.results.schema import Result
from trainstone.results.trace.tables import OperatorCalls

TRACE = "trace/rank0000.json.gz"
BATCH, STEP_SECONDS = 8, 1.7
# Pictures, in and out channels, kernel, calls: the convolutions of ResNet-50, roughly
LAYERS = (
    (224, 3, 64, 7, 1), (56, 64, 64, 1, 3), (56, 64, 64, 3, 3), (56, 64, 256, 1, 4), (28, 128, 128, 3, 4),
    (28, 128, 512, 1, 4), (14, 256, 256, 3, 6), (14, 256, 1024, 1, 6), (7, 512, 512, 3, 3), (7, 512, 2048, 1, 3),
)  # fmt: skip
# Share of each part of a step, in the order of StepParts
CPU_PARTS = (0.905, 0.061, 0.0, 0.004, 0.006, 0.0, 0.0, 0.021, 0.003)
GPU_PARTS = (0.612, 0.038, 0.052, 0.011, 0.031, 0.017, 0.187, 0.046, 0.006)
CUTLASS = "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16_256x128_32x3_nn_align8>(" + ", ".join(
    ["cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>"] * 28
)


def make_steps(shares: tuple[float, ...], count: int, seconds: float) -> list[StepParts]:
    """Steps that scatter by a few percent; the nine parts add up."""
    draw = random.Random(7)
    steps = []
    for number in range(count):
        parts = [share * seconds * math.exp(draw.gauss(0, 0.03)) for share in shares]
        compute, optimizer, communication, copy, wait, *_ = parts
        whole = sum(parts)
        running = compute + optimizer + communication
        steps.append(
            StepParts(
                step=10 + number, seconds=whole, compute_seconds=compute, optimizer_seconds=optimizer,
                communication_seconds=communication, copy_seconds=copy, data_wait_seconds=wait,
                synchronisation_seconds=parts[5], launch_seconds=parts[6], host_seconds=parts[7],
                unaccounted_seconds=parts[8], busy_seconds=running + copy, kernel_running_seconds=running,
                kernel_seconds=1.04 * running, communication_total_seconds=3.4 * communication,
                overlap_seconds=2.4 * communication, copy_total_seconds=1.5 * copy, data_wait_total_seconds=1.2 * wait,
                optimizer_total_seconds=1.3 * optimizer,
            )
        )  # fmt: skip
    return steps


def make_work() -> list[WorkedOp]:
    """What a step does, as measure/flops.py counts it: convolutions, batch norm, ReLU, the optimiser."""
    ops = []
    for size, inputs, outputs, kernel, count in LAYERS:
        picture, weight = (BATCH, inputs, size, size), (outputs, inputs, kernel, kernel)
        out = (BATCH, outputs, size, size)
        flops = 2.0 * count * math.prod(out) * inputs * kernel**2
        moved = 4.0 * count * (math.prod(picture) + math.prod(weight) + math.prod(out))
        channels = (outputs,)
        ops += [
            WorkedOp("aten.convolution.default", (picture, weight), count, flops, moved),
            WorkedOp("aten.convolution_backward.default", (out, picture, weight), count, 2 * flops, 2 * moved),
            WorkedOp("aten.native_batch_norm.default", (out, *[channels] * 4), count, 0, 8.0 * count * math.prod(out)),
            WorkedOp("aten.relu_.default", (out,), count, 0, 8.0 * count * math.prod(out)),
        ]
    lists = tuple((outputs, inputs, kernel, kernel) for _, inputs, outputs, kernel, _ in LAYERS)
    ops.append(WorkedOp("aten._fused_sgd_.default", (*lists, ()), 1, 0, 20.0 * 25_557_032))
    ops.append(WorkedOp("aten.addmm.default", ((1000,), (BATCH, 2048), (2048, 1000)), 1, 3.3e7, 8.3e6))
    return ops


REACHED = {
    "convolution": 0.74,
    "convolution_backward": 0.58,
    "native_batch_norm": 0.86,
    "relu_": 1.42,
    "_fused_sgd_": 0.7,
}


def make_calls(steps: int, peak_flops: float, bandwidth: float, *, on_device: bool) -> list[OperatorCalls]:
    """What a trace would say of that work on a machine that reaches a part of its peaks."""
    draw, calls = random.Random(8), []
    for op in make_work():
        bare = op.name.split(".")[1]
        least = max(op.flops / peak_flops, op.bytes_moved / bandwidth)
        seconds = steps * least / REACHED.get(bare, 0.4) * math.exp(draw.gauss(0, 0.2))
        dims = ((), (), ()) if bare.startswith("_fused") else (*op.shapes, (), ())
        host = 0.3 * seconds if on_device else seconds
        calls.append(OperatorCalls(f"aten::{bare}", dims, steps * op.count, host, seconds if on_device else None))
    return calls


def make_roofline(steps: int, peak_flops: float, bandwidth: float, *, on_device: bool) -> tuple[RooflineChart, float]:
    """Return the roofline, and a step's length in which the judged operators take 94 %."""
    calls = make_calls(steps, peak_flops, bandwidth, on_device=on_device)
    spent = sum(call.device_seconds or call.host_seconds for call in calls) / steps
    step_seconds = spent / (0.68 if on_device else 0.94)
    judged = judge_roofline(
        make_work(), calls, steps=steps, step_seconds=step_seconds, peak_flops=peak_flops, peak_source="measured",
        peak_bytes_per_second=bandwidth,
    )  # fmt: skip
    assert judged is not None
    return judged, step_seconds


def make_operators(whole: float, *, on_device: bool) -> list[OperatorTime]:
    """Names as a trace has them."""
    shares = {
        "aten::convolution_backward": 0.47, "aten::mkldnn_convolution": 0.23, "aten::native_batch_norm_backward": 0.07,
        "aten::_fused_sgd_": 0.058, "aten::native_batch_norm": 0.05, "aten::threshold_backward": 0.031,
        "aten::clamp_min_": 0.022, "aten::add_": 0.015, "aten::copy_": 0.007, "aten::max_pool2d_with_indices": 0.005,
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad": 0.003, "aten::empty": 0.002,
        "aten::addmm": 0.0012,
    }  # fmt: skip
    return [
        OperatorTime(
            name=name, calls=265 + 10 * place, self_seconds=share * whole * (0.2 if on_device else 1),
            total_seconds=1.1 * share * whole, share=share,
            device_seconds=share * whole if on_device and "autograd" not in name else None,
        )
        for place, (name, share) in enumerate(shares.items())
    ]  # fmt: skip


def make_kernels(whole: float) -> list[KernelTime]:
    """One of them has a name of 2,000 characters."""
    shares = {
        CUTLASS: 0.31, "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32": 0.17,
        "void at::native::batch_norm_backward_elemt_channels_last_kernel<4, float, float, c10::Half>": 0.08,
        "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": 0.17,
        "Memcpy HtoD (Pinned -> Device)": 0.016,
    }  # fmt: skip
    kinds = {"nccl": "communication", "Memc": "copy"}
    return [
        KernelTime(name=name, kind=kinds.get(name[:4], "compute"), calls=530, seconds=share * whole, share=share)
        for name, share in shares.items()
    ]


def make_timeline(kind: str = "cpu", **changes: Any) -> Timeline:
    """What the profile of a CPU (`cpu`) or of a GPU (`cuda`) says."""
    on_device, count = kind != "cpu", 5 if kind == "cpu" else 10
    peaks = (19.5e12, 1.4e12) if on_device else (1.9e11, 1.7e10)
    roofline, seconds = make_roofline(count, *peaks, on_device=on_device)
    steps = make_steps(GPU_PARTS if on_device else CPU_PARTS, count, seconds)
    whole = sum(step.seconds for step in steps)
    lanes = [LaneTime(name="python3 4711", kind="thread", events=41_210, busy_seconds=0.96 * whole)]
    lanes += [LaneTime(name="pt_autograd_0", kind="thread", events=22_018, busy_seconds=0.55 * whole)]
    lanes += [
        LaneTime(name=f"stream {n}", kind="stream", events=9000, busy_seconds=whole / n) for n in (7, 20)
    ] * on_device
    gaps = (
        "The device is idle for 29 % of the step: 19 % launch-bound (the host is not fast enough in giving out work: "
        "larger batches, engine.compile or engine.cuda_graphs help), 5 % Python, 3 % waiting for data.",
        "71 % of communication is hidden behind compute.",
    )
    values: dict[str, Any] = {
        "trace": TRACE,
        "device": kind,
        "rank": 0 if on_device else None,
        "steps": steps,
        "compute_utilisation": sum(step.kernel_running_seconds for step in steps) / whole,
        "accounted_share": 1 - sum(step.unaccounted_seconds for step in steps) / whole,
        "cores_used": 1.12 if on_device else 1.94,
        "operators": make_operators(whole, on_device=on_device),
        "kernels": make_kernels(whole) if on_device else [],
        "lanes": lanes,
        "told": list(gaps) if on_device else ["Operators run for 96.6 % of the step; 2.1 % is Python between them."],
        "overhead": Overhead(
            plain_step_seconds=0.963 * seconds, profiled_step_seconds=seconds, plain_steps=40, profiled_steps=count,
            share=0.038, noise=0.012,
        ),
        "roofline": roofline,
        "cores": CoreUse(
            pipes_percent={"fma": 17.51, "fp16": 4.02, "tensor": 38.6, "sfu": 1.3}, kernels=1812, processes=1,
            cycles=2.31e9, file="cores.csv",
        ) if on_device else None,
        "events": 412_087,
    }  # fmt: skip
    return Timeline(**(values | changes))


def make_profile(run_id: str = "profile0", timeline: Timeline | None = None, **changes: Any) -> Result:
    """A profile of resnet50's recipe, on a CPU unless told otherwise."""
    timeline = timeline or make_timeline()
    running, device = ("operators", "Intel Xeon") if timeline.device == "cpu" else ("kernels", "NVIDIA A100")
    given = {
        "kind": "profile",
        "timeline": timeline,
        "command": "trainstone profile",
        "device": device,
        "verdict": f"ResNet-50: {running} run for {100 * timeline.compute_utilisation:.1f} % of the step",
    }
    return make_result(run_id, BATCH / STEP_SECONDS, **(given | changes))


def write_profile(folder: Path, result: Result | None = None) -> Path:
    """Write it as a run folder with a trace in it."""
    path = write_run(folder, result or make_profile())
    (path / "trace").mkdir()
    (path / TRACE).write_bytes(gzip.compress(b'{"traceEvents": []}', mtime=0))
    return path
