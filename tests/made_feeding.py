"""Made-up records of how fast a data set feeds."""

from trainstone.results.feeding import Demand, Feeding, Stage, ThreadPoint, rate_per_core

A100 = Demand(device="NVIDIA A100", devices=8, images_per_second=20_000, how="given")
HERE = Demand(device="a CPU", devices=1, images_per_second=5.1, how="resnet50, fp32, batch 16, measured here")


def make_point(threads: int, rate: float, cpu_cores: float | None = None, cores: int = 2, **changes) -> ThreadPoint:
    given = {"ci95": (0.99 * rate, 1.01 * rate), "ci_covers": "within this run", **changes}
    return ThreadPoint(
        threads=threads,
        images_per_second=rate,
        cpu_cores=cpu_cores,
        images_per_second_per_core=rate_per_core(rate, threads, cpu_cores, cores),
        **given,
    )


def make_feeding(points: list[ThreadPoint] | None = None, **changes) -> Feeding:
    given = {
        "path": "data/set",
        "storage": "RecordIO",
        "split": "train",
        "pictures": 1200,
        "picture_bytes": 2048.0,
        "image_size": 224,
        "batch_size": 64,
        "transform": "random crop, flip",
        "decode": "simplejpeg",
        "cpu": "a CPU",
        "cores": 2,
        "points": points or [make_point(1, 600), make_point(2, 1190)],
        "stages": [
            Stage(name="read", seconds_per_image=2e-4, share=0.1),
            Stage(name="decode", seconds_per_image=1.56e-3, share=0.78),
            Stage(name="batch", seconds_per_image=2.4e-4, share=0.12),
        ],
        "skipped": 0,
    }
    return Feeding(**{**given, **changes})
