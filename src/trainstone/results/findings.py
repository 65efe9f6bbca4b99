"""Findings: checks of measured numbers that warn about them or name a cause. Pure functions.

The codes, with meaning and hint, are in results/finding_codes.py.
"""

from trainstone.machine.noise import Noise
from trainstone.results.finding_codes import CODES, Severity
from trainstone.results.schema import run as schema
from trainstone.units import format_count, format_percent, format_rate

WIDE_HALF_WIDTH = 0.05
DATA_BOUND_SHARE = 0.10
MANY_OUTLIERS_SHARE = 0.02
# ResNet-50 at batch 2 touches about 300 MB per step; faulting in a tenth of it again (4 KiB pages) is worth a finding.
MANY_PAGE_FAULTS = 8000


def finding(code: str, message: str, *, hint: str | None = None, severity: Severity | None = None) -> schema.Finding:
    known = CODES[code]
    return schema.Finding(code=code, severity=severity or known.severity, message=message, hint=hint or known.hint)


def check_throughput(throughput: schema.Throughput, steps: schema.StepSeconds) -> list[schema.Finding]:
    findings = []
    if throughput.half_width is None:
        findings.append(finding("few-steps", f"no interval, {throughput.ci_covers}"))
    elif throughput.half_width > WIDE_HALF_WIDTH:
        findings.append(finding("wide-interval", f"the interval is ± {format_percent(throughput.half_width)}"))
    if not throughput.steady and throughput.trend_percent is not None:  # no trend: too few steps
        trend = f"step time changed by {throughput.trend_percent:+.1f} % over the window"
        findings.append(finding("not-steady", f"the steps never became steady; {trend}"))
    if steps.num_outliers > max(2, MANY_OUTLIERS_SHARE * throughput.num_steps):
        of_steps = f"{steps.num_outliers} of {throughput.num_steps} steady steps are outliers"
        findings.append(finding("outliers", f"{of_steps} ({steps.outlier_kind}); they are counted, not deleted"))
    return findings


def check_limits(
    utilisation: schema.Utilisation, data_share: float | None, throttled: str | None
) -> list[schema.Finding]:
    findings = []
    if data_share is not None and data_share > DATA_BOUND_SHARE:
        findings.append(finding("data-bound", f"{format_percent(data_share)} of the time the device waits for data"))
    if throttled:
        findings.append(finding("throttled", f"the device slowed itself down: {throttled}"))
    if utilisation.mfu is not None and utilisation.mfu > 1:
        percent = format_percent(utilisation.mfu, 0)
        findings.append(
            finding("peak-exceeded", f"the run reached {percent} of the measured peak, which is impossible")
        )
    return findings


def check_machine(
    noise: Noise, memory: schema.Memory, *, keep_memory: bool, threads: int, cores: int
) -> list[schema.Finding]:
    findings = []
    if noise.grade == "C":
        findings.append(finding("noisy-machine", "; ".join(noise.reasons)))
    if threads > cores:
        findings.append(finding("threads-exceed-cores", f"{threads} threads on {cores} available cores"))
    faults = memory.page_faults_per_step
    if faults is not None and faults > MANY_PAGE_FAULTS:
        setting = "although engine.keep_memory is on" if keep_memory else "with engine.keep_memory off"
        findings.append(finding("page-faults", f"{faults:,.0f} page faults per step {setting} ({memory.allocator})"))
    return findings


def is_data_bound(share_of_synthetic: float, data_share: float) -> bool:
    """Return whether data costs more than a tenth of the speed: by waiting, or by work on the cores that train.

    The share is of median steps: a burst of other processes during one of the two would move only its mean speed.
    """
    return data_share > DATA_BOUND_SHARE or share_of_synthetic < 1 - DATA_BOUND_SHARE


def describe_data_bound(loader: schema.LoaderResult, data_share: float) -> str:
    share = loader.share_of_synthetic
    if share is None:
        return ""
    against = f"{format_percent(share, 0)} of the speed with synthetic data (median steps)"
    waits = f"the device waits {format_percent(data_share, 0)} of the time"
    own = f"the loader alone delivers {format_rate(loader.images_per_second)} images/s"
    return f"{'data-bound' if loader.data_bound else 'not data-bound'}: {against}; {waits}; {own}"


def check_loader(loader: schema.LoaderResult, data_share: float) -> list[schema.Finding]:
    findings = []
    if loader.data_bound:
        stages = loader.stage_seconds_per_image
        hint = "use more loader.threads, or smaller images (trainstone data convert SET COPY --resize 256)"
        hint += "; compare them: trainstone data bench SET"
        if max(stages, key=lambda name: stages[name], default="decode") == "read":
            hint = "reading takes longest: use a local disk, --set loader.cache=files, or trainstone data convert"
        findings.append(finding("data-bound", describe_data_bound(loader, data_share), hint=hint))
    if loader.skipped:
        images = format_count(loader.skipped_images, "damaged image")
        times = format_count(loader.skipped, "time")
        message = f"{images} skipped, {times} in total, and replaced by others; log.txt names them"
        findings.append(finding("images-skipped", message))
    return findings
