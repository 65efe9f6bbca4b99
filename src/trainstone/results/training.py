"""Describe a training run: its quality, where its time went, its evaluations. Pure."""

from trainstone.results.findings import check_throughput
from trainstone.results.schema.quality import Evaluation, Quality, Repeated
from trainstone.results.schema.run import FINISHED, Finding, Phases, Status, StepSeconds, Throughput
from trainstone.stats.downsample import choose_evenly
from trainstone.units import format_percent, format_seconds

METRIC_NAMES = {
    **{"top1": "top-1", "top5": "top-5", "map": "mAP", "map50": "mAP@0.5", "map75": "mAP@0.75"},
    **{f"map_{size}": f"mAP {size}" for size in ("small", "medium", "large")},
    **{f"recall_{most}": f"recall@{most}" for most in (1, 10, 100)},
    **{f"recall_{size}": f"recall {size}" for size in ("small", "medium", "large")},
}
SHARES = ("top1", "top5")  # metrics shown in percent: shares of the images
DRAWN_TOGETHER = (SHARES, ("map", "map50"))  # metrics on one scale, drawn in one chart
SENTENCE_METRICS = ("top1", "top5", "map", "map50", "map75")  # metrics that a sentence names
MIN_SHARE = 0.005  # smaller parts of the time are not named in a sentence
MAX_DIGITS = 4


def name_metric(metric: str) -> str:
    return METRIC_NAMES.get(metric, metric)


def format_metric(metric: str, value: float, target: float | None = None) -> str:
    """Format 92.4 % for a share, 0.231 for other metrics; never rounded across the target."""
    scale, digits, unit = (100, 1, " %") if metric in SHARES else (1, 3, "")
    while target is not None and digits < MAX_DIGITS:
        if (round(scale * value, digits) >= scale * target) == (value >= target):
            break
        digits += 1
    return f"{scale * value:.{digits}f}{unit}"


def describe_metric(metric: str, value: float, target: float | None = None) -> str:
    return f"{format_metric(metric, value, target)} {name_metric(metric)}"


def format_target(metric: str, target: float) -> str:
    return f"{100 * target:.6g} %" if metric in SHARES else f"{target:.6g}"


def format_epochs(epochs: float) -> str:
    number = format_epoch(epochs)
    return f"{number} epoch{'' if number == '1' else 's'}"


def format_epoch(epoch: float) -> str:
    return f"{round(epoch, 1):,.10g}" if epoch >= 1 else f"{epoch:.2g}"


def split_time(phases: Phases, total_seconds: float) -> dict[str, float]:
    """Return the seconds of training, data wait, evaluation, checkpoints and the rest; none is negative.

    They sum to the total, or to more if the measured parts exceed it.
    """
    steps, waiting = phases.train_seconds or 0.0, phases.data_wait_seconds or 0.0
    parts = {
        "training": max(0.0, steps - waiting),
        "data wait": max(0.0, min(waiting, steps)),
        "evaluation": max(0.0, phases.eval_seconds or 0.0),
        "checkpoints": max(0.0, phases.checkpoint_seconds or 0.0),
    }
    return parts | {"other": max(0.0, total_seconds - sum(parts.values()))}


def check_speed(throughput: Throughput, steps: StepSeconds) -> list[Finding]:
    """Return findings about the speed as info: training is not meant to measure it."""
    hint = "measure the speed: trainstone bench RUN/config.toml"
    warnings = check_throughput(throughput, steps)
    return [warning.model_copy(update={"severity": "info", "hint": hint}) for warning in warnings]


def scale_throughput(one: Throughput, ranks: int) -> Throughput:
    ci95 = (one.ci95[0] * ranks, one.ci95[1] * ranks) if one.ci95 else None
    return one.model_copy(update={"images_per_second": one.images_per_second * ranks, "ci95": ci95})


def total_time(quality: Quality, phases: Phases) -> float:
    """Return the time to the target; without one, the elapsed time at the last evaluation, or the sum of all parts."""
    if quality.seconds_to_target is not None:
        return quality.seconds_to_target
    last = quality.history[-1].seconds if quality.history else 0.0
    return max(last, sum(split_time(phases, 0.0).values()))


def describe_split(phases: Phases, total_seconds: float) -> str:
    parts = split_time(phases, total_seconds)
    total = sum(parts.values())
    if total <= 0:
        return ""
    shares = {name: seconds / total for name, seconds in parts.items()}
    return ", ".join(f"{name} {format_percent(share, 0)}" for name, share in shares.items() if share >= MIN_SHARE)


def list_facts(quality: Quality, status: Status) -> list[tuple[str, str]]:
    facts = []
    if quality.history and quality.value is not None:
        best = format_metric(quality.metric, quality.value, quality.target)
        facts.append((name_metric(quality.metric) + (", best" if status != "target_reached" else ""), best))
    if quality.target is not None:
        reached = {"target_reached": "reached", "target_missed": "not reached"}.get(status, "not reached yet")
        facts.append((f"target {format_target(quality.metric, quality.target)}", reached))
    if quality.seconds_to_target is not None:
        facts.append(("time to target", format_seconds(quality.seconds_to_target)))
    facts.append(("epochs", format_epoch(quality.epochs)))
    return facts


def is_complete(repeated: Repeated) -> bool:
    return sum(run.status in FINISHED for run in repeated.runs) == repeated.num_runs


def find_best(quality: Quality) -> int | None:
    """Return the index of the best evaluation, the first of equal ones; None without any."""
    values = [found.metrics.get(quality.metric) for found in quality.history]
    known = [value for value in values if value is not None]
    return values.index(max(known)) if known else None


def find_reached(quality: Quality) -> int | None:
    if quality.target is None:
        return None
    values = (found.metrics.get(quality.metric) for found in quality.history)
    return next((index for index, value in enumerate(values) if value is not None and value >= quality.target), None)


def thin_history(quality: Quality, most: int) -> list[Evaluation]:
    """Return at most `most` evaluations, evenly spaced, with the first, best, last and the one at the target."""
    marked = [index for index in (find_best(quality), find_reached(quality)) if index is not None]
    return [quality.history[index] for index in choose_evenly(len(quality.history), most, marked)]
