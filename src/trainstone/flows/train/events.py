"""Decides what a training run does next: train, evaluate, collect scores, write a checkpoint, end.

Pure: no clock, no torch, no file. flows/train/loop.py carries out one action, then asks for the next decision.
Steps are counted as done: after the first there is 1. An epoch ends with the step that takes its last image.
"""

from dataclasses import dataclass
from typing import Literal

from trainstone.engine.distributed.stop_agreement import StopDecision
from trainstone.engine.event_schedule import EventSchedule

Action = Literal["train", "evaluate", "collect", "checkpoint", "fail", "end"]


@dataclass(frozen=True)
class DecisionInputs:
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


def decide(inputs: DecisionInputs, agreed: StopDecision, schedule: EventSchedule) -> Action:
    """Return the next action; call it again after each one.

    After steps, `agreed` holds what was agreed on during them. After an evaluation the ranks agree again, because it
    may have taken long or a signal may have broken it off. An evaluation that is due but was lost to a signal is made
    before the first step of the next start.
    """
    if agreed.nan_step:
        return "fail" if inputs.pending is None else "collect"
    # A target that was reached counts even if a signal came as well.
    ends = inputs.reached or bool(agreed.stop or agreed.time_over) or inputs.done >= schedule.last_step
    # By schedule, or because this model is or may turn out to be the best.
    best = schedule.checkpoint.best and (inputs.is_best or inputs.pending == inputs.done)
    saves = bool(agreed.checkpoint) or best or schedule.checkpoints_after(inputs.done)
    evaluates = bool(agreed.time_over) or schedule.evaluates_after(inputs.done)
    if inputs.pending is not None:
        epoch_ended = schedule.whole_epochs_after(inputs.done) > schedule.whole_epochs_after(inputs.pending)
        # Nothing that comes after an evaluation is saved or evaluated before its scores are known.
        if ends or (inputs.pending < inputs.done and (saves or evaluates or epoch_ended)):
            return "collect"
    has_scores = inputs.evaluated or inputs.pending == inputs.done
    if evaluates and inputs.has_validation and not (has_scores or inputs.reached or agreed.stop):
        return "evaluate"
    if not inputs.saved and (ends or saves):
        return "checkpoint"
    return "end" if ends else "train"
