"""Prepare a training run before its first step: open the splits, resume from a checkpoint, start the clock."""

from typing import NamedTuple

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit, digest_samples
from trainstone.engine.lr_schedule import check_rate, peak_rate
from trainstone.engine.training_data import find_data, open_data, order_images
from trainstone.errors import ConfigError, DataError
from trainstone.flows.train.checkpoint import Checkpoint, keep_best
from trainstone.flows.train.state import TrainingState
from trainstone.machine.ranks import Rank
from trainstone.results.findings import finding
from trainstone.results.schema import run as schema
from trainstone.units import format_count


class TrainingSplits(NamedTuple):
    """The training split and the validation split."""

    training: OpenSplit
    validation: OpenSplit | None
    """None: the data set has no validation split, and the recipe does not evaluate."""


def open_splits(config: Config) -> TrainingSplits:
    """Open the training and the validation split; the latter may be missing if the recipe does not evaluate."""
    training = open_data(config, "train")
    if training is None:
        raise ConfigError(
            f"recipe {config.name} has no images to train on: data.source is synthetic",
            hint="give --data DIR; `trainstone train demo-classify` and `demo-detect` generate their own images",
        )
    # A data set with one split serves for any split name.
    one_split = len(training.dataset.splits) == 1
    has_validation = not one_split and any(split.name == "val" for split in training.dataset.splits)
    if not has_validation and config.eval.target is None and not (config.eval.every_epochs or config.eval.at_epochs):
        return TrainingSplits(training, None)
    if one_split and "val" not in training.dataset.missing_splits:  # else opening val explains what is missing
        raise DataError(
            f"{find_data(config)} has only one split, {training.name}: validation needs another one",
            hint="class folders need train/ and val/; `trainstone data` writes both splits of the data sets it knows; "
            "to train without validation: eval.every_epochs = 0 and no eval.target",
        )
    return TrainingSplits(training, open_data(config, "val"))


def build_training_state(
    config: Config, splits: TrainingSplits, rank: Rank, checkpoint: Checkpoint | None, starts: int
) -> TrainingState:
    """Return the state of a new run, or of the run that `checkpoint` continues; its clock starts now."""
    train, training = config.train, splits.training
    order = order_images(config, len(training.source), rank)
    state = TrainingState(config.eval.metric, order.epoch_images, order.global_batch * train.accumulate, starts=starts)
    state.data = {split.name: f"{len(split.source)} {digest_samples(split.source)}" for split in splits if split}
    if checkpoint:
        state.resume_from(checkpoint.document, str(checkpoint.path))
        # Other images, or another number of images per step, would make it a different run.
        before = checkpoint.document.get("global_batch")
        if before != state.global_batch:
            ranks = format_count(rank.world, "rank")
            raise ConfigError(
                f"the run was started with {before} images per step; {ranks} with train.batch_size = "
                f"{train.batch_size} make {state.global_batch}",
                hint="use as many ranks as before, or change train.batch_size or train.accumulate to match",
            )
        if (checkpoint.document.get("images"), checkpoint.document.get("data")) != (state.images, state.data):
            raise DataError(
                "the data set has changed since the run was started: images were added, removed or modified",
                hint="restore the data set, or start a new run",
            )
        if state.is_best_now and config.checkpoint.best and rank.number == 0:
            keep_best(checkpoint.path.parent, state.done)  # the run may have been killed before it did this
    return state


def list_warnings(config: Config, splits: TrainingSplits, global_batch: int, rank: Rank) -> list[schema.Finding]:
    """Return findings about an unusual learning rate and a missing validation split."""
    peak = peak_rate(config.optimizer, global_batch=global_batch, ranks=rank.world * config.train.accumulate)
    message = check_rate(config.optimizer, peak=peak, global_batch=global_batch)
    findings = [finding("learning-rate", message)] if message else []
    if splits.validation is None:
        names = ", ".join(split.name for split in splits.training.dataset.splits)
        message = f"{find_data(config)} has no validation split (splits: {names}): the network is not evaluated"
        message += "; MLPerf's checker rejects an mlperf.log without eval_accuracy"
        findings.append(finding("not-evaluated", message))
    return findings
