"""Overhead of measuring: trainstone's own CPU time per step, and its loop compared with a hand-written one.

    python benchmarks/overhead.py [--pairs 600]

1. Steps that only sleep 100 ms, with all of bench's measuring (recording, statistics, progress line, telemetry): CPU
   time beyond the same sleeps in a plain loop, from the slope between a short and a long run.
2. ResNet-18 at 128 pixels, batch 4 (about 100 ms on two cores): wall time of blocks of two steps of a plain loop and
   of trainstone's, A B B A ... Telemetry runs during both; its cost is in part 1.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from interleave import palindromes, ratio
from torch import nn

from trainstone.cli.render.progress import ProgressLine
from trainstone.config.load import load_config
from trainstone.config.schema import MeasureConfig
from trainstone.engine.fit import Fitted
from trainstone.engine.optim import LossScale
from trainstone.engine.task import Task, build_task
from trainstone.flows.bench.run import measure_steps
from trainstone.flows.lifecycle import lifecycle
from trainstone.flows.observation import observe, open_recorder
from trainstone.machine.cpus import available_cores
from trainstone.machine.signals import StopSignals
from trainstone.measure.flops import StepWork
from trainstone.results.progress import Progress
from trainstone.results.run_folder import create_run

CPU = torch.device("cpu")
STEP_SECONDS = 0.1
MAX_CPU_SHARE = 0.005
MAX_RATIO = 1.015


@contextmanager
def measured_steps(task: Task) -> Iterator[Iterator[Progress]]:
    """Yield an iterator over bench's steps with all of its measuring, except the progress line."""
    measure = MeasureConfig(seconds=1e6, half_width=1e-9)
    config = load_config("resnet50", settings=["device=cpu"])
    fitted = Fitted(config, CPU, StepWork(0, 0, (), 0, ()), ())
    with tempfile.TemporaryDirectory() as folder, StopSignals() as signals:
        run = create_run(Path(folder), "bench", config, "benchmarks/overhead.py")
        with lifecycle(config, run, signals) as life:
            for _ in life.join():
                pass
            with open_recorder(life, fitted) as recorder, observe(life, fitted, recorder.current_step) as observed:
                yield measure_steps(task, measure, recorder, life, observed.clock_start, ())


def run_ours(task: Task, num_steps: int) -> None:
    """Run steps like bench, with its progress line."""
    with measured_steps(task) as steps, ProgressLine(quiet=False) as line:
        for progress in itertools.islice(steps, num_steps):
            line.show(progress)


def make_sleeping_task() -> Task:
    """Return a task whose step takes 100 ms and no CPU."""
    parameter = nn.Parameter(torch.zeros(1))

    class Nothing(LossScale):
        def backward(self, _loss: torch.Tensor) -> None:
            time.sleep(STEP_SECONDS)

        def step(self, _optimizer: torch.optim.Optimizer) -> None:
            pass

    return Task(
        device=CPU,
        model=nn.Identity(),
        plain=nn.Identity(),
        loss=lambda _model, _batch: parameter.detach().sum(),
        optimizer=torch.optim.SGD([parameter], lr=0.1),
        rate=lambda _step: 0.1,
        scale=Nothing(CPU, "fp32", "dynamic"),
        autocast=nullcontext,
        batches=itertools.repeat((parameter,)),
        loader=None,
        images_per_step=4,
    )


def cpu_seconds(work: Callable[[], None]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure_cpu_time(short: int, long: int) -> float:
    """Return the CPU seconds per step beyond a plain loop of the same sleeps; set-up cancels out."""
    task = make_sleeping_task()
    run_ours(task, 2)  # work done once per process, mostly imports, is not part of a step

    def run_bare(num_steps: int) -> None:
        for _ in range(num_steps):
            task.loss(task.model, next(task.batches)).item()
            time.sleep(STEP_SECONDS)
            task.optimizer.zero_grad(set_to_none=True)

    def slope(run: Callable[[int], None]) -> float:
        return (cpu_seconds(lambda: run(long)) - cpu_seconds(lambda: run(short))) / (long - short)

    return slope(lambda num_steps: run_ours(task, num_steps)) - slope(run_bare)


def compare_loops(pairs: int, steps_per_block: int) -> tuple[float, float, float]:
    """Return the wall time of trainstone's loop / that of a hand-written one, with its interval."""
    settings = ["model.depth=18", "data.image_size=128", "train.batch_size=4", "train.precision=fp32"]
    config = load_config("resnet50", settings=settings)
    task = build_task(config, CPU)
    seconds: dict[str, list[float]] = {"bare": [], "ours": []}
    with measured_steps(build_task(config, CPU)) as steps, ProgressLine(quiet=False) as line:
        for name in palindromes(["bare", "ours"], pairs + 3):
            begin = time.perf_counter()
            for _ in range(steps_per_block):
                if name == "ours":
                    line.show(next(steps))
                else:
                    task.loss(task.model, next(task.batches)).backward()
                    task.optimizer.step()
                    task.optimizer.zero_grad(set_to_none=True)
            seconds[name].append(time.perf_counter() - begin)
    print(f"hand-written: {min(seconds['bare']) / steps_per_block * 1e3:.1f} ms per step at best", file=sys.stderr)
    return ratio(seconds["ours"][3:], seconds["bare"][3:])  # the first three pairs are warm-up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=600, help="Pairs of blocks in part 2.")
    parser.add_argument("--sleeps", type=int, default=300, help="Steps of the long run in part 1.")
    options = parser.parse_args()
    torch.set_num_threads(available_cores().threads)
    own = measure_cpu_time(options.sleeps // 5, options.sleeps)
    share = own / STEP_SECONDS
    print(f"own CPU time       {own * 1e6:.0f} µs per step, {share:.3%} of 100 ms (at most {MAX_CPU_SHARE:.1%})")
    middle, low, high = compare_loops(options.pairs, steps_per_block=2)
    print(f"ours / hand-written  {middle:.4f} (95 %: {low:.4f} … {high:.4f}; upper bound at most {MAX_RATIO})")
    sys.exit(share > MAX_CPU_SHARE or high > MAX_RATIO)


if __name__ == "__main__":
    main()
