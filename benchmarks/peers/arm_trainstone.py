"""trainstone's own loader, as `trainstone bench --data` uses it."""

from collections.abc import Iterator
from pathlib import Path

from turns import serve

from trainstone import __version__
from trainstone.config.schema import AugmentConfig, LoaderConfig
from trainstone.data.loader import open_loader
from trainstone.data.recognise import open_dataset


def open_batches(_, job) -> Iterator:
    splits = {split.name: split.source for split in open_dataset(Path(job["records"])).splits}
    how = LoaderConfig(threads=job["threads"])
    sizes = {"image_size": job["size"], "batch_size": job["batch"]}
    with open_loader(splits["train"], augment=AugmentConfig(), loader=how, seed=0, **sizes) as loader:
        yield from loader


serve(f"trainstone {__version__}", ["threads"], open_batches)
