"""Speed of the CPU defaults: eager NCHW, channels-last and trainstone, same arithmetic, interleaved.

    python benchmarks/step.py [--batch 16] [--rounds 8]

Each variant runs in its own process (the allocator is configured when a process starts) and executes blocks of steps in
the order A B C C B A ...; the others are idle.
"""

import argparse
import os
import subprocess
import sys
import time

from interleave import palindromes, ratio

from trainstone.machine.allocator import add_tunables

VARIANTS = ("eager NCHW", "channels-last", "trainstone")
MIN_GAIN = 1.25


def serve(variant: str, batch: int, image_size: int) -> None:
    """Child: read a number of steps, run them, answer with the seconds they took."""
    import torch

    from trainstone.config.load import load_config
    from trainstone.engine.loop import train_steps
    from trainstone.engine.task import build_task
    from trainstone.machine.cpus import available_cores
    from trainstone.measure.clock import HostTimer

    torch.set_num_threads(available_cores().threads)
    settings = [f"train.batch_size={batch}", f"data.image_size={image_size}", "train.precision=fp32"]
    settings.append(f"engine.channels_last={str(variant != 'eager NCHW').lower()}")
    task = build_task(load_config("resnet50", settings=settings), torch.device("cpu"))
    ours = train_steps(task, HostTimer())
    # The common training loop: torch's default optimiser step, gradients set to None.
    plain = torch.optim.SGD(task.model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-5)

    def run_plain() -> None:
        loss = task.loss(task.model, next(task.batches))
        loss.backward()
        plain.step()
        plain.zero_grad()

    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            if variant == "trainstone":
                next(ours)
            else:
                run_plain()
        print(time.perf_counter() - begin, flush=True)


def start(variant: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    environment = add_tunables(os.environ) if variant == "trainstone" else dict(os.environ)
    command = [sys.executable, __file__, "--serve", variant, "--batch", str(options.batch), "--size", str(options.size)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def run_block(child: subprocess.Popen[str], num_steps: int) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{num_steps}\n")
    child.stdin.flush()
    return float(child.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224, help="Image size in pixels.")
    parser.add_argument("--rounds", type=int, default=8, help="Blocks per variant.")
    parser.add_argument("--steps", type=int, default=3, help="Steps per block.")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.batch, options.size)
        return
    children = {variant: start(variant, options) for variant in VARIANTS}
    for child in children.values():
        run_block(child, 2)
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for variant in palindromes(VARIANTS, options.rounds):
        seconds[variant].append(run_block(children[variant], options.steps))
    for child in children.values():
        child.communicate()
    print(f"ResNet-50, {options.size} pixels, batch {options.batch}, fp32; {options.rounds} blocks of {options.steps}")
    for variant, taken in seconds.items():
        rate = options.batch * options.steps * len(taken) / sum(taken)
        middle, low, high = ratio(seconds["eager NCHW"], taken)
        print(f"{variant:<14} {rate:6.2f} images/s   {middle:.3f} x eager NCHW (95 %: {low:.3f} … {high:.3f})")
    sys.exit(ratio(seconds["eager NCHW"], seconds["trainstone"])[0] < MIN_GAIN)


if __name__ == "__main__":
    main()
