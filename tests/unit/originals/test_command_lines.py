"""Tests of translating the originals' command lines: shipped recipes and systems, single flags, errors, parsing."""

import fnmatch
import shlex
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders.command_lines import (
    MLPERF_PROGRAM,
    MLPERF_SYSTEMS,
    SC22,
    SC22_SCRIPT,
    SSD_SYSTEMS,
    TBD_LINE,
    WMLCE,
    WMLCE_JOB,
    mlperf_words,
    parse_command,
    parse_printed_commands,
    ssd_config,
    ssd_program,
)
from support.builders.hostile_text import HOSTILE, hidden
from trainstone.config.load import flatten, list_keys, load_config
from trainstone.config.schema import Config
from trainstone.errors import ConfigError
from trainstone.originals.command_line.reader import PROGRAM, Geometry, read_launcher, read_line, read_table
from trainstone.originals.command_line.translate import ORIGINALS, Translation, format_recipe_file, read_key, translate

DDLRUN = "ddlrun -H host1,host2,host3,host4 python /opt/tensorflow-benchmarks/resnet50/main.py"
HINT = "no shell is started: write the value itself, or give the script's name"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def translate_line(original: str, line: str | list[str]) -> Translation:
    translation = translate(original, shlex.split(line) if isinstance(line, str) else line)
    parse_printed_commands(translation)
    return translation


def has(translation: Translation, *parts: str) -> bool:
    return any(all(part in note for part in parts) for note in translation.notes)


def files(root: str) -> dict[str, str]:
    return {"data.root": root, "data.source": "files"}


def write_mlperf(system: str) -> str:
    """Write the original's configuration files; return the text of config_MINE.sh."""
    first, *more = mlperf_words(system)
    Path("config_common.sh").write_text(f"export {first}\n")
    head = "source $(dirname ${BASH_SOURCE[0]})/config_common.sh\n## DL params\n"
    end = "export DGXSYSTEM=$(basename $(readlink -f ${BASH_SOURCE[0]}) | sed 's/^config_//' | sed 's/\\.sh$//' )\n"
    text = head + "".join(f'export {word.replace("=", chr(61) + chr(34))}"  # why\n' for word in more) + end
    Path("config_MINE.sh").write_text(f"{text}export WALLTIME_MINUTES=30 OTHER=1\n")
    return text


# Whole lines


@pytest.mark.parametrize(
    ("original", "words", "recipe", "system", "flags"),
    [
        ("wmlce", WMLCE, "resnet50-wmlce", None, {**files("/data/TFRecords"), "engine.compile": True}),
        ("wmlce", [WMLCE_JOB], "resnet50-wmlce", "bede-4x4", files("/data/my images")),
        ("sc22", SC22, "resnet50-sc22", "any-4gpu", {}),
        ("sc22", ["./run-resnet.sh"], "resnet50-sc22", "any-4gpu", {}),
        ("tbd", ["run_train.sh"], "resnet50-tbd", "tbd-4gpu", {}),
        ("tbd", [TBD_LINE], "resnet50-tbd", "tbd-4gpu", files("/d")),
        ("tbd", ["--data_dir=/d"], "resnet50-tbd", None, {**files("/d"), "stop.epochs": 1.0}),
        *(("mlperf-resnet50", mlperf_words(s), "resnet50-mlperf", s, {}) for s in MLPERF_SYSTEMS),
        ("mlperf-resnet50", [*MLPERF_PROGRAM, "--data-train", "/d/a.rec"], "resnet50-mlperf", "dgxa100", files("/d")),
        *(
            ("mlperf-ssd", ssd_program(s), "ssd300-mlperf", s, {**files("/data/coco2017"), "model.pretrained": w})
            for s in SSD_SYSTEMS
            for w in ["/pretrained/mxnet/resnet34-333f7ec4.pickle"]
        ),
    ],
)
def test_translate_original_line_equals_shipped_recipe(
    original: str, words: list[str], recipe: str, system: str, flags: dict
):
    assert translate_line(original, words).config == load_config(recipe, system=system, flags=flags)


@pytest.mark.parametrize("system", MLPERF_SYSTEMS)
def test_translate_mlperf_config_file_equals_shipped_system(system: str):
    text = write_mlperf(system)
    for words in ([text], ["config_MINE.sh"], ["source", "config_MINE.sh"]):
        assert translate_line("mlperf-resnet50", words).config == load_config("resnet50-mlperf", system=system)


def test_translate_mlperf_variables_before_program_are_read():
    write_mlperf("a30-1x2")
    for words in (
        ["source config_MINE.sh; mpirun --np 2 ./run_and_time.sh"],
        [". ./config_MINE.sh\nmpirun --allow-run-as-root --bind-to none --np 2 ./run_and_time.sh"],
        ["source", "config_MINE.sh", "&&", "mpirun", "--np", "2", "./run_and_time.sh"],
        [*mlperf_words("a30-1x2")[:-2], *["mpirun", "--bind-to", "none", "--np", "2", "./run_and_time.sh"]],
    ):
        assert translate_line("mlperf-resnet50", words).command == "trainstone train resnet50-mlperf --system a30-1x2"


@pytest.mark.parametrize("system", SSD_SYSTEMS)
@pytest.mark.parametrize("form", ["./{}", "SYSTEM", "SYSTEM run_and_time.sh", "source {}; ./run_and_time.sh"])
@pytest.mark.parametrize("exists", [False, True])
def test_translate_ssd_config_file_equals_system_with_or_without_file(system: str, form: str, exists: bool):
    name = SSD_SYSTEMS[system][0]
    file = f"config_{name}.sh"
    if exists:
        Path(file).write_text(f"{ssd_config(system)}\nexport WALLTIME_MINUTES=30\n")
    line = form.format(file).replace("SYSTEM", f"SYSTEM={name}")
    translation = translate_line("mlperf-ssd", [line] if ";" in line else line)
    assert translation.config == load_config("ssd300-mlperf", system=system)
    assert (
        has(translation, "WALLTIME=")
        if exists
        else has(translation, f"{file}: no such file; the original's published script")
    )
    if system == "2xc4140" and exists:
        assert has(translation, "NNODES=1")


@pytest.mark.parametrize(
    ("original", "name", "text", "keys"),
    [
        ("wmlce", "sbatch -N1 job.sh", WMLCE_JOB, {"system": "bede-1x4", "train.batch_size": 256}),
        ("sc22", "./run-resnet.sh", SC22_SCRIPT, {"train.batch_size": 48, "devices_per_node": 3}),
        ("tbd", "./run_train.sh", TBD_LINE.replace("384", "64"), {"train.batch_size": 64}),
        ("tbd", "./run_train.sh --batch_size=8", TBD_LINE.replace("384", "64"), {"train.batch_size": 8}),
        (
            *("mlperf-ssd", "train_mlperf_dgx1_nhwc_amp.sh"),
            "E=1.5 # many\nmpirun -np 2 \\\n -x PATH \\\n python ssd_main_async.py \\\n --lr-warmup-epoch $E\n",
            {"devices_per_node": 2, "schedule.warm_up_epochs": 1.5},
        ),
    ],
)
def test_translate_existing_script_is_read(original: str, name: str, text: str, keys: dict[str, Any]):
    file = next(word for word in name.split() if word.endswith(".sh"))
    Path(file).write_text(text)
    translation = translate_line(original, name)
    assert {key: read_key(translation.config, key) for key in keys} == keys
    assert has(translation, "read as text, not executed")


# Single flags and variables: a table flag without a special rule sets its key, so only the special ones are listed


def changed(original: str, base: str, flags: str) -> dict[str, Any]:
    """Return the keys that differ between the lines with and without the flags."""
    before, after = (
        dict(flatten(translate_line(original, f"{base} {more}").config.model_dump())) for more in ("", flags)
    )
    # train.adapt differs, too: requested values are not adapted.
    return {key: value for key, value in after.items() if value != before.get(key) and key != "train.adapt"}


BASES = {
    "wmlce": "--batch_size=64",
    "sc22": "--kfac-update-freq 0",
    "tbd": "--data_dir=/d",
    "mlperf-resnet50": "LR=0.6",
    "mlperf-ssd": "ssd_main.py",
}
SINGLE = {
    "wmlce": [
        ("--lr_init 0.5", {"optimizer.learning_rate": 0.5}),
        ("--display_every 5", {"original.every_steps": 5}),
        ("--data_format=NCHW", {"engine.channels_last": False}),
        ("--gpu_id 2", {"device": "cuda:2"}),
        ("--use_tf_amp", {"train.precision": "fp16", "train.loss_scale": "dynamic"}),
        ("--precision fp16 --use_static_loss_scaling", {"train.precision": "fp16", "train.loss_scale": 256.0}),
        ("--iter_unit=batch --num_iter=300", {"stop.steps": 300, "stop.epochs": 90.0}),
    ],
    "sc22": [
        ("--model resnet152", {"model.depth": 152}),
        ("--fp16", {"train.precision": "fp16"}),
        ("--batches-per-allreduce 4", {"train.accumulate": 4, "engine.split_phases": False}),
        ("--no-cuda", {"device": "cpu"}),
        ("--backend gloo", {"parallel.backend": "gloo"}),
        ("--damping 0.5 --skip-layers a b --use-inv-kfac", {}),
        ("--train-dir /d", files("/d")),
    ],
    "tbd": [
        ("--dtype=fp16", {"train.precision": "fp16", "train.loss_scale": 128.0}),
        ("--dtype=fp16 --loss_scale=dynamic", {"train.precision": "fp16"}),
        ("--enable_xla=true --noenable_xla", {}),
        ("--training_dataset_cache", {"loader.cache": "files"}),
        ("--train_steps 10", {"stop.steps": 10}),
        ("--num_gpus=2", {"train.batch_size": 16, "devices_per_node": 2}),
        ("--num_gpus=0", {"device": "cpu"}),
        ("-num_gpus=2", {"train.batch_size": 16, "devices_per_node": 2}),
        ("--worker_hosts=a:1,b:1 --num_gpus=4", {"train.batch_size": 4, "nodes": 2, "devices_per_node": 4}),
        ("--data_format channels_first", {"engine.channels_last": False}),
    ],
    "mlperf-resnet50": [
        ("NUMEXAMPLES=100000", {"schedule.images": 100000}),
        ("CLEAR_CACHES=1", {"mlperf.clear_caches": True}),
        ("TIME_TAGS=1", {"engine.split_phases": True, "stop.epochs": 4.0, "schedule.warm_up_epochs": 2.0}),
        ("NVTX_FLAG=1", {"engine.nvtx": True, "stop.epochs": 4.0, "schedule.warm_up_epochs": 2.0}),
        ("DALI_THREADS=9 HOROVOD_CYCLE_TIME=1", {}),
        ("LRSCHED=30,60", {"schedule.decay_epochs": (30.0, 60.0)}),
    ],
    "mlperf-ssd": [
        ("--lr-warmup-factor 1", {"schedule.warm_up_from": 0.5}),
        ("--lr-decay-epochs 40 50", {"schedule.decay_epochs": (40.0, 50.0)}),
        ("--precision FP32", {"train.precision": "fp32"}),
        ("--precision amp", {"train.loss_scale": "dynamic"}),
        ("--fp16-loss-scale 64", {"train.loss_scale": 64.0}),
        ("--data-layout nchw", {"engine.channels_last": False}),
        ("-j 4", {"loader.threads": 4}),
        ("-t 21.2", {"eval.target": 0.212}),
        ("--nms-topk 400 --post-nms -1", {"detect.before_nms": 400, "detect.max_detections": 400}),
        ("--log-interval 20", {"original.every_steps": 20}),
        ("--coco-root /c", files("/c")),
        ("--use-tfrecord --tfrecord-root /t", files("/t")),
        ("--val-epochs", {"eval.at_epochs": (), "eval.every_epochs": 0}),
        ("--val-interval 40 --val-epochs", {"eval.at_epochs": (40.0, 80.0)}),
    ],
}


@pytest.mark.parametrize(
    ("original", "flags", "keys"), [(original, *row) for original, rows in SINGLE.items() for row in rows]
)
def test_translate_flag_changes_its_key(original: str, flags: str, keys: dict[str, Any]):
    assert changed(original, BASES[original], flags) == keys


@pytest.mark.parametrize(
    ("original", "line", "keys"),
    [
        (
            *("wmlce", ""),
            {
                **{"train.batch_size": "auto", "optimizer.learning_rate": 0.1, "schedule.warm_up_epochs": 5.0},
                **{"optimizer.weight_decay": 1e-4, "optimizer.momentum": 0.9, "train.precision": "fp32"},
                **{"schedule.decay_epochs": [30.0, 60.0, 80.0, 90.0], "stop.epochs": 1.0, "train.label_smoothing": 0.0},
            },
        ),
        (
            *("sc22", "--kfac-update-freq 0"),
            {
                **{"train.batch_size": 32, "optimizer.learning_rate": 0.0125, "seed": 42},
                **{"schedule.decay_epochs": [25.0, 35.0, 40.0, 45.0, 50.0]},
            },
        ),
        ("sc22", "run-resnet-single.sh 2 5", {"train.batch_size": 16, "device": "cuda:2", "devices_per_node": 1}),
        ("sc22", "run-resnet-multi.sh 1 2 48", {"train.batch_size": 48, "nodes": 2, "devices_per_node": 3}),
        (
            *("mlperf-resnet50", ""),
            {
                **{"optimizer.name": "sgd", "train.batch_size": 1664, "optimizer.learning_rate": 0.6},
                **{"schedule.name": "steps", "schedule.decay_epochs": [30.0, 60.0, 80.0], "stop.epochs": 90.0},
                **{"schedule.warm_up_epochs": 5.0, "train.label_smoothing": 0.0, "optimizer.weight_decay": 1e-4},
            },
        ),
        (
            *("mlperf-ssd", "ssd_main.py"),
            {
                **{"train.batch_size": 32, "optimizer.learning_rate": 2.5e-3, "optimizer.rate_for": 32, "seed": 1},
                **{"optimizer.weight_decay": 5e-4, "schedule.warm_up_epochs": 0.0, "eval.async": False},
                **{"train.precision": "fp16", "train.loss_scale": 128.0, "eval.target": 0.23, "loader.threads": "auto"},
            },
        ),
        ("wmlce", f"{DDLRUN} --batch_size=256", {"nodes": 4, "devices_per_node": 4}),
        ("wmlce", "--use_dali", {"augment.crop": "area", "augment.area": [0.1, 1.0], "augment.aspect": [0.8, 1.25]}),
        ("wmlce", "--num_iter=2 --mode=training_benchmark", {"measure.max_epochs": 2, "measure.iterations": None}),
        ("tbd", "--batch_size=512 --distribution_strategy multi_worker_mirrored", {"train.batch_size": 512}),
        (
            *("mlperf-resnet50", "NODENUM=2 GPUPERNODE=1 NETWORK=multinode KEYREPO=./k DATADIR=/d ./run_multinode.sh"),
            {"nodes": 2, "devices_per_node": 1, "data.root": "/d", "train.batch_size": 4},
        ),
        ("mlperf-resnet50", "LR=9", {"optimizer.learning_rate": 9.0, "optimizer.rate_for": "run"}),
        (
            *("mlperf-ssd", "NGPU=1 NUMEPOCHS=10 EXTRA_PARAMS='--batch-size=8' DATADIR=/d/ PRETRAINED_DIR=/p"),
            {
                **{"stop.epochs": 10.0, "train.batch_size": 8, "data.root": "/d/coco2017"},
                **{"model.pretrained": "/p/resnet34-333f7ec4.pickle"},
            },
        ),
        ("mlperf-resnet50", ["export DATADIR=/d\n./run_singlenode.sh"], {"train.batch_size": 4, "devices_per_node": 2}),
        ("sc22", ["cd resnet\n./run-resnet.sh"], {"system": "any-4gpu"}),
        ("mlperf-ssd", "SYSTEM=2xC4140 PRETRAINED_DIR=/p DATADIR=/d sbatch -N 2 -n 8 run.slurm", {"system": "2xc4140"}),
    ],
)
def test_translate_line_sets_keys(original: str, line: str | list[str], keys: dict[str, Any]):
    translation = translate_line(original, line)
    assert {key: read_key(translation.config, key) for key in keys} == keys


# Commands


@pytest.mark.parametrize(
    ("original", "line", "command"),
    [
        ("wmlce", "--mode train --results_dir r", "trainstone train resnet50-wmlce * --out r"),
        ("wmlce", "--mode training_benchmark --iter_unit batch --num_iter 30", "trainstone bench * --iterations 30"),
        ("wmlce", "--mode evaluate --data_dir /d", "trainstone eval CHECKPOINT --data /d"),
        ("wmlce", "--mode predict --to_predict 'a b.jpg'", "trainstone eval CHECKPOINT --predict 'a b.jpg'"),
        ("wmlce", "--mode inference_benchmark", "trainstone eval CHECKPOINT --bench"),
        ("tbd", "measure_throughput.sh 5", "trainstone sweep * --set measure.iterations=5 --batch-sizes 1,2,4,8,*,128"),
        ("tbd", "measure_compute_util.sh nvprof", "trainstone sweep * --profile"),
        ("tbd", "measure_compute_util.sh ncu 10 5", "trainstone sweep * --cores"),
        ("tbd", "main.py --train_steps=200 --skip_eval", "trainstone bench resnet50-tbd * --iterations 200"),
        (
            *("tbd", "main.py --profile_step 100 --steps_per_loop=500 --use_synthetic_data"),
            "trainstone profile resnet50-tbd * --start 100 --iterations 200",
        ),
        ("mlperf-resnet50", "PROFILE=1", "trainstone profile *"),
        ("mlperf-resnet50", "SYNTH_DATA=1", "trainstone bench *"),
        ("mlperf-resnet50", "LOGDIR=./log DATADIR=/d CONT=c ./run_with_docker.sh", "trainstone * --runs 5 --out ./log"),
        ("mlperf-ssd", "SYSTEM=DSS8440 LOGDIR=/l CLEAR_CACHES=1", "*dss8440 --set mlperf.clear_caches=true --out /l"),
        ("mlperf-ssd", "NGPU=1 NEXP=3 run_and_time.sh", "trainstone train * --runs 3"),
        ("mlperf-ssd", "ssd_main.py --synthetic --results /out", "trainstone bench ssd300-mlperf * --out /out"),
        ("wmlce", "'--data_dir=$DATA/x' '--results_dir=$(pwd)'", "trainstone train * --set stop.epochs=1.0"),
        ("wmlce", "--data_dir=/x --results_dir '&& rm'", "trainstone train * --out '&& rm'"),
    ],
)
def test_translate_line_gives_command(original: str, line: str, command: str):
    assert fnmatch.fnmatchcase(translate_line(original, line).command, command)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("scripts/datasets/prepare-json.py /d/coco/annotations/a.json b.json -k", "data coco --from /d/coco --to *"),
        ("prepare-json.py --keep-keys /d/coco/annotations/a.json b", "data coco --from /d/coco --to /d/coco-checked"),
        ("prepare-json.py ../annotations/a.json b.json", "data coco --from COCO --to COCO-checked"),
        ("create_tfrecord.py -i /d/coco/train2017 -o /r/train", "data convert /d/coco /r --format tfrecord"),
        (
            "create_tfrecord.py -i /d/train2017/ -o /d/tf/train -n 8 --ltrb --skip-empty --seed 2020",
            "data convert /d /d-tfrecord --format tfrecord --skip-empty --shuffle --shards 8",
        ),
        (
            "create_tfrecord.sh --dataset-dir '/my data'",
            "data convert '/my data/coco2017' '/my data/coco2017-tfrecord' --format tfrecord --skip-empty --shuffle",
        ),
        ("scripts/get_resnet34_backbone.sh", "weights convert resnet34-333f7ec4.pth resnet34.safetensors"),
        ("scripts/docker/build.sh", "doctor"),
        ("./mll-status 'my logs/a.log' r/*.log | sort", "mlperf summary 'my logs/a.log' r/[*].log"),
        ("mll-status '$(date)'", "mlperf summary '$(date)'"),
    ],
)
def test_translate_ssd_data_scripts_give_command_without_recipe(line: str, command: str):
    translation = translate_line("mlperf-ssd", line)
    assert fnmatch.fnmatchcase(translation.command, f"trainstone {command}")
    assert translation.config is None
    assert all(part.startswith("#") for part in format_recipe_file(translation).splitlines())


def test_translate_runs_on_several_devices_gives_shell_loop():
    translation = translate_line("mlperf-resnet50", [*mlperf_words("dgxa100-8x8"), "NEXP=5", "LOGDIR=my log", "SEED=3"])
    launch = "trainstone launch slurm --nodes 8 --ranks-per-node 8 -- train FILE.toml --out 'my log'"
    assert has(translation, f"for seed in $(seq 3 7); do {launch} --seed $seed; done")
    assert "--runs" not in translation.command + translation.file_command


def test_translate_evaluation_has_command_for_other_weights():
    for line, command, with_file in (
        ("--mode=evaluate --batch_size 64", " --data /d --set eval.batch_size=64", ""),
        ("--mode=predict --to_predict a.jpg", " --predict a.jpg", " --predict a.jpg"),
        ("--mode=inference_benchmark", " --data /d --bench", " --data /d --bench"),
    ):
        translation = translate_line("wmlce", f"{line} --data_dir /d --precision fp16")
        assert translation.command == f"trainstone eval CHECKPOINT{command}"
        assert translation.file_command == f"trainstone eval WEIGHTS --recipe FILE.toml{with_file}"


# Notes and mistakes


@pytest.mark.parametrize(
    ("original", "line", "note"),
    [
        ("wmlce", "", "--batch_size is not given"),
        ("wmlce", "'--data_dir=$DATA/x'", "--data_dir $DATA/x: add --data DIR"),
        ("wmlce", "'mpirun -n $N python main.py'", f"mpirun -n $N python: {HINT}"),
        ("wmlce", DDLRUN, "trainstone launch slurm --nodes 4 --ranks-per-node 4 -- train FILE.toml"),
        ("wmlce", "mpirun -n 4 main.py --mode=training_benchmark", "on 4 devices: trainstone launch local"),
        ("tbd", TBD_LINE, "--batch_size is the sum over all GPUs"),
        (
            "mlperf-resnet50",
            "run_singlenode.sh",
            "gives 0.52; use trainstone train resnet50-mlperf --system backendai-1x2",
        ),
        ("mlperf-resnet50", "'SEED=$RANDOM'", "SEED=$RANDOM: ignored"),
        ("mlperf-resnet50", "OPTIMIZER=sgdwfastlarsv2 E2E_CUDA_GRAPHS=1", "CUDA graphs: off with LARS"),
        ("mlperf-ssd", "ssd_main.py", "--pretrained-backbone is not given"),
        ("mlperf-resnet50", "MXNET_A=1 LR=1", "MXNET_A=1: setting of MXNet's engine"),
        *(
            (
                "mlperf-ssd",
                f"ssd_main.py {flag.old} {'' if flag.kind == 'switch' else flag.default or '1'}",
                flag.remark,
            )
            for flag in read_table("mlperf-ssd")
            if flag.old.startswith("--") and not flag.equivalent
        ),
    ],
)
def test_translate_line_has_note(original: str, line: str, note: str):
    assert has(translate_line(original, line if "|" not in line else [line]), note)


@pytest.mark.parametrize(
    ("original", "line", "seen"),
    [
        ("wmlc", "", "did you mean wmlce"),
        ("wmlce", "--use_tf_amp --precision=fp16", "--use_tf_amp"),
        ("wmlce", "--batch_size=-1", "train.batch_size = -1"),
        ("wmlce", "mpirun -n 99999999999999999999 python main.py", "at most 100,000"),
        ("wmlce", "'python main.py --batch_size=$BS'", "'$BS'"),
        ("wmlce", "--bach_size 7 --bogus=1", "--bach_size, did you mean --batch_size?; unknown flag --bogus"),
        ("wmlce", "--use_xla=maybe", "'maybe': expected true or false"),
        ("wmlce", "--batch_size", "--batch_size: expected one argument"),
        ("wmlce", f"--batch_size {'9' * 30}", "--batch_size"),
        ("wmlce", f"--batch_size {'1' * 5000}", "--batch_size"),
        ("wmlce", ["mkdir -p logs\neval $CMD"], "mkdir -p logs"),
        ("wmlce", ["main.py --a 'x"], "no closing quotation"),
        ("wmlce", ["a " * 1_000_001], "2,000,002 characters"),
        ("wmlce", "sbatch -N4 no.sh", "no.sh"),
        ("wmlce", "sbatch binary.sh", "cannot read binary.sh"),
        ("wmlce", ["A=aaaaaaaaaaaaaaaa\n" + "A=$A$A\n" * 60 + "main.py $A"], "characters"),
        ("tbd", "--num_gpu 2", "--num_gpu, did you mean --num_gpus"),
        ("sc22", "", "--kfac-update-freq=100"),
        ("sc22", "--kfac-update-freq 0 --momentum 7", "optimizer.momentum = 7"),
        ("sc22", "run-resnet-multi.sh 1 999999999", "at most 100,000"),
        ("sc22", "'python torch_imagenet_resnet.py $KWARGS'", "$KWARGS"),
        ("tbd", "measure_compute_util.sh nsys", "nvprof|ncu"),
        ("tbd", "measure_throughput.sh 1 2", "[STOP]"),
        ("tbd", "--batch_size=32 --num_gpus=3", "3 devices"),
        ("tbd", "--num_gpus=-1", "--num_gpus=-1"),
        ("tbd", "--dtype=fp16 --loss_scale=nan", "train.loss_scale"),
        ("mlperf-resnet50", "NETWORK=resnet-v2", "'resnet-v2': expected one of resnet-v1b, resnet-v1b-fl"),
        ("mlperf-resnet50", "LRSCHED=cosine", "cosine"),
        ("mlperf-resnet50", "BATCHSIZ=4", "BATCHSIZ, did you mean BATCHSIZE"),
        ("mlperf-resnet50", "--image-shape 3,224,200", "3,224,200"),
        ("mlperf-resnet50", "EVAL_OFFSET=9", "eval.offset = 9"),
        ("mlperf-resnet50", "DGXNGPU=0", "DGXNGPU=0"),
        ("mlperf-resnet50", "source config_A30.sh", "config_A30.sh"),
        ("mlperf-resnet50", ["if true; then export LR=5; fi\n./run_and_time.sh"], "LR: invalid value '$LR'"),
        ("mlperf-resnet50", "LR=`rm`", "LR: invalid value '`rm`'"),
        ("mlperf-ssd", "ssd_main.py --lr-warmup 5", "could match --lr-warmup-epochs, --lr-warmup-factor"),
        ("mlperf-ssd", "ssd_main.py --resume-from a --pretrained-backbone b", "--resume-from"),
        ("mlperf-ssd", "ssd_main.py --lr-decay-epochs --async-val", "--lr-decay-epochs: expected at least one"),
        ("mlperf-ssd", "SYSTEM=C9999", "config_C9999.sh"),
        ("mlperf-ssd", "NGPU=0", "NGPU=0"),
        ("mlperf-ssd", "'EXTRA_PARAMS=$(date)' NGPU=4", "$(date)"),
        ("mlperf-ssd", "create_tfrecord.py -q 5", "-q"),
    ],
)
def test_translate_invalid_line_raises_config_error(original: str, line: str | list[str], seen: str):
    Path("binary.sh").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError) as err:
        translate_line(original, line)
    assert seen in err.value.message
    assert err.value.exit_code == 2
    if seen in ("'$BS'", "$KWARGS"):
        assert err.value.hint == HINT


# Parsing


CONFIG = """
echo "config RUNNING"
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
## a comment that isn't closed
export LR="10.5"   # the rate
BATCHSIZE=408
export NUMEPOCHS=${NUMEPOCHS:-"37"} A=1 B='2 3'; C=$LR
ARGS=""
ARGS+="--a $BATCHSIZE "
ARGS+=--b
export SYSTEM=$(basename $(readlink -f ${BASH_SOURCE[0]}) | sed 's/^config_//' )
export OS=$(
    rm -rf nothing || true
)
export EMPTY=
"""


@pytest.mark.parametrize(
    ("words", "before", "after"),
    [
        (["bede-ddlrun", "python", "/opt/a b/main.py", "--x", "1"], "bede-ddlrun python", "--x 1"),
        (["main.py", "\\", "--x", " ", "1"], "", "--x 1"),
        (["mpirun -n 4 python main.py \\\n --x='a' \\\r\n --y \"1\"  # why"], "mpirun -n 4 python", "--x=a --y 1"),
        (["#!/bin/sh\n#SBATCH -N4 # n\nmodule load x\nmain.py --a 1\n\n-b=2\n"], "-N4", "--a 1 -b=2"),
        (["main.py --a 1 2>&1 | tee x"], "", "--a 1"),
        (["main.py --a 1 > x.log && python other.py --b"], "", "--a 1"),
        (["A=4\nK='--a $A '\nK+=--b\nrun -n ${A} main.py $K ${M:-5} $O"], "run -n 4", "--a 4 --b 5 $O"),
        (["N=3\nN=$(date)\nmain.py $N"], "", "$N"),
    ],
)
def test_read_line_splits_launcher_program_and_arguments(words: list[str], before: str, after: str):
    line = read_line(words, PROGRAM)
    assert (line.launcher, line.after, line.program) == (before.split(), after.split(), "main.py")


@pytest.mark.parametrize("form", ["config.sh", "source config.sh; true", "sbatch -N2 config.sh", CONFIG])
def test_read_line_reads_variables_of_sourced_files(form: str):
    Path("config_common.sh").write_text("set -e\nexport NGPU=8\nexport LR=1\nsource ./config.sh\n")
    Path("config.sh").write_text(CONFIG)
    line = read_line([form], PROGRAM)
    expected = {"NGPU": "8", "LR": "10.5", "NUMEPOCHS": "37", "A": "1", "B": "2 3", "C": "10.5", "EMPTY": ""}
    expected |= {"ARGS": "--a 408 --b", "BATCHSIZE": "408"}
    assert {name: value for name, value in line.values.items() if "$" not in value} == expected
    assert not line.typed
    assert not Path("nothing").exists()


def test_read_line_command_line_beats_script_and_sourced_file_beats_command_line():
    Path("config.sh").write_text("source no.sh\nLR=10\nexport EPOCHS=${EPOCHS:-37}\n")
    line = read_line(["LR=2", "export", "EPOCHS=4", "config.sh"], PROGRAM)
    assert line.values == {"LR": "2", "EPOCHS": "4"}
    assert "no.sh" in "".join(line.notes)
    sourced = read_line(["LR=2; EPOCHS=4; source config.sh; A=1"], PROGRAM)
    assert sourced.values == {"LR": "10", "EPOCHS": "4", "A": "1"}


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ("mpirun --allow-run-as-root --bind-to none --np 2", Geometry(None, None, 2)),
        ("mpirun -np 8 -N 4", Geometry(2, 4, 8)),
        ("horovodrun -H ip1:2,ip2:2 -np 4", Geometry(2, 2, 4)),
        ("python -m torch.distributed.launch --nproc_per_node=4", Geometry(None, 4, None)),
        ("torchrun --nnodes 2 --nproc-per-node 4", Geometry(2, 4, None)),
        ("-N4 --gres=gpu:v100:4 sbatch -N 2", Geometry(2, 4, None)),
        ("srun --ntasks=16 --nodes=4", Geometry(4, 4, 16)),
        ("mpirun -n 8 -x 'DDL_OPTIONS=-mode p:4x2x1x1 '", Geometry(2, 4, 8)),
        ("ddlrun -H host1,host2,host3,host4 python", Geometry(4, 4, None)),
        ("-N4 bede-ddlrun python", Geometry(4, 4, None)),
        ("mpirun -n many --nodes= -np 0", Geometry()),
    ],
)
def test_read_launcher_returns_geometry(words: str, seen: Geometry):
    assert read_launcher(" ".join(shlex.split(words))) == seen


# File and command


LINES = [
    ("wmlce", WMLCE),
    ("wmlce", [WMLCE_JOB]),
    ("wmlce", ["--use_dali", "--data_dir=/with space/'quote", "--iter_unit=batch", "--num_iter=5"]),
    ("sc22", SC22),
    ("sc22", ["run-resnet-single.sh", "1"]),
    ("tbd", ["measure_throughput.sh"]),
    ("tbd", ["--num_gpus=0", "--dtype=bf16", "--use_synthetic_data"]),
    ("mlperf-resnet50", mlperf_words("dgxa100-527x8")),
    ("mlperf-resnet50", ["LRSCHED=10,20", "SYNTH_DATA=1", "NUMEXAMPLES=5000"]),
    ("mlperf-ssd", ssd_program("4xc4140")),
    ("mlperf-ssd", ["train_mlperf_dgx1_gbn4_nhwc_amp.sh"]),
    ("mlperf-ssd", ["SYSTEM=DSS8440", "NEXP=2", "LOGDIR=/l", "CLEAR_CACHES=0"]),
    ("mlperf-ssd", ["ssd_main.py", "--synthetic", "--val-epochs", "5", "9"]),
]


def run_command(command: str) -> Config:
    """Load the configuration of a command: recipe, --system, short flags, each --set."""
    params = parse_command(command)
    steps = "measure.iterations" if command.startswith("trainstone bench") else "stop.steps"
    keys = {"data": "data.root", "seed": "seed", "device": "device", "iterations": steps}
    flags = {key: params[name] for name, key in keys.items() if params.get(name) is not None}
    if "data.root" in flags:
        flags |= {"data.root": str(flags["data.root"]), "data.source": "files"}
    return load_config(params["recipe"], system=params["system"], flags=flags, settings=params["settings"])


@pytest.mark.parametrize(("original", "words"), LINES)
def test_translate_file_and_command_give_same_config(original: str, words: list[str]):
    translation = translate_line(original, words)
    Path("mine.toml").write_text(format_recipe_file(translation))
    assert load_config("./mine.toml") == translation.config
    assert run_command(translation.command) == translation.config


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("--batch_size"), st.integers(1, 512).map(str)),
            st.tuples(st.just("--lr_init"), st.floats(0.001, 10).map(str)),
            st.tuples(st.sampled_from(["--use_dali", "--use_xla", "--use_cosine_lr", "--nouse_xla"])),
            st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="$`\0")).map("--data_dir=/a".__add__)),
            st.tuples(st.just("--mode"), st.sampled_from(["train", "training_benchmark"])),
        )
    )
)
def test_translate_random_flags_command_gives_same_config(parts: list[tuple[str, ...]]):
    translation = translate("wmlce", ["main.py", *(word for part in parts for word in part)])
    assert run_command(translation.command) == translation.config
    assert tomllib.loads(format_recipe_file(translation))["name"] == "resnet50-wmlce"


def test_format_recipe_file_contains_defects():
    Path("mine.toml").write_text(format_recipe_file(translate_line("wmlce", WMLCE)))
    right, wrong = (load_config("./mine.toml", settings=more) for more in ([], ["original_defects=true"]))
    assert (right.schedule.warm_up_offset, wrong.schedule.warm_up_offset, wrong.eval.drop_last) == (True, False, True)


def test_format_recipe_file_hostile_text_stays_in_comment():
    text = "--batch_size 4 # \x1b[31m\n# name = 'x'\r\u2028b = 1"
    for words in ([f"--export_dir={HOSTILE}", "--batch_size", "4"], [text]):
        with suppress(ConfigError):
            text = format_recipe_file(translate_line("wmlce", words))
            assert not hidden(text)
            assert tomllib.loads(text)["name"] == "resnet50-wmlce"
            assert "b" not in tomllib.loads(text)


PIECES = ["main.py", "run_and_time.sh", "--batch_size", "4", "\n", ";", "&&", "$(", ")", "'", '"', "LR=1", "#", "|"]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(ORIGINALS)), st.lists(st.sampled_from([*PIECES, HOSTILE, "source x", "A+=$A", "-p", "> x"]))
)
def test_translate_random_text_is_translated_or_config_error(original: str, pieces: list[str]):
    for words in ([" ".join(pieces)], pieces):
        with suppress(ConfigError):
            assert format_recipe_file(translate(original, words))


@pytest.mark.parametrize("original", ORIGINALS)
def test_read_table_every_flag_has_key_or_remark(original: str):
    table = read_table(original)
    assert len({flag.old for flag in table}) == len(table)
    known = {row[0] for row in list_keys()}
    for flag in table:
        assert flag.equivalent or flag.remark, flag
        for name in flag.equivalent.split("`")[1::2]:
            assert name in known or name.startswith("--") or " " in name or name in ("bench", "profile"), flag
