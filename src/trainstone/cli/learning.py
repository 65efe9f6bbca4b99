"""Rows of the terminal summary that say what a training learned. It draws and judges nothing."""

from collections.abc import Iterator

from rich.text import Text

from trainstone.cli.sparkline import draw_sparkline
from trainstone.results.learning import (
    describe_metric,
    find_best,
    format_epoch,
    format_metric,
    format_target,
    name_metric,
    tell_split,
    total_time,
)
from trainstone.results.quality import Quality, Repeated
from trainstone.results.repeated import list_repeated_facts, tell_run
from trainstone.results.schema import Result
from trainstone.text import printable
from trainstone.units import format_seconds


def learning_rows(result: Result, width: int, encoding: str | None) -> Iterator[tuple[str, Text]]:
    """Name and text of each line; nothing for a run that was no training."""
    quality = result.quality
    if quality is None:
        return
    if result.repeated is not None:
        yield from repeated_rows(result.repeated, quality)
        return
    if quality.history and quality.value is not None:
        yield "quality", Text(printable(tell_quality(quality, quality.value)))
    if drawn := draw_evaluations(quality, width, encoding):
        yield "over epochs", drawn
    if quality.target is not None:
        yield "target", Text(printable(tell_target(quality)))
    if result.kind == "eval":
        return
    starts = f", in {quality.starts} starts" if quality.starts > 1 else ""
    yield "epochs", Text(f"{format_epoch(quality.epochs)}{starts}")
    if result.phases is not None:
        total = total_time(quality, result.phases)
        if split := tell_split(result.phases, total):
            yield "time", Text(f"{format_seconds(total)}: {split}")


def repeated_rows(repeated: Repeated, quality: Quality) -> Iterator[tuple[str, Text]]:
    """A line a run, and what they are together."""
    for run in repeated.runs:
        yield f"seed {run.seed}", Text(printable(tell_run(run, quality)))
    for name, told in list_repeated_facts(repeated, quality):
        yield name, Text(printable(told))


def tell_quality(quality: Quality, value: float) -> str:
    """Return 92.4 % top-1 after epoch 8; 99.7 % top-5, loss 0.382."""
    best = find_best(quality)
    told = describe_metric(quality.metric, value, quality.target)
    if best is None:
        return told
    found = quality.history[best]
    beside = [
        f"{name_metric(name)} {format_metric(name, value)}"
        for name, value in found.metrics.items()
        if name != quality.metric
    ]
    after = f" after epoch {format_epoch(found.epoch)}" if found.step else ""
    return "; ".join([f"{told}{after}", *([", ".join(beside)] if beside else [])])


def tell_target(quality: Quality) -> str:
    """Return 90 % top-1, reached in 2 min 27 s."""
    assert quality.target is not None
    target = f"{format_target(quality.metric, quality.target)} {name_metric(quality.metric)}"
    seconds = quality.seconds_to_target
    return f"{target}, not reached" if seconds is None else f"{target}, reached in {format_seconds(seconds)}"


def draw_evaluations(quality: Quality, width: int, encoding: str | None) -> Text | None:
    """A sparkline of the metric, with its first and its best."""
    values = [found.metrics[quality.metric] for found in quality.history if quality.metric in found.metrics]
    if len(values) < 2:
        return None
    _, bars = draw_sparkline(values, width, encoding=encoding)
    first, best = (format_metric(quality.metric, value, quality.target) for value in (values[0], max(values)))
    return Text(printable(f"{bars}  first {first}, best {best}"))
