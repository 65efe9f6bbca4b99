"""Is the device fed fast enough? Judged from three speeds of one run: synthetic batches, the loader alone, both."""

from trainstone.results.checks import DATA_BOUND_SHARE, finding
from trainstone.results.schema import Finding, Loader
from trainstone.units import format_count, format_percent, format_rate

NOISE = 1.05


def is_data_bound(share_of_synthetic: float, data_share: float) -> bool:
    """Say whether data costs more than a tenth: by waiting, or by work on cores that train.

    By median steps: a burst of somebody else's work in one of the two would move its mean speed alone.
    """
    return data_share > DATA_BOUND_SHARE or share_of_synthetic < 1 - DATA_BOUND_SHARE


def tell_feeding(loader: Loader, data_share: float) -> str:
    """One clause with the numbers: data-bound or not, and by how much."""
    share = loader.share_of_synthetic
    if share is None:
        return ""
    alone = f"the loader alone gives {format_rate(loader.images_per_second)}"
    waits = f"the device waits {format_percent(data_share, 0)} of the time"
    against = f"{format_percent(share, 0)} of the speed with synthetic data (median steps)"
    if share > NOISE:  # real pictures cannot make it faster
        against = "no slower than with synthetic data (the machine was not quiet)"
    if not loader.data_bound:
        return f"not data-bound: {against}; {alone}"
    if data_share > DATA_BOUND_SHARE:
        return f"data-bound: {against}; {waits}; {alone}"
    return (
        f"data-bound: {against}; it hardly waits ({format_percent(data_share, 0)}), the loader slows its steps; {alone}"
    )


def check_feeding(loader: Loader, data_share: float) -> list[Finding]:
    """What is worth a finding: data-bound, pictures left out."""
    findings = []
    if loader.data_bound:
        findings.append(finding("data-bound", tell_feeding(loader, data_share), hint=advise(loader, data_share)))
    if loader.skipped:
        pictures = format_count(loader.skipped_pictures, "damaged picture")
        times = format_count(loader.skipped, "time")
        message = f"{pictures} left out, {times} in all; others were taken in their place; log.txt names them"
        findings.append(finding("pictures-skipped", message))
    return findings


def advise(loader: Loader, data_share: float) -> str:
    """The next thing to try, by what is scarce."""
    stages = loader.stage_seconds_per_image
    slowest = max(stages, key=lambda name: stages[name]) if stages else "decode"
    if slowest == "read":
        return "reading takes longest: a local disk, loader.cache=files, or records (trainstone data convert) will help"
    if data_share <= DATA_BOUND_SHARE:
        return "training and loading share the cores: store smaller pictures (trainstone data convert --resize 256)"
    return (
        "more loader.threads, or smaller stored pictures (trainstone data convert --resize 256); "
        "trainstone data bench shows what each thread and stage gives"
    )
