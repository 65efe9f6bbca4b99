"""The data set of a configuration: find or generate it, open it, resolve its classes and the order of its images."""

from collections.abc import Iterator
from pathlib import Path

from trainstone.config.schema import Config, change_section
from trainstone.data.pipeline.order import TrainOrder
from trainstone.data.pipeline.transform import Transform
from trainstone.data.splits import OpenSplit, open_split
from trainstone.data.synthetic.generated import plan_recipe_data, write_recipe_data
from trainstone.errors import ConfigError
from trainstone.machine.cpus import read_affinity
from trainstone.machine.ranks import Rank
from trainstone.results.progress import Progress
from trainstone.workloads.registry import WORKLOADS

# Synthetic batches have no epochs; schedules in epochs assume the size of ImageNet.
IMAGENET_IMAGES = 1_281_167
IMAGENET_CLASSES = 1000


def open_data(config: Config, split: str = "train") -> OpenSplit | None:
    """Open a split; None if data is synthetic. Raise if the data set does not suit the workload."""
    if config.data.source == "synthetic":
        return None
    # Raises on conflicting settings before anything is opened.
    Transform(config, train=split == "train")
    opened = open_split(find_data(config), split, skip_empty=config.data.skip_empty and split == "train")
    WORKLOADS[config.workload].check_classes(config, opened.dataset)
    return opened


def provide_data(config: Config) -> Iterator[Progress]:
    """Generate the data set if the recipe generates one and it is missing."""
    if config.data.source == "generated":
        for made in write_recipe_data(config, len(read_affinity()) or 1):
            phase = "generating images" if made.total else made.phase  # without a total it waits for another process
            yield Progress(phase, images=made.done, total_images=made.total)


def resolve_num_classes(config: Config, opened: OpenSplit | None) -> Config:
    """Resolve model.num_classes = auto: the classes of the data set, or ImageNet's if data is synthetic."""
    if config.model.num_classes != "auto":
        return config
    number = len(opened.dataset.classes) if opened else IMAGENET_CLASSES
    if number < WORKLOADS[config.workload].min_classes:
        raise ConfigError(f"{find_data(config)}: number of classes is unknown", hint="--set model.num_classes=N")
    return change_section(config, "model", num_classes=number)


def find_data(config: Config) -> Path:
    if config.data.source == "generated":
        return plan_recipe_data(config).target
    if config.data.root is None:
        raise ConfigError(f"recipe {config.name} needs images", hint="give --data DIR")
    return Path(config.data.root)


def order_images(config: Config, count: int, rank: Rank) -> TrainOrder:
    train = config.train
    return TrainOrder(count, train.batch_size, config.seed, rank, last=config.loader.last, parts=train.accumulate)
