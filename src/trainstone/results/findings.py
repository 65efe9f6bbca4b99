"""Findings: doubts about a number and causes of one, judged by pure functions from what was measured.

Every code stands in CODES with severity and hint, and in docs/troubleshooting.md with cause and cure (a test holds it).
"""

from typing import NamedTuple

from trainstone.machine.noise import Noise
from trainstone.results.schema import run as schema
from trainstone.units import format_count, format_percent, format_rate


class FindingCode(NamedTuple):
    hint: str
    severity: schema.Severity = "warning"


CODES = {
    "few-steps": FindingCode("measure longer (--seconds) or with a smaller batch (--set train.batch_size=N)"),
    "not-steady": FindingCode("measure longer; if the speed falls, look for heat or a power limit (trainstone doctor)"),
    "wide-interval": FindingCode(
        "measure longer (--seconds), or on a quieter machine; --runs 5 shows the spread between runs"
    ),
    "outliers": FindingCode(
        "step_seconds.outlier_steps in result.json names them; regular ones come from a timer, others from a neighbour",
        "info",
    ),
    "noisy-machine": FindingCode(
        "stop other work, or measure again later; trainstone doctor --aa tells the noise floor"
    ),
    "throttled": FindingCode("improve cooling or raise the power limit, then measure again"),
    "data-bound": FindingCode("the device waits for its batches: feed it faster before you judge it"),
    "images-skipped": FindingCode(
        "trainstone data verify names every damaged image; trainstone data convert --on-bad skip makes a clean copy"
    ),
    "peak-exceeded": FindingCode("the peak was disturbed while it was measured; run again on a quieter machine"),
    "page-faults": FindingCode(
        "leave engine.keep_memory on (GLIBC_TUNABLES); other allocators can be set with LD_PRELOAD", "info"
    ),
    "threads-exceed-cores": FindingCode("set engine.threads to the physical cores of this process, or auto"),
    "precision-chosen": FindingCode("choose another with --set train.precision=fp32|tf32|bf16|fp16", "info"),
    "precision-slow": FindingCode("use --set train.precision=auto"),
    "batch-fitted": FindingCode("fix it with --set train.batch_size=N to compare with other machines", "info"),
    "rate-derived": FindingCode(
        "the head of the recipe states the rule; optimizer.rate_for=run keeps a rate as it is", "info"
    ),
    "recipe-note": FindingCode("docs/from has a page on each original", "info"),
    "engine-adapted": FindingCode("--strict refuses instead of adapting", "info"),
    "learning-rate": FindingCode(
        "set optimizer.learning_rate for this batch, or optimizer.rate_for to let it follow the batch"
    ),
    "not-evaluated": FindingCode(
        "class folders: train/ and val/; trainstone eval RUN --data DIR judges its weights", "info"
    ),
    "not-pretrained": FindingCode(
        "trainstone weights convert resnet34.pth r34.safetensors; --set model.pretrained=r34.safetensors", "info"
    ),
    "not-closed": FindingCode("leave mlperf.division on auto, or take what resnet50-mlperf or ssd300-mlperf has"),
    "caches-kept": FindingCode("run it as root, or clear them before: sync; echo 3 > /proc/sys/vm/drop_caches"),
    "resumed": FindingCode(
        "steps after the checkpoint were done again; the run's clock stood still in between, mlperf.log's did not",
        "info",
    ),
    "checkpoint-damaged": FindingCode("look after the disk; checkpoint.keep says how many are kept"),
    "profiled": FindingCode("its speed is not comparable: trainstone bench measures that", "info"),
    "not-measured": FindingCode("trainstone doctor says what would be needed", "info"),
    "interrupted": FindingCode("run it again for the full time: trainstone bench RUN/config.toml"),
    "killed": FindingCode(
        "run it again: trainstone bench RUN/config.toml; dmesg tells whether memory ran out", "error"
    ),
    "damaged-file": FindingCode("the file was changed or cut after the run; the rest of the folder is shown"),
    "out-of-memory": FindingCode("take a smaller train.batch_size, or auto", "error"),
    "run-failed": FindingCode("see log.txt in the run folder", "error"),
    "rank-failed": FindingCode("launch/ in the run folder has what the ranks and their engine said", "error"),
    "child-failed": FindingCode("see the folder of that run under points/", "error"),
    "profile-failed": FindingCode("the speeds stand; see the folder of that run under points/"),
}

WIDE_HALF_WIDTH = 0.05
DATA_BOUND_SHARE = 0.10
MANY_OUTLIERS_SHARE = 0.02
# ResNet-50 at batch 2 touches some 300 MB a step; a tenth of it faulted anew (in 4 KiB pages) is worth saying.
MANY_PAGE_FAULTS = 8000


def finding(
    code: str, message: str, *, hint: str | None = None, severity: schema.Severity | None = None
) -> schema.Finding:
    known = CODES[code]
    return schema.Finding(code=code, severity=severity or known.severity, message=message, hint=hint or known.hint)


def check_throughput(throughput: schema.Throughput, steps: schema.StepSeconds) -> list[schema.Finding]:
    findings = []
    if throughput.half_width is None:
        findings.append(finding("few-steps", f"no interval, {throughput.ci_covers}"))
    elif throughput.half_width > WIDE_HALF_WIDTH:
        findings.append(finding("wide-interval", f"the interval is ± {format_percent(throughput.half_width)}"))
    if not throughput.steady and throughput.trend_percent is not None:  # without a trend: too few to judge
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
        findings.append(finding("peak-exceeded", f"the run reached {percent} of the measured peak, which cannot be"))
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
        findings.append(finding("page-faults", f"{faults:,.0f} page faults a step {setting} ({memory.allocator})"))
    return findings


def is_data_bound(share_of_synthetic: float, data_share: float) -> bool:
    """Say whether data costs more than a tenth: by waiting, or by work on cores that train.

    By median steps: a burst of somebody else's work in one of the two would move its mean speed alone.
    """
    return data_share > DATA_BOUND_SHARE or share_of_synthetic < 1 - DATA_BOUND_SHARE


def describe_data_bound(loader: schema.LoaderResult, data_share: float) -> str:
    share = loader.share_of_synthetic
    if share is None:
        return ""
    against = f"{format_percent(share, 0)} of the speed with synthetic data (median steps)"
    waits = f"the device waits {format_percent(data_share, 0)} of the time"
    alone = f"the loader alone gives {format_rate(loader.images_per_second)}"
    return f"{'data-bound' if loader.data_bound else 'not data-bound'}: {against}; {waits}; {alone}"


def check_loader(loader: schema.LoaderResult, data_share: float) -> list[schema.Finding]:
    findings = []
    if loader.data_bound:
        stages = loader.stage_seconds_per_image
        hint = "more loader.threads, or smaller stored images (data convert --resize 256)"
        hint += "; trainstone data bench shows both"
        if max(stages, key=lambda name: stages[name], default="decode") == "read":
            hint = "reading takes longest: a local disk, loader.cache=files, or records (trainstone data convert)"
            hint += " will help"
        findings.append(finding("data-bound", describe_data_bound(loader, data_share), hint=hint))
    if loader.skipped:
        images = format_count(loader.skipped_images, "damaged image")
        times = format_count(loader.skipped, "time")
        message = f"{images} left out, {times} in all; others were taken in their place; log.txt names them"
        findings.append(finding("images-skipped", message))
    return findings
