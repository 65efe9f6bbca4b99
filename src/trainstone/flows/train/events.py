"""Decide what a training run does next: train, evaluate, collect scores, write a checkpoint or end.

Pure: no clock, no torch, no file. flows/train/loop.py performs one action, then calls decide() again.
Steps are counted as done: 1 after the first step. An epoch ends with the step that uses its last image.
"""

from dataclasses import dataclass
from typing import Literal

from trainstone.engine.distributed.stop_agreement import StopDecision
from trainstone.engine.event_schedule import EventSchedule

Action = Literal["train", "evaluate", "collect", "checkpoint", "fail", "end"]


@dataclass(frozen=True)
class DecisionInputs:
    """Inputs of a decision, the same on every rank."""

    done: int
    """Steps done, over all starts of the run."""
    has_validation: bool = True
    evaluated: bool = False
    """The current weights have scores."""
    is_best: bool = False
    """The scores of the current weights are the best so far."""
    pending: int | None = None
    """Steps done at the evaluation whose scores are not collected yet (eval.async)."""
    reached: bool = False
    """Collected scores have reached the target."""
    saved: bool = True
    """No step was trained since the last checkpoint or since this start."""


def decide(inputs: DecisionInputs, agreed: StopDecision, schedule: EventSchedule) -> Action:
    """Return the next action; call it again after each one.

    After steps, `agreed` holds what the ranks agreed on during them. After an evaluation the ranks agree again, because
    it may have taken long or a signal may have interrupted it. An evaluation that a signal interrupted is repeated
    before the first step of the next start.
    """
    if agreed.nan_step:
        return "fail" if inputs.pending is None else "collect"
    # A reached target counts even if a signal arrived as well.
    ends = inputs.reached or bool(agreed.stop or agreed.time_over) or inputs.done >= schedule.last_step
    # By schedule, or because these weights are (or may be, scores pending) the best.
    best = schedule.checkpoint.best and (inputs.is_best or inputs.pending == inputs.done)
    saves = bool(agreed.checkpoint) or best or schedule.checkpoints_after(inputs.done)
    evaluates = bool(agreed.time_over) or schedule.evaluates_after(inputs.done)
    if inputs.pending is not None:
        epoch_ended = schedule.whole_epochs_after(inputs.done) > schedule.whole_epochs_after(inputs.pending)
        # Scores of an evaluation are collected before the next checkpoint, evaluation or end of epoch.
        if ends or (inputs.pending < inputs.done and (saves or evaluates or epoch_ended)):
            return "collect"
    has_scores = inputs.evaluated or inputs.pending == inputs.done
    if evaluates and inputs.has_validation and not (has_scores or inputs.reached or agreed.stop):
        return "evaluate"
    if not inputs.saved and (ends or saves):
        return "checkpoint"
    return "end" if ends else "train"
