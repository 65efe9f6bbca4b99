"""A profile in sentences: what the gaps come from and what helps."""

from trainstone.results.profiled import StepParts
from trainstone.results.trace.view import View, is_pass
from trainstone.units import format_count, format_percent, format_share

MIN_SHARE = 0.0005
"""Less is not worth a word."""
IDLE = {
    "launch": "launch-bound (the host is not fast enough in giving out work: larger batches, engine.compile or "
    "engine.cuda_graphs help)",
    "data_wait": "waiting for data",
    "synchronisation": "synchronising (the host waits for the device before it gives out more)",
    "host": "Python between operators",
    "unaccounted": "not accounted for",
}


def tell_time(view: View, steps: list[StepParts]) -> list[str]:
    """Return what the steps' time says, with numbers."""
    told = [_tell_processor(steps) if view.device is None else _tell_device(steps)]
    told += _tell_communication(steps)
    if not view.marked:
        told.append("The trace has no marks of steps (ProfilerStep#), so all of it counts as one.")
    if not len(view.marks(is_pass).starts) and _share(steps, "unaccounted") > MIN_SHARE:
        told.append(
            "It has no marks of forward and backward: Python between operators is in what is not accounted for."
        )
    if len(view.devices) > 1:
        others = format_count(len(view.devices) - 1, "other device")
        told.append(f"Judged is device {view.device}, which works most; {others} in the trace, too.")
    if view.trace.num_unpaired:
        told.append(f"{format_count(view.trace.num_unpaired, 'event')} without beginning or end left out.")
    return told


def _tell_device(steps: list[StepParts]) -> str:
    idle = 1 - _share(steps, "busy")
    causes = [
        f"{format_share(share)} {words}" for part, words in IDLE.items() if (share := _share(steps, part)) > MIN_SHARE
    ]
    if idle <= MIN_SHARE or not causes:
        return f"The device is busy for {format_percent(1 - idle)} of the step."
    return f"The device is idle for {format_share(idle)} of the step: {', '.join(causes)}."


def _tell_processor(steps: list[StepParts]) -> str:
    parts = [f"Operators run for {format_percent(_share(steps, 'kernel_running'))} of the step"]
    words = {
        "host": "is Python between them",
        "data_wait": "is waiting for data",
        "unaccounted": "is not accounted for",
    }
    parts += [
        f"{format_share(share)} {told}" for part, told in words.items() if (share := _share(steps, part)) > MIN_SHARE
    ]
    return "; ".join(parts) + "."


def _tell_communication(steps: list[StepParts]) -> list[str]:
    total = _share(steps, "communication_total")
    if total <= MIN_SHARE:
        return []
    hidden = _share(steps, "overlap") / total
    exposed = _share(steps, "communication")
    rest = f"; the rest takes {format_share(exposed)} of the step" if exposed > MIN_SHARE else ""
    return [f"{format_percent(hidden, 0)} of communication is hidden behind compute{rest}."]


def _share(steps: list[StepParts], part: str) -> float:
    taken = sum(getattr(step, f"{part}_seconds") for step in steps)
    return float(taken / sum(step.seconds for step in steps))
