"""Decides what a training run does next: train, evaluate, collect scores, write a checkpoint, end.

Pure: no clock, no torch, no file. train/learn.py carries out one action, then asks for the next decision.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from trainstone.train.cadence import Cadence

Action = Literal["train", "evaluate", "collect", "checkpoint", "fail", "end"]
EndReason = Literal["target", "stop", "time", "last step"]


class Agreed(NamedTuple):
    """What the ranks have agreed on since the last steps began; 0 is no."""

    nan_step: int = 0
    """1 + the step whose loss is NaN or infinite."""
    stop: int = 0
    """A signal requests the end."""
    time_over: int = 0
    """stop.seconds have passed."""
    checkpoint: int = 0
    """checkpoint.every_seconds have passed."""


@dataclass(frozen=True)
class State:
    """What a decision depends on, the same on every rank."""

    done: int
    """Steps, of all starts."""
    has_validation: bool = True
    evaluated: bool = False
    """The model as it is now has its scores."""
    is_best: bool = False
    """And they are the best so far."""
    pending: int | None = None
    """Steps done at the evaluation whose scores are still to be collected (eval.async)."""
    reached: bool = False
    """Collected scores have reached the target."""
    saved: bool = True
    """Nothing was done since the last checkpoint or since this start."""


class Decision(NamedTuple):
    """The next action, and for the end its reason."""

    action: Action
    reason: EndReason | None = None


def decide(state: State, agreed: Agreed, cadence: Cadence) -> Decision:
    """Return the next action; call it again after each one.

    After steps, `agreed` holds what was agreed on during them. After an evaluation the ranks agree again, because it
    may have taken long or a signal may have broken it off. An evaluation that is due but was lost to a signal is made
    before the first step of the next start.
    """
    if agreed.nan_step:
        return Decision("fail" if state.pending is None else "collect")
    reason = find_end(state, agreed, cadence)
    saves = bool(agreed.checkpoint) or checkpoints_now(state, cadence)
    evaluates = bool(agreed.time_over) or (state.done > 0 and cadence.evaluates_after(state.done))
    if state.pending is not None:
        epoch_ended = cadence.whole_epochs_after(state.done) > cadence.whole_epochs_after(state.pending)
        # Nothing that comes after an evaluation is saved or evaluated before its scores are known.
        if reason or (state.pending < state.done and (saves or evaluates or epoch_ended)):
            return Decision("collect")
    has_scores = state.evaluated or state.pending == state.done
    if evaluates and state.has_validation and not (has_scores or state.reached or agreed.stop):
        return Decision("evaluate")
    if not state.saved and (reason or saves):
        return Decision("checkpoint")
    return Decision("end", reason) if reason else Decision("train")


def find_end(state: State, agreed: Agreed, cadence: Cadence) -> EndReason | None:
    """Return why the run ends now, or None; a target that was reached counts even if a signal came as well."""
    if state.reached:
        return "target"
    if agreed.stop:
        return "stop"
    if agreed.time_over:
        return "time"
    return "last step" if state.done >= cadence.last_step else None


def checkpoints_now(state: State, cadence: Cadence) -> bool:
    """Return whether a checkpoint is due by schedule, or because this model is or may turn out to be the best."""
    best = cadence.checkpoint.best and (state.is_best or state.pending == state.done)
    return best or cadence.checkpoints_after(state.done)
