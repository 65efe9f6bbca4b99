"""What saved weights see in single pictures, and those weights as a plain file for other tools. Nothing is measured.

Pictures are read, decoded and cut as evaluation does it.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from trainstone.config.schema import Config, change_section
from trainstone.data.feeding.feed import Feed, Worker
from trainstone.data.generated.source import find_stored
from trainstone.data.loader import Memory
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import ClassName, PictureSource
from trainstone.errors import ConfigError, DataError
from trainstone.models.weights import write_weights
from trainstone.train.fit import fit_engine
from trainstone.train.precision import autocast
from trainstone.train.saved import Saved, load_network
from trainstone.train.task import count_parameters, find_data
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Seen

log = logging.getLogger(__name__)


EDGES = ("left", "top", "right", "bottom")
"""Of a box, as shares of the image's width and height."""


def predict(config: Config, saved: Saved, images: Sequence[Path], top: int) -> Iterator[dict[str, Any]]:
    """Yield what is seen in each image, the likeliest class first, as --json prints it; or why it cannot be read."""
    config, device, findings = fit_engine(config)
    for found in findings:
        log.info("%s", found.message)
    model, classes = load_network(config, device, saved), find_classes(config)
    look = WORKLOADS[config.workload].build_look(config, device)
    worker, uncached = Worker(), change_section(config, "loader", cache="off")
    feed = Feed(PictureSource(images), uncached, train=False)
    memory = Memory(1, config.data.image_size, "class", pinned=False)
    for index, image in enumerate(images):
        try:
            feed.show(index, 0, memory.pixels[0], worker)
        except DataError as err:
            yield {"image": str(image), "error": err.message}
            continue
        with torch.inference_mode(), autocast(device, config.train.precision):
            (seen,) = look(model, memory.images.to(device))
        yield {"image": str(image), "guesses": [describe_guess(one, classes) for one in seen[:top]]}


def describe_guess(seen: Seen, classes: Sequence[ClassName]) -> dict[str, Any]:
    """Return class, score and place; scores of all classes sum up to 1, of an image or of a default box."""
    named = classes[seen.label] if seen.label < len(classes) else ClassName("")
    box = dict(zip(EDGES, seen.edges, strict=True)) if seen.edges is not None else None
    guess = {"class": seen.label, "name": named.name, "text": named.text, "score": seen.score, "box": box}
    return {key: value for key, value in guess.items() if value not in ("", None)}


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


def export_weights(config: Config, saved: Saved, target: Path) -> dict[str, Any]:
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
    return {
        "tensors": len(state),
        "parameters": count_parameters(model),
        "bytes": target.stat().st_size,
        "averaged": saved.averaged,
    }
