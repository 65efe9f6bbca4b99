"""The commands of the golden harness, each small enough for a second or two of work."""

from dataclasses import dataclass

from command import narrow_arguments
from small_training import set_arguments

SMALL = (*narrow_arguments(), "--set", "engine.keep_memory=false")
TRAIN = ("train", "demo-classify", *set_arguments(stop__epochs=1.0, optimizer__learning_rate=0.01))
EVAL = ("--device", "cpu", "--set", "engine.threads=1", "--set", "loader.threads=1")


@dataclass(frozen=True)
class Case:
    name: str
    words: tuple[str, ...]
    """Its arguments; {run} is the run folder that `needs` made."""
    needs: str = ""
    """A case whose folder is copied first: its run, its data set, its cache of generated images."""
    json: bool = False
    """Run the command again with --json and record the keys of the document."""
    exact: bool = False
    """The numbers come from stored files, so they are compared as text."""
    losses: int | None = None
    """Compare only so many losses: these recipes' learning rates multiply the rounding errors of a processor."""


def list_cases() -> list[Case]:
    good, drifting = "../golden/good", "../golden/never-steady"
    return [
        Case("bench", ("bench", *SMALL, "--iterations", "12"), json=True),
        Case("bench_dry_run", ("bench", *SMALL, "--iterations", "12", "--dry-run"), json=True, exact=True),
        Case("bench_against", ("bench", *SMALL, "--iterations", "8", "--against", "train.batch_size=4")),
        Case("bench_runs", ("bench", *SMALL, "--iterations", "8", "--runs", "2")),
        Case(
            "bench_data",
            ("bench", *SMALL, "--set", "loader.threads=1", "--iterations", "8", "--data", "set"),
            needs="data_make",
        ),
        Case("bench_wmlce", ("bench", "resnet50-wmlce", *SMALL, "--iterations", "30", "-q"), losses=4),
        Case("bench_tbd", ("bench", "resnet50-tbd", *SMALL, "--iterations", "20", "-q"), losses=8),
        Case("bench_sc22", ("bench", "resnet50-sc22", *SMALL, "--iterations", "8", "-q"), losses=2),
        Case("train", TRAIN, json=True),
        Case("train_runs", (*TRAIN, "--runs", "2"), needs="train"),
        Case("train_resume", ("train", "--resume", "{run}", "--set", "stop.epochs=2"), needs="train"),
        Case("train_resume_ended", ("train", "--resume", "{run}", "-q", "--require-target"), needs="train"),
        Case("eval", ("eval", "{run}", *EVAL), needs="train", json=True),
        Case("eval_bench", ("eval", "{run}", *EVAL, "--bench", "--seconds", "0.3"), needs="train"),
        Case("eval_export", ("eval", "{run}", "--export", "weights.safetensors"), needs="train"),
        Case("profile", ("profile", *SMALL, "--start", "3", "--iterations", "2")),
        Case("sweep", ("sweep", *SMALL, "--set", "measure.iterations=8", "--batch-sizes", "2,4")),
        Case("sweep_dry_run", ("sweep", *SMALL, "--batch-sizes", "2,4", "--dry-run"), exact=True),
        Case("data_make", ("data", "make", "classify", "--to", "set", "--count", "10", "--val", "4", "--size", "48")),
        Case("data_info", ("data", "info", "set"), needs="data_make", json=True),
        Case("data_verify", ("data", "verify", "set"), needs="data_make", json=True),
        Case(
            "data_bench",
            ("data", "bench", "set", *SMALL, "--threads", "1", "--seconds", "0.3", "--demand", "5"),
            needs="data_make",
        ),
        Case("compare", ("compare", good, "--to", drifting, "--force"), json=True, exact=True),
        Case("compare_same_run", ("compare", good, "--to", good), exact=True),
        Case("report", ("report", good, "--page", "page.html", "--json"), exact=True),
        Case("recipes", ("recipes",), json=True, exact=True),
        Case("recipes_from", ("recipes", "--from", "tbd", "--", "--batch_size=32", "--train_steps=10"), exact=True),
        Case("weights_convert", ("weights", "convert", "weights.safetensors", "weights.pth"), needs="eval_export"),
        Case("mlperf_check", ("mlperf", "check", "{run}/mlperf.log"), needs="train", json=True),
        Case("mlperf_summary", ("mlperf", "summary", "{run}/mlperf.log"), needs="train", json=True),
        Case("launch_local", ("launch", "local", "--ranks", "2", "--", "bench", *SMALL, "--iterations", "8")),
        Case("launch_slurm_dry_run", ("launch", "slurm", "--nodes", "2", "--dry-run", "--", "bench"), exact=True),
        Case("doctor", ("doctor",), json=True),
        Case("error_unknown_key", ("bench", "--set", "model.deth=18"), exact=True),
        Case("error_wrong_flag", ("bench", "--itertions", "3"), exact=True),
        Case("error_no_data", ("bench", *SMALL, "--data", "nowhere")),
        Case("error_nan", ("train", "demo-classify", *set_arguments(optimizer__learning_rate=1e12)), needs="train"),
        Case("error_resume", ("train", "--resume", "nowhere"), exact=True),
        Case("error_launch", ("launch", "local", "--ranks", "2"), exact=True),
    ]
