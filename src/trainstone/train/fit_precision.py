"""Which precision a run takes on this device: the recipe's, or the fastest by a short trial."""

import torch

from trainstone.config.schema import Config, change_section
from trainstone.errors import MachineError
from trainstone.measure.devices import candidate_precisions
from trainstone.results.checks import finding
from trainstone.results.schema import Finding
from trainstone.train.trial import Trial, fastest, try_precisions


def fit_precision(config: Config, device: torch.device, threads: int) -> tuple[Config, list[Finding]]:
    """auto: the fastest by trial. A precision asked for is tried too: it may crash here, or crawl."""
    asked = config.train.precision
    if asked == "fp32":
        return config, []
    candidates = candidate_precisions(device) if asked == "auto" else ["fp32", asked]
    if candidates == ["fp32"]:
        message = "took fp32: this CPU has no 16-bit arithmetic (neither avx512_bf16 nor AMX)"
        return change_section(config, "train", precision="fp32"), [finding("precision-chosen", message)]
    trials = try_precisions(str(device), candidates, threads)
    if asked == "auto":
        precision = fastest(trials)
        message = f"took {precision}: {_tell_trials(trials, precision)}"
        return change_section(config, "train", precision=precision), [finding("precision-chosen", message)]
    told = _tell_trouble(*trials)
    if told and "precision" in config.train.adapt:
        return adapt_precision(config, device, trials, told, threads)
    if trials[1].seconds is None:
        raise MachineError(told, hint="--set train.precision=auto")
    return config, [finding("precision-slow", told)] if told else []


def adapt_precision(
    config: Config, device: torch.device, trials: list[Trial], trouble: str, threads: int
) -> tuple[Config, list[Finding]]:
    """Take the fastest precision where the recipe's is none for this device, and leaves the choice."""
    others = [precision for precision in candidate_precisions(device) if precision not in ("fp32", trials[1].precision)]
    # Beside fp32 once more: a disturbance then slows both.
    precision = fastest(try_precisions(str(device), ["fp32", *others], threads) if others else trials)
    config = change_section(config, "train", precision=precision)
    return config, [finding("engine-adapted", f"{trouble}: took {precision}")]


def _tell_trouble(base: Trial, trial: Trial) -> str:
    """What is wrong with a precision; nothing where it is at least as fast as fp32."""
    if trial.seconds is None:
        return f"{trial.precision} does not run on this device: {trial.failure}"
    if base.seconds is not None and trial.seconds > base.seconds:
        return f"{trial.precision} takes {trial.seconds / base.seconds:.1f} times as long as fp32 on this device"
    return ""


def _tell_trials(trials: list[Trial], chosen: str) -> str:
    base = next(trial.seconds for trial in trials if trial.precision == chosen)
    told = []
    for trial in trials:
        if trial.precision == chosen:
            continue
        if trial.seconds is None:
            told.append(f"{trial.precision} fails here ({trial.failure})")
        elif base:
            told.append(f"{trial.precision} takes {trial.seconds / base:.2f} times as long")
    return ", ".join(told) + " (short trial)"
