"""What only training needs before its first step: the validation split, a checkpoint, the run's clock."""

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


class Images(NamedTuple):
    """What is trained on, and what is validated with."""

    training: OpenSplit
    validation: OpenSplit | None
    """None: the set has no such split, and the recipe can do without."""


def open_both(config: Config) -> Images:
    """Open the images to train on and those to validate with; these may lack where nothing depends on them."""
    training = open_data(config, "train")
    if training is None:
        raise ConfigError(
            f"recipe {config.name} has no images to learn from: its data is synthetic",
            hint="give --data DIR; `trainstone train demo-classify` and `demo-detect` make their own",
        )
    # A set of one split is taken for either.
    alone = len(training.dataset.splits) == 1
    has_validation = not alone and any(split.name == "val" for split in training.dataset.splits)
    if not has_validation and config.eval.target is None and not (config.eval.every_epochs or config.eval.at_epochs):
        return Images(training, None)
    if alone and "val" not in training.dataset.lacking:  # of those opening val tells
        raise DataError(
            f"{find_data(config)} has one split, {training.name}: nothing is left to validate with",
            hint="`trainstone data` makes a train and a val split of what it knows; class folders: train/ and val/; "
            "with eval.every_epochs = 0 and no eval.target `train` does without",
        )
    return Images(training, open_data(config, "val"))


def begin_training_state(
    config: Config, images: Images, rank: Rank, checkpoint: Checkpoint | None, starts: int
) -> TrainingState:
    """Start the run's clock, or let it go on."""
    train, training = config.train, images.training
    order = order_images(config, len(training.source), rank)
    state = TrainingState(config.eval.metric, order.epoch_images, order.global_batch * train.accumulate, starts=starts)
    state.data = {split.name: f"{len(split.source)} {digest_samples(split.source)}" for split in images if split}
    if checkpoint:
        state.go_on_from(checkpoint.document, str(checkpoint.path))
        # With other images, or another number of them a step, it would not be the same run.
        before = checkpoint.document.get("global_batch")
        if before != state.global_batch:
            ranks = format_count(rank.world, "rank")
            raise ConfigError(
                f"the run has {before} images a step so far; {ranks} with train.batch_size = {train.batch_size} have "
                f"{state.global_batch}",
                hint="take as many ranks as before, or change train.batch_size or train.accumulate to match",
            )
        if (checkpoint.document.get("images"), checkpoint.document.get("data")) != (state.images, state.data):
            raise DataError(
                "the data set is not the one that the run began with: images were added, taken away or changed",
                hint="bring it back as it was, or start a new run",
            )
        if state.is_best_now and config.checkpoint.best and rank.number == 0:
            keep_best(checkpoint.path.parent, state.done)  # it may have been killed before it did
    return state


def list_warnings(config: Config, images: Images, global_batch: int, rank: Rank) -> list[schema.Finding]:
    """Findings about a rate that is far from usual ones, and where there is nothing to validate with."""
    peak = peak_rate(config.optimizer, global_batch=global_batch, ranks=rank.world * config.train.accumulate)
    message = check_rate(config.optimizer, peak=peak, global_batch=global_batch)
    findings = [finding("learning-rate", message)] if message else []
    if images.validation is None:
        splits = ", ".join(split.name for split in images.training.dataset.splits)
        message = f"{find_data(config)} has nothing to validate with (splits: {splits}): the network is not evaluated"
        message += "; without eval_accuracy MLPerf's checker refuses mlperf.log"
        findings.append(finding("not-evaluated", message))
    return findings
