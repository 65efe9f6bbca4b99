"""What saved weights see in single pictures, and those weights as a plain file for other tools. Nothing is measured.

Pictures are read, decoded and cut as evaluation does it.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from trainstone.config.schema import Config
from trainstone.data.feeding.feed import Feed, Worker
from trainstone.data.feeding.transform import make_transform
from trainstone.data.generated.stored import find_stored
from trainstone.data.loader import Memory
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import ClassName, Edges
from trainstone.data.sources import PictureSource
from trainstone.errors import ConfigError, DataError
from trainstone.models.weights import write_weights
from trainstone.train.fit import fit_engine
from trainstone.train.precision import autocast
from trainstone.train.saved import Saved, load_network
from trainstone.train.task import count_parameters, find_data
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Seen

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Guess:
    """A class that a picture may show, and how sure the network is of it: scores of all classes sum up to 1, here or
    in a default box."""

    number: int
    name: str
    """Empty where the names are not known."""
    text: str
    score: float
    edges: Edges | None = None
    """Where in the picture, if the network says: left, top, right, bottom as shares of width and height."""


@dataclass(frozen=True)
class Prediction:
    """What was seen in a picture, the likeliest first; or why it could not be looked at."""

    image: Path
    guesses: tuple[Guess, ...] = ()
    error: str | None = None


class Exported(NamedTuple):
    """What was written."""

    tensors: int
    parameters: int
    bytes: int
    averaged: bool


def predict(config: Config, saved: Saved, images: Sequence[Path], top: int) -> Iterator[Prediction]:
    """Look at each picture; a damaged one is told and the others go on."""
    config, device, findings = fit_engine(config)
    for found in findings:
        log.info("%s", found.message)
    model, classes = load_network(config, device, saved), find_classes(config)
    look = WORKLOADS[config.workload].build_look(config, device)
    feed = Feed(
        PictureSource(images),
        make_transform(config.augment, config.loader, config.data.image_size, train=False),
        config.seed,
    )
    worker = Worker()
    memory = Memory(1, config.data.image_size, "class", pinned=False)
    for index, image in enumerate(images):
        try:
            feed.show(index, 0, memory.pixels[0], worker)
        except DataError as err:
            yield Prediction(image, error=err.message)
            continue
        with torch.inference_mode(), autocast(device, config.train.precision):
            (seen,) = look(model, memory.images.to(device))
        yield Prediction(image, tuple(name_guesses(seen, classes, top)))


def name_guesses(seen: Sequence[Seen], classes: Sequence[ClassName], top: int) -> Iterator[Guess]:
    """Yield what is likeliest, with names."""
    for one in seen[:top]:
        named = classes[one.label] if one.label < len(classes) else ClassName("")
        yield Guess(one.label, named.name, named.text, one.score, one.edges)


def find_classes(config: Config) -> Sequence[ClassName]:
    """Return the names of the classes, from the data set that was trained on; none where it is not to be had."""
    try:
        if config.data.source == "generated":
            return find_stored(config).plan.classes
        if config.data.source == "synthetic":
            raise ConfigError("the data is synthetic")
        dataset = open_dataset(find_data(config))
        WORKLOADS[config.workload].check_classes(config, dataset)
    except (DataError, ConfigError) as err:
        log.warning("names of classes are not known, numbers are given: %s; --data DIR names a data set", err.message)
        return ()
    return dataset.classes


def export_weights(config: Config, saved: Saved, target: Path) -> Exported:
    """Write the weights that evaluation judges as plain safetensors, under the names that the network gives them."""
    if target.exists():
        raise ConfigError(f"{target} exists; it is not written over", hint="choose another name, or remove it first")
    model = load_network(config, torch.device("cpu"), saved)
    metadata = {"recipe": config.name, "step": str(saved.step)}
    if saved.run_id is not None:
        metadata["run_id"] = saved.run_id
    classes = find_classes(config)
    if classes:
        metadata["classes"] = json.dumps([one.name for one in classes])
    state = model.state_dict()
    write_weights(target, state, metadata)
    return Exported(len(state), count_parameters(model), target.stat().st_size, saved.averaged)
