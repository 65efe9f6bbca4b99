"""PyTorch's arms of benchmarks/step.py: trainstone's training loop, and plain loops with the same network and loss."""

import torch
from steps import MOMENTUM, RATE, WEIGHT_DECAY, read_job, serve
from torch.utils.flop_counter import FlopCounterMode

from trainstone import __version__
from trainstone.config.load import load_config
from trainstone.engine.loop import train_steps
from trainstone.engine.task import build_task
from trainstone.measure.clock import HostTimer


def main() -> None:
    job = read_job()
    torch.set_num_threads(job["threads"])
    settings = [
        f"train.batch_size={job['batch']}",
        f"train.precision={job['precision']}",
        f"data.image_size={job['size']}",
        f"model.num_classes={job['classes']}",
        f"engine.channels_last={str(job['arm'] != 'PyTorch NCHW').lower()}",
        *(f"optimizer.learning_rate={RATE}", "optimizer.rate_for=run"),
        *("schedule.name=constant", "schedule.warm_up_epochs=0"),
    ]
    task = build_task(load_config("resnet50", settings=settings), torch.device("cpu"))
    model, loss_of, batches = task.model, task.loss, task.batches
    with FlopCounterMode(display=False) as counter:
        loss_of(model, next(batches)).backward()
    model.zero_grad()
    flops_per_image = counter.get_total_flops() // job["batch"]
    if job["arm"] == "trainstone":
        ours = train_steps(task, HostTimer())
        serve(f"trainstone {__version__}, torch {torch.__version__}", flops_per_image, lambda: next(ours).loss)
        return

    # None: torch's default, one tensor at a time.
    fused = True if job["arm"] == "PyTorch by hand" else None
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=fused)

    def run_step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
            loss = loss_of(model, next(batches))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    serve(f"torch {torch.__version__}", flops_per_image, run_step)


main()
