"""Arm of benchmarks/input.py: trainstone's loader, as in `trainstone bench --data`."""

from collections.abc import Iterator
from pathlib import Path

from turns import serve

from trainstone import __version__
from trainstone.config.schema import Config, DataConfig, LoaderConfig
from trainstone.data.loader import Loader, LoaderOptions
from trainstone.data.recognise import open_dataset


def open_batches(_, job) -> Iterator:
    splits = {split.name: split.source for split in open_dataset(Path(job["records"])).splits}
    data, how = DataConfig(image_size=job["size"]), LoaderConfig(threads=job["threads"])
    config = Config(name="peers", version=1, summary="", data=data, loader=how)
    with Loader(splits["train"], config, LoaderOptions(job["batch"])) as loader:
        yield from loader


serve(f"trainstone {__version__}", ["threads"], open_batches)
