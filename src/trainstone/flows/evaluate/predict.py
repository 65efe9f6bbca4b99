"""`trainstone eval --predict`: classes (and boxes) that saved weights predict for single images."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from trainstone.config.schema import Config, change_section
from trainstone.data.loader import BatchMemory
from trainstone.data.pipeline.input_pipeline import InputPipeline, WorkerState
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import ClassName, ImageSource
from trainstone.data.synthetic.generated import plan_recipe_data
from trainstone.engine.fit import finish, fit_engine
from trainstone.engine.training_data import find_data
from trainstone.errors import ConfigError, DataError
from trainstone.flows.evaluate.load_weights import SavedWeights, load_network
from trainstone.measure.devices import autocast
from trainstone.workloads.registry import WORKLOADS

log = logging.getLogger(__name__)

EDGES = ("left", "top", "right", "bottom")
"""Edges of a box, as shares of the image's width and height."""


def predict(config: Config, saved: SavedWeights, images: Sequence[Path], top: int) -> Iterator[dict[str, Any]]:
    """Yield the predictions for each image, most likely class first, as --json prints them; or why it is unreadable."""
    fit = finish(fit_engine(config))
    config, device = fit.config, fit.device
    for found in fit.findings:
        log.info("%s", found.message)
    model, classes = load_network(config, device, saved), find_classes(config)
    predict_batch = WORKLOADS[config.workload].build_predictor(config, device)
    worker, uncached = WorkerState(), change_section(config, "loader", cache="off")
    pipeline = InputPipeline(ImageSource(images), uncached, train=False)
    memory = BatchMemory(1, config.data.image_size, "class", pinned=False)
    for index, image in enumerate(images):
        try:
            pipeline.process_image(index, 0, memory.pixels[0], worker)
        except DataError as err:
            yield {"image": str(image), "error": err.message}
            continue
        with torch.inference_mode(), autocast(device, config.train.precision):
            (predictions,) = predict_batch(model, memory.images.to(device))
        guesses = []
        for one in predictions[:top]:  # scores of all classes sum up to 1, of an image or of a default box
            named = classes[one.label] if one.label < len(classes) else ClassName("")
            box = dict(zip(EDGES, one.edges, strict=True)) if one.edges is not None else None
            guess = {"class": one.label, "name": named.name, "text": named.text, "score": one.score, "box": box}
            guesses.append({key: value for key, value in guess.items() if value not in ("", None)})
        yield {"image": str(image), "guesses": guesses}


def find_classes(config: Config) -> Sequence[ClassName]:
    """Return the class names from the data set that was trained on; an empty sequence if it is not available."""
    try:
        if config.data.source == "generated":
            return plan_recipe_data(config).plan.classes
        if config.data.source == "synthetic":
            raise ConfigError("data.source is synthetic")
        dataset = open_dataset(find_data(config))
        WORKLOADS[config.workload].check_classes(config, dataset)
    except (DataError, ConfigError) as err:
        log.warning("class names are unknown, showing class numbers: %s; give --data DIR", err.message)
        return ()
    return dataset.classes
