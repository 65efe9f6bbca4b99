"""Speed of trace analysis: trainstone and HolisticTraceAnalysis (HTA) on a large trace, alternating.

    python benchmarks/trace.py --hta PYTHON [--gigabytes 1] [--rounds 3] [--folder DIR]

PYTHON is the interpreter of an environment with HTA: `python -m venv hta`, then
`hta/bin/pip install HolisticTraceAnalysis 'pandas<3'` (HTA 0.5.0 with pandas 3 fails on any trace of this size).
Without it only trainstone is measured. The trace is generated, in the format of torch 2.13 for one GPU. HTA parses, and
then runs get_temporal_breakdown and get_gpu_kernel_breakdown; trainstone does the same and more (operators, calls,
parts of each step). Each run is a separate process; imports are not timed. Both must find the same kernel time.
Goals: at least 3 x HTA's rate, below 1 GB of memory. HTA needs about 6 bytes of memory per byte of trace.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

MIN_RATIO = 3.0
MAX_MEMORY_BYTES = 1e9
BASE_US = 3_981_250_860_279
LAYERS_PER_STEP = 400
OPERATORS = ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution")
KERNELS = (
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_128x128_32x5_nhwc_align8>(Params)",
    "sm80_xmma_fprop_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x64_stage4_kernel_cudnn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::launch_clamp_scalar("
    "at::TensorIteratorBase&, c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::{lambda()#1}::operator()()"
    " const::{lambda()#7}::operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2> >(int, at::detail::Array"
    "<char*, 2>)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
)
EVENT = """  {{
    "ph": "X",
    "cat": "{cat}",
    "name": "{name}",
    "pid": {pid},
    "tid": {tid},
    "ts": {ts}.000,
    "dur": {dur}.000
    ,
    "args": {{
      {args}
    }}
  }},
"""
FLOW = """  {{
    "ph": "{ph}",
    "id": {id},
    "pid": {pid},
    "tid": {tid},
    "ts": {ts}.000,
    "cat": "ac2g",
    "name": "ac2g"{more}
  }},
"""
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "made up", "totalGlobalMem": 42297524224, "computeMajor": 8, "computeMinor": 0, "numSms": 108
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "record_shapes": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
TAIL = """  {
    "ph": "i",
    "s": "g",
    "name": "Record Window End",
    "pid": "",
    "tid": "",
    "ts": %d.000
  }
  ],
  "traceName": "made.json"
}
"""


def make_layer(number: int, now: int) -> str:
    """Return four nested operators, the launch of the innermost one, its kernel, and the flow events between them."""
    size, channels = 7 << number % 4, 64 << number % 5
    shapes = f"[[64, {channels}, {size}, {size}], [{channels}, {channels}, 3, 3], [], [], [], [], []]"
    strides = f"[[{channels * size * size}, 1, {channels * size}, {channels}], [{channels * 9}, 1, 3, {channels}], []]"
    parts = []
    for depth, name in enumerate(OPERATORS):
        external = number * len(OPERATORS) + depth + 10_000
        args = (
            f'"External id": {external},"Record function id": 0, "Sequence number": {number}, "Fwd thread id": 0, '
            '"Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"], "Input type": ["c10::Half", '
            f'"c10::Half", "", "ScalarList", "ScalarList", "ScalarList", "Scalar"], "Input Strides": {strides}, '
            f'"Input Dims": {shapes}, "Ev Idx": {external}'
        )
        host = {"pid": 21916, "tid": 21916}
        parts.append(EVENT.format(cat="cpu_op", name=name, ts=now + depth, dur=40 - 2 * depth, args=args, **host))
    args = f'"External id": {external}, "cbid": 211, "correlation": {number + 1}'
    parts.append(EVENT.format(cat="cuda_runtime", name="cudaLaunchKernel", ts=now + 10, dur=8, args=args, **host))
    parts.append(FLOW.format(ph="s", id=number + 1, ts=now + 10, more="", **host))
    args = (
        f'"External id": {external}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {number + 1}, '
        '"registers per thread": 128, "shared memory": 49152, "blocks per SM": 4.740741, "warps per SM": 37.925926, '
        f'"grid": [{number % 512 + 1}, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 31'
    )
    on_device = {"pid": 0, "tid": 7}
    kernel = {"name": KERNELS[number % len(KERNELS)], "ts": now + 25, "dur": 12 + number % 13}
    parts.append(EVENT.format(cat="kernel", args=args, **kernel, **on_device))
    parts.append(FLOW.format(ph="f", id=number + 1, ts=now + 25, more=',\n    "bp": "e"', **on_device))
    return "".join(parts)


def make_steps(num_bytes: int) -> Iterator[str]:
    """Yield complete steps until there are `num_bytes` bytes."""
    made = number = step = 0
    now = BASE_US
    while made < num_bytes:
        args = f'"External id": {step + 1},"Record function id": 0, "Ev Idx": {step}'
        mark = {"cat": "user_annotation", "name": f"ProfilerStep#{step + 10}", "pid": 21916, "tid": 21916}
        layers = [make_layer(number + place, now + 5 + 50 * place) for place in range(LAYERS_PER_STEP)]
        text = EVENT.format(**mark, ts=now, dur=50 * LAYERS_PER_STEP + 10, args=args) + "".join(layers)
        yield text
        made += len(text)
        number += LAYERS_PER_STEP
        now += 50 * LAYERS_PER_STEP + 20
        step += 1
    yield TAIL % now


def make_trace(path: Path, num_bytes: int) -> None:
    with path.open("w") as file:
        file.write(HEAD)
        file.writelines(make_steps(num_bytes))


def run_ours(path: Path) -> float:
    """Return the sum of the kernels in seconds."""
    from trainstone.trace.breakdown import analyse_trace

    return sum(step.kernel_seconds for step in analyse_trace(path).timeline.steps)


def run_hta(path: Path) -> float:
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)
    print(f"parsed {time.perf_counter()}", flush=True)
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
    events = analysis.t.get_trace(0)
    kernels = events[events["cat"] == analysis.t.symbol_table.get_sym_id_map()["kernel"]]
    return float(kernels["dur"].sum()) / 1e6


def serve(side: str, path: Path) -> None:
    """Child: do the work once and print time, peak memory and kernel time."""
    if side == "hta":
        import hta.trace_analysis  # noqa: F401
    else:
        sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
        import trainstone.trace.breakdown  # noqa: F401
    begin, cpu_begin = time.perf_counter(), time.process_time()
    kernel_seconds = run_hta(path) if side == "hta" else run_ours(path)
    end, cpu_seconds = time.perf_counter(), time.process_time() - cpu_begin
    status = Path("/proc/self/status").read_text()
    memory_bytes = int(status.split("VmHWM:")[1].split()[0]) * 1024
    measured = {"begin": begin, "end": end, "cpu_seconds": cpu_seconds, "memory_bytes": memory_bytes}
    measured["kernel_seconds"] = kernel_seconds
    print(f"done {json.dumps(measured)}", flush=True)


def measure(python: str, side: str, path: Path) -> dict[str, float]:
    command = [python, __file__, "--serve", side, "--trace", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    words = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("parsed ", "done ")))
    measured = json.loads(words["done"])
    measured["seconds"] = measured["end"] - measured["begin"]
    if "parsed" in words:
        measured["parse_seconds"] = float(words["parsed"]) - measured["begin"]
    return measured


def report(side: str, runs: list[dict[str, float]], num_bytes: int) -> None:
    rates = sorted(num_bytes / 1e6 / run["seconds"] for run in runs)
    memory = max(run["memory_bytes"] for run in runs)
    parse = sorted(num_bytes / 1e6 / run["parse_seconds"] for run in runs if "parse_seconds" in run)
    parsing = f", parsing only {parse[0]:.1f} to {parse[-1]:.1f} MB/s" if parse else ""
    print(f"{side:10} {rates[0]:6.1f} to {rates[-1]:6.1f} MB/s, highest memory {memory / 1e6:,.0f} MB{parsing}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3, help="Runs per side, at least 2.")
    parser.add_argument("--hta", metavar="PYTHON", help="Interpreter of an environment with HolisticTraceAnalysis.")
    parser.add_argument("--folder", type=Path, default=None, help="Working folder (default: the temporary folder).")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.trace)
        return
    from interleave import palindromes, ratio

    pythons = {"trainstone": sys.executable} | ({"hta": options.hta} if options.hta else {})
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in pythons}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "made.json"
        make_trace(path, int(options.gigabytes * 1e9))
        num_bytes = path.stat().st_size
        print(f"{num_bytes / 1e9:.2f} GB, {os.cpu_count()} cores, {options.rounds} rounds")
        for side in palindromes(list(pythons), options.rounds):
            runs[side].append(measure(pythons[side], side, path))
    for side, found in runs.items():
        report(side, found, num_bytes)
    missed = max(run["memory_bytes"] for run in runs["trainstone"]) > MAX_MEMORY_BYTES
    if options.hta:
        sums = [run["kernel_seconds"] for found in runs.values() for run in found]
        differ = max(sums) - min(sums) > 1e-9 * max(sums)
        print(f"kernel time {min(sums):.6f} to {max(sums):.6f} s: {'they differ' if differ else 'the same'}")
        for what in ("cpu_seconds", "seconds"):  # the last one counts
            middle, low, high = ratio(*([run[what] for run in runs[side]] for side in ("hta", "trainstone")))
            title = "rate" if what == "seconds" else "work (processor time)"
            print(f"trainstone / hta, {title}: {middle:.2f} (95 %: {low:.2f} to {high:.2f}), at least {MIN_RATIO}")
        missed |= differ or middle < MIN_RATIO
    sys.exit(missed)


if __name__ == "__main__":
    main()
