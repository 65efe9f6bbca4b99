"""How many pictures a second this machine's devices take when nothing holds them back: a short synthetic training."""

from collections.abc import Generator

from trainstone.measure.clock import choose_timer
from trainstone.measure.devices import list_devices, name_device
from trainstone.results.feeding import Demand
from trainstone.results.progress import Progress
from trainstone.train.fit import fit_to_machine
from trainstone.train.lifecycle import Lifecycle
from trainstone.train.loop import train_steps
from trainstone.train.task import build_task, settle_classes

WARM_UP_STEPS = 3
MIN_STEPS = 5


def measure_demand(life: Lifecycle, seconds: float) -> Generator[Progress, None, Demand]:
    """Train one device for some seconds; others of its kind are taken to be as fast."""
    config = life.config
    data = config.data.model_copy(update={"source": "synthetic"})
    measure = config.measure.model_copy(update={"seconds": seconds, "iterations": None})
    changed = config.model_copy(update={"data": data, "measure": measure})
    yield Progress("fitting the recipe to this machine")
    fitted = fit_to_machine(settle_classes(changed, None), strict=False)
    task, timer = build_task(fitted.config, fitted.device), choose_timer(fitted.device)
    images, spent, begin = 0, 0.0, timer.now()
    for record in train_steps(task, timer):
        if record.step >= WARM_UP_STEPS:
            images, spent = images + record.images, spent + record.step_seconds
        yield Progress("synthetic training", record.step + 1, record.images / record.step_seconds)
        life.check_stop()
        if record.step >= WARM_UP_STEPS + MIN_STEPS and timer.now() - begin >= seconds:
            break
    train = fitted.config.train
    kind = fitted.device.type
    devices = sum(name.partition(":")[0] == kind for name in list_devices())
    return Demand(
        device=name_device(fitted.device),
        devices=devices,
        images_per_second=images / spent * devices,
        how=f"{config.name}, {train.precision}, batch {train.batch_size}, synthetic data, measured here"
        + (f" on one of {devices}" if devices > 1 else ""),
    )
