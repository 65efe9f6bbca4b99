"""Wrong input of every verb: one message that names it, the exit code of its kind, nothing on stdout."""

import shlex
from pathlib import Path

import pytest

from support.builders.checkpoints import make_checkpoint
from support.builders.data_sets import make_set
from support.processes.command import narrow_arguments
from trainstone.results.run_folder import read_result

# {narrow}: settings of a network that is quick to build; {checkpoint}: a saved network; {set}: a data set.
MISTAKES = {
    "benhc": (2, "bench"),
    "bench resnet51": (2, "did you mean resnet50?"),
    "bench no/where.toml": (2, "no/where.toml"),
    "bench --set train.batchsize=4": (2, "did you mean train.batch_size?"),
    "bench --set train.target=70": (2, "did you mean eval.target?"),
    "bench --set train.batch_size=many": (2, "valid integer"),
    "bench --set train.batch_size": (2, "KEY=VALUE"),
    "bench --seconds 0": (2, "greater than 0"),
    "bench --seconds soon": (2, "valid number"),
    "bench --second 3": (2, "--seconds"),
    "bench --system dgxa100x": (2, "dgxa100x"),
    "bench --device gpu": (2, "gpu"),
    "bench --device cuda:77": (4, "cuda:77"),
    "bench --out /proc/nowhere": (7, "/proc/nowhere"),
    "bench --data nowhere": (3, "nowhere"),
    "bench --set data.source=files": (2, "--data DIR"),
    "bench --set 'augment.area=[0.5, 0.2]'": (2, "low <= high"),
    "bench --set augment.val_shorter=40 --set data.image_size=64 --data {set}": (2, "val_shorter"),
    "bench --data {set} --set model.num_classes=2 --set augment.flip=2": (2, "augment.flip"),
    "bench {narrow} --against resnet50 --against resnet50": (2, "--against has 2 recipes"),
    "bench {narrow} --against resnet51": (2, "did you mean resnet50?"),
    "bench {narrow} --against train.batchsize=4": (2, "did you mean train.batch_size?"),
    "bench {narrow} --against train.batch_size=4 --runs 2": (2, "exclude each other"),
    "bench {narrow} --against engine.keep_memory=false": (2, "engine.keep_memory"),
    "bench {narrow} --against measure.seconds=3": (2, "measure"),
    "profile {narrow} --iterations 0": (2, "greater than or equal to 1"),
    "profile {narrow} --iterations 201": (2, "less than or equal to 200"),
    "profile {narrow} --start -1": (2, "greater than or equal to 0"),
    "profile {narrow} --cores --nvtx": (2, "--nvtx"),
    "profile {narrow} --cores": (4, "ncu"),
    "profile {narrow} --nvtx --strict": (2, "engine.nvtx"),
    "sweep --batch-sizes 1,zwei": (2, "1,zwei"),
    "sweep --over train.precison=fp32,bf16": (2, "did you mean train.precision?"),
    "sweep --over model.depth=18,19": (2, "model.depth = 19"),
    "sweep --batch-sizes 1 --over train.batch_size=2": (2, "set the same key"),
    "sweep --over seed=1,2 --over model.depth=18,34": (2, "2 --over options"),
    f"sweep --batch-sizes {'9' * 5000}": (2, "999"),
    f"sweep --over seed={'9' * 5000},1": (2, "seed=999"),
    "eval nowhere.safetensors": (3, "nowhere.safetensors"),
    "eval {checkpoint} --recipe resnet50": (2, "--recipe resnet50"),
    "eval {checkpoint} --bench --export x": (2, "--export"),
    "eval {checkpoint} --seconds 3": (2, "--seconds"),
    "data verify nowhere": (3, "nowhere"),
    "data info .": (3, "does not contain a known data set"),
    "data imagenet --from nowhere --to x": (3, "nowhere"),
    "data imagenet --from . --to ./x": (2, "is inside"),
    "data convert . ../x": (3, "does not contain a known data set"),
    "data make classify --size 8": (2, "16 to 4096"),
    "data make classify --shards x --format wds": (2, "one number, or two"),
    "data make classify --shards 3": (2, "folder"),
    "data make classify --classes 1000": (2, "2 to 100"),
    "data bench {set} --threads 0": (2, "--threads 0"),
    "data bench {set} --threads one": (2, "--threads one"),
    "data bench {set} --demand inf": (2, "--demand"),
    "data bench {set} --recipe none": (2, "none"),
    "data coco --to x": (2, "COCO"),
    "doctor --seconds 3": (2, "doctor --aa"),
    "doctor --device cpu": (2, "doctor --aa"),
    "doctor --gpu-selftest --aa": (2, "cannot be combined with --aa"),
    "doctor --gpu-selftest --set seed=1": (2, "--set"),
    "doctor --gpu-selftest --device cuda": (4, "'cuda' not found"),
    "recipes --from wmlce -- --batchsize=4 --precison=fp16": (2, "did you mean --precision?"),
    "recipes --from mlperf-resnet50 -- config_NONE.sh": (2, "config_NONE.sh"),
    "recipes --from caffe -- x": (2, "caffe"),
    "recipes a b": (2, "a b"),
    "train resnet50": (2, "--data DIR"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | Path]:
    folder = tmp_path_factory.mktemp("made")
    made = {"checkpoint": make_checkpoint(folder), "set": make_set(folder / "set", "folder", count=4)}
    return {"narrow": shlex.join(narrow_arguments()), **made}


@pytest.mark.parametrize("line", MISTAKES, ids=lambda line: line[:60])
def test_mistake_gets_one_message_and_its_exit_code(quick, tmp_path: Path, places: dict[str, str | Path], line: str):
    code, named = MISTAKES[line]
    done = quick(*shlex.split(line.format_map(places)), env={"PATH": "/nowhere", "COLUMNS": "200"})
    assert done.code == code, done.err
    assert named in done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    assert [read_result(run).status for run in tmp_path.glob("runs/*")] in ([], ["failed"])
