"""Each original's own line is the shipped recipe; single flags change single keys."""

import shlex
from typing import Any

import pytest

from old_lines import MLPERF_PROGRAM, MLPERF_SYSTEMS, SC22, WMLCE, WMLCE_JOB, mlperf_words
from trainstone.config.load import load_config
from trainstone.config.old.told import Told, read_key, tell_old
from trainstone.errors import ConfigError


def values(told: Told, *keys: str) -> list[Any]:
    return [read_key(told.config, key) for key in keys]


def changed(original: str, base: str, *flags: str) -> dict[str, Any]:
    """What flags change of what a line without them is."""
    before, after = (tell_old(original, [*base.split(), *more]).config.model_dump() for more in ((), flags))
    found = {}
    for key, value in after.items():
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": v for inner, v in value.items() if v != before[key][inner]}
        elif value != before[key]:
            found[key] = value
    found.pop("train.adapt", None)  # what is asked for is not adapted
    return found


# wmlce


def test_wmlce_script_is_the_recipe_but_for_the_compiler():
    told = tell_old("wmlce", WMLCE)
    flags = {"data.root": "/data/TFRecords", "data.source": "files", "engine.compile": True}
    assert told.config == load_config("resnet50-wmlce", flags=flags)
    assert told.command == (
        "trainstone train resnet50-wmlce --set engine.compile=true --data /data/TFRecords --out run_results"
    )


def test_wmlce_job_script_is_the_system():
    told = tell_old("wmlce", [WMLCE_JOB])
    flags = {"data.root": "/data/my pictures", "data.source": "files"}
    assert told.config == load_config("resnet50-wmlce", system="bede-4x4", flags=flags)
    assert told.command == (
        "trainstone train resnet50-wmlce --system bede-4x4 --data '/data/my pictures' --out run_results"
    )
    assert any("on 4 x 4 devices" in note for note in told.notes)


def test_wmlce_defaults_are_the_programs():
    told = tell_old("wmlce", [])
    assert values(told, "train.batch_size", "optimizer.learning_rate", "schedule.warm_up_epochs", "stop.epochs") == [
        *("auto", 0.1, 5.0, 1.0)
    ]
    assert values(told, "optimizer.weight_decay", "optimizer.momentum", "train.precision") == [1e-4, 0.9, "fp32"]
    assert values(told, "schedule.name", "schedule.decay_epochs", "train.label_smoothing") == [
        *("steps", [30.0, 60.0, 80.0, 90.0], 0.0)
    ]
    assert "--batch_size is not given: auto, what fits this device" in told.notes
    assert "--data_dir is not given: give --data DIR" in told.notes


@pytest.mark.parametrize(
    ("mode", "command"),
    [
        ("train", "trainstone train resnet50-wmlce"),
        ("training_benchmark --iter_unit batch --num_iter 300", "trainstone bench resnet50-wmlce"),
        ("evaluate --data_dir /d", "trainstone eval CHECKPOINT --data /d"),
        ("predict --to_predict 'a b.jpg'", "trainstone eval CHECKPOINT --predict 'a b.jpg'"),
        ("inference_benchmark", "trainstone eval CHECKPOINT --bench"),
    ],
)
def test_wmlce_modes_are_verbs(mode: str, command: str):
    told = tell_old("wmlce", [f"main.py --mode {mode} --results_dir r"])
    assert told.command.startswith(command)
    assert told.command.endswith("--out r") or "eval" in told.command


def test_wmlce_batches_as_unit_are_iterations_of_a_schedule_of_ninety_epochs():
    line = ["--iter_unit=batch", "--num_iter=300"]
    assert values(tell_old("wmlce", line), "stop.steps", "stop.epochs") == [300, 90.0]
    told = tell_old("wmlce", [*line, "--mode=training_benchmark"])
    assert values(told, "measure.iterations") == [300]
    assert "--iterations 300" in told.command
    epochs = tell_old("wmlce", ["--num_iter=2", "--mode=training_benchmark"])
    assert values(epochs, "measure.max_epochs", "measure.iterations") == [2, None]


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ("--lr_init 0.5", {"optimizer.learning_rate": 0.5}),
        ("--seed 7", {"seed": 7}),
        ("--mixup=0.2", {"train.mixup": 0.2}),
        ("--display_every 5", {"original.every_steps": 5}),
        ("--data_format=NCHW", {"engine.channels_last": False}),
        ("--gpu_id 2", {"device": "cuda:2"}),
        ("--gpu_memory_fraction 0.9", {}),
        ("--warmup_steps=7", {"original.warm_up_steps": 7}),
        ("--use_tf_amp", {"train.precision": "fp16", "train.loss_scale": "dynamic"}),
        ("--precision fp16 --use_static_loss_scaling", {"train.precision": "fp16", "train.loss_scale": 256.0}),
        (
            "--use_dali",
            {
                "loader.engine": "dali",
                "augment.crop": "area",
                "augment.area": (0.1, 1.0),
                "augment.aspect": (0.8, 1.25),
                "augment.normalise": "wmlce_dali",
            },
        ),
    ],
)
def test_wmlce_flags_change_their_keys(flags: str, keys: dict[str, Any]):
    assert changed("wmlce", "--batch_size=64", *flags.split()) == keys


def test_wmlce_amp_and_fp16_exclude_each_other():
    with pytest.raises(ConfigError, match="--use_tf_amp and --precision=fp16 exclude each other"):
        tell_old("wmlce", ["--use_tf_amp", "--precision=fp16"])


def test_wmlce_idle_flags_say_why():
    told = tell_old("wmlce", ["--gpu_memory_fraction=0.7", "--model_dir", "m"])
    assert "--gpu_memory_fraction=0.7: torch takes what it needs" in told.notes


def test_an_interpreter_is_not_worth_a_word():
    assert not tell_old("wmlce", shlex.split("/usr/bin/python3 -u main.py --batch_size=4 --data_dir=/d")).notes
    assert tell_old("wmlce", shlex.split("OMP_NUM_THREADS=1 python main.py --batch_size=4 --data_dir=/d")).notes


def test_a_path_of_the_shell_is_not_taken_for_a_path():
    told = tell_old("wmlce", ["--data_dir=$DATA/x", "--results_dir=$(pwd)"])
    assert told.config.data.root is None
    assert "--data_dir $DATA/x: no shell reads this, so give --data DIR" in told.notes
    assert "--out" not in told.command


# sc22


def test_sc22_script_is_the_recipe():
    told = tell_old("sc22", SC22)
    assert told.config == load_config("resnet50-sc22", system="any-4gpu")
    assert told.command == "trainstone bench resnet50-sc22 --system any-4gpu"
    assert told.config == tell_old("sc22", ["./run-resnet.sh"]).config


def test_sc22_other_scripts():
    single = tell_old("sc22", ["run-resnet-single.sh", "2", "5"])
    assert values(single, "train.batch_size", "device", "devices_per_node") == [16, "cuda:2", 1]
    multi = tell_old("sc22", ["run-resnet-multi.sh", "1", "2", "48"])
    assert values(multi, "train.batch_size", "nodes", "devices_per_node") == [48, 2, 3]
    with pytest.raises(ConfigError, match="it takes RUN NODES BATCH"):
        tell_old("sc22", ["run-resnet-multi.sh", "one"])


def test_sc22_defaults_are_the_programs():
    told = tell_old("sc22", ["--kfac-update-freq", "0"])
    assert values(told, "train.batch_size", "optimizer.learning_rate", "schedule.decay_epochs", "seed") == [
        *(32, 0.0125, [25.0, 35.0, 40.0, 45.0, 50.0], 42)
    ]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], "--kfac-update-freq is 100 unless it is given"),
        (["--kfac-update-freq", "500", "--damping=0.1"], "--kfac-update-freq=500, --damping=0.1"),
    ],
)
def test_sc22_kfac_is_refused_while_it_is_on(flags: list[str], named: str):
    with pytest.raises(ConfigError, match=named):
        tell_old("sc22", flags)


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ("--model resnet152", {"model.depth": 152}),
        ("--fp16", {"train.precision": "fp16"}),
        ("--batches-per-allreduce 4", {"train.accumulate": 4, "engine.split_phases": False}),
        ("--no-cuda", {"device": "cpu"}),
        ("--backend gloo", {"parallel.backend": "gloo"}),
        ("--damping 0.5 --skip-layers a b --use-inv-kfac", {}),
        ("--train-dir /d", {"data.root": "/d", "data.source": "files"}),
    ],
)
def test_sc22_flags_change_their_keys(flags: str, keys: dict[str, Any]):
    assert changed("sc22", "--kfac-update-freq 0", *flags.split()) == keys


# tbd


def test_tbd_script_is_the_system():
    told = tell_old("tbd", ["run_train.sh"])
    assert told.config == load_config("resnet50-tbd", system="tbd-4gpu")
    line = "run_train.sh --batch_size=384 --num_gpus 4 --dtype=fp32 --train_epochs=90 -data_dir=/d --steps_per_loop 100"
    spelled = tell_old("tbd", line.split())
    assert spelled.command == "trainstone train resnet50-tbd --system tbd-4gpu --data /d"


def test_tbd_measurements_are_sweeps():
    told = tell_old("tbd", ["measure_throughput.sh", "500"])
    assert told.command == (
        "trainstone sweep resnet50-tbd --set measure.iterations=500 --batch-sizes 1,2,4,8,16,32,64,96,128"
    )
    assert tell_old("tbd", ["sh", "./measure_throughput.sh"]).config.measure.iterations == 1000
    assert tell_old("tbd", ["measure_compute_util.sh", "nvprof"]).command.endswith(",128 --profile")
    assert tell_old("tbd", ["measure_compute_util.sh", "ncu", "10", "5"]).command.endswith(",128 --cores")
    for wrong in (
        ["measure_compute_util.sh", "nsys"],
        ["measure_throughput.sh", "1", "2"],
        ["measure_throughput.sh", "x"],
    ):
        with pytest.raises(ConfigError, match="it takes"):
            tell_old("tbd", wrong)


def test_tbd_defaults_are_the_programs():
    told = tell_old("tbd", ["--data_dir=/d"])
    assert told.config == load_config(
        "resnet50-tbd", flags={"stop.epochs": 1.0, "data.root": "/d", "data.source": "files"}
    )


def test_tbd_a_line_that_judges_nothing_is_a_bench():
    told = tell_old(
        "tbd", shlex.split("main.py --num_gpus=1 --batch_size=64 --train_steps=200 --skip_eval --log_steps=50")
    )
    assert told.command == (
        "trainstone bench resnet50-tbd --set train.batch_size=64 --set original.every_steps=50 --set stop.epochs=1.0 "
        "--iterations 200"
    )
    profiled = tell_old("tbd", shlex.split("main.py --profile_step 100 --steps_per_loop=500 --use_synthetic_data"))
    assert profiled.command.startswith("trainstone profile resnet50-tbd")
    assert "--start 100 --iterations 200" in profiled.command


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ("--dtype=fp16", {"train.precision": "fp16", "train.loss_scale": 128.0}),
        ("--dtype=fp16 --loss_scale=dynamic", {"train.precision": "fp16"}),
        ("--enable_xla", {"engine.compile": True}),
        ("--enable_xla=true --noenable_xla", {}),
        ("--training_dataset_cache", {"loader.cache": "files"}),
        ("--train_steps 10", {"stop.steps": 10}),
        ("--epochs_between_evals=3", {"eval.every_epochs": 3}),
        ("--num_gpus=2", {"train.batch_size": 16, "devices_per_node": 2}),
        ("--num_gpus=0", {"device": "cpu"}),
        ("--worker_hosts=a:1,b:1 --num_gpus=4", {"train.batch_size": 4, "nodes": 2, "devices_per_node": 4}),
        ("--data_format channels_first", {"engine.channels_last": False}),
        ("--enable_tensorboard", {"tracking.tensorboard": True}),
        ("--clean --nouse_tf_function", {}),
    ],
)
def test_tbd_flags_change_their_keys(flags: str, keys: dict[str, Any]):
    assert changed("tbd", "--data_dir=/d", *flags.split()) == keys


def test_tbd_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match="does not divide among 3 devices"):
        tell_old("tbd", ["--batch_size=32", "--num_gpus=3"])
    with pytest.raises(ConfigError, match="--loss_scale=big: must be a number or dynamic"):
        tell_old("tbd", ["--dtype=fp16", "--loss_scale=big"])


# mlperf-resnet50


@pytest.mark.parametrize("system", MLPERF_SYSTEMS)
def test_mlperf_configurations_are_the_systems(system: str):
    told = tell_old("mlperf-resnet50", mlperf_words(system))
    assert told.config == load_config("resnet50-mlperf", system=system)
    assert told.command == f"trainstone train resnet50-mlperf --system {system}"


def test_mlperf_lines_of_exports_are_words():
    text = "".join(f'export {word.replace("=", "=" + chr(34))}"   # why\n' for word in mlperf_words("a30-1x2"))
    assert tell_old("mlperf-resnet50", [text]).config == load_config("resnet50-mlperf", system="a30-1x2")


def test_mlperf_ranks_of_mpirun_are_devices():
    words = [word for word in mlperf_words("dgxa100") if not word.startswith("DGX")]
    told = tell_old("mlperf-resnet50", [*words, *shlex.split("mpirun --bind-to none --np 8 ./run_and_time.sh")])
    assert told.config == load_config("resnet50-mlperf", system="dgxa100")


def test_mlperf_program_line_is_the_system():
    told = tell_old("mlperf-resnet50", [*MLPERF_PROGRAM, "--data-train", "/d/train.rec"])
    flags = {"data.root": "/d", "data.source": "files"}
    assert told.config == load_config("resnet50-mlperf", system="dgxa100", flags=flags)


def test_mlperf_without_devices_is_the_recipe():
    words = [word for word in mlperf_words("dgxa100") if not word.startswith("DGX")]
    assert tell_old("mlperf-resnet50", words).config == load_config("resnet50-mlperf")
    other = tell_old("mlperf-resnet50", [*words, "LR=9"])
    assert values(other, "optimizer.learning_rate", "optimizer.rate_for") == [9.0, "run"]


def test_mlperf_defaults_are_those_of_run_and_time():
    told = tell_old("mlperf-resnet50", [])
    assert values(told, "optimizer.name", "train.batch_size", "optimizer.learning_rate", "stop.epochs") == [
        *("sgd", 1664, 0.6, 90.0)
    ]
    assert values(told, "schedule.name", "schedule.decay_epochs", "schedule.warm_up_epochs") == [
        *("steps", [30.0, 60.0, 80.0], 5.0)
    ]
    assert values(told, "train.label_smoothing", "optimizer.weight_decay") == [0.0, 1e-4]


def test_mlperf_package_of_backend_ai_keeps_its_rate_and_says_so():
    told = tell_old("mlperf-resnet50", ["source", "run_singlenode.sh"])
    assert values(told, "train.batch_size", "optimizer.learning_rate", "optimizer.rate_for", "devices_per_node") == [
        *(4, 10.5, 8, 2)
    ]
    assert any("gives 0.52: trainstone train resnet50-mlperf --system backendai-1x2" in note for note in told.notes)


def test_mlperf_multinode_knows_its_networks_apart():
    words = "LOGDIR=./log NODENUM=2 GPUPERNODE=1 NETWORK=multinode KEYREPO=./k CONT=c DATADIR=/d ./run_multinode.sh"
    told = tell_old("mlperf-resnet50", words.split())
    assert values(told, "nodes", "devices_per_node", "data.root") == [2, 1, "/d"]
    assert told.command.endswith("--out ./log")
    with pytest.raises(ConfigError, match="NETWORK=resnet-v2: it is resnet-v1b, resnet-v1b-fl"):
        tell_old("mlperf-resnet50", ["NETWORK=resnet-v2"])


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("NUMEXAMPLES=100000", {"schedule.pictures": 100000}),
        ("BN_GROUP=4", {"parallel.bn_ranks": 4}),
        ("SEED=7", {"seed": 7}),
        ("CLEAR_CACHES=1", {"mlperf.clear_caches": True}),
        ("TIME_TAGS=1", {"engine.split_phases": True, "stop.epochs": 4.0, "schedule.warm_up_epochs": 2.0}),
        ("NVTX_FLAG=1", {"engine.nvtx": True, "stop.epochs": 4.0, "schedule.warm_up_epochs": 2.0}),
        ("DALI_THREADS=9 HOROVOD_CYCLE_TIME=1", {}),
        ("LRSCHED=30,60", {"schedule.decay_epochs": (30.0, 60.0)}),
    ],
)
def test_mlperf_variables_change_their_keys(words: str, keys: dict[str, Any]):
    assert changed("mlperf-resnet50", "LR=0.6", *words.split()) == keys


def test_mlperf_verbs():
    synthetic = tell_old("mlperf-resnet50", [*mlperf_words("dgxa100"), "SYNTH_DATA=1"])
    assert synthetic.command == "trainstone bench resnet50-mlperf --system dgxa100"
    five = tell_old("mlperf-resnet50", shlex.split("DGXSYSTEM=DGXA100 CONT=c DATADIR=/d ./run_with_docker.sh"))
    assert "--runs 5" in five.command
    assert tell_old("mlperf-resnet50", ["PROFILE=1"]).verb == "profile"


def test_mlperf_what_a_shell_would_compute():
    told = tell_old("mlperf-resnet50", ["SEED=$RANDOM", "WALLTIME=$((3*8))"])
    assert "SEED=$RANDOM: the recipe's seed is kept; --seed N, or --runs N for several" in told.notes
    with pytest.raises(ConfigError, match=r"none is started: LR=`rm`"):
        tell_old("mlperf-resnet50", ["LR=`rm`"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("LRSCHED=cosine", "it is pow2 or a list of epochs"),
        ("OPTIMIZER=adam", "it is sgd, sgdwlars, sgdwfastlars or sgdwfastlarsv2"),
        ("BATCHSIZ=4 LRR=1", "unknown variable BATCHSIZ, did you mean BATCHSIZE.; unknown variable LRR"),
        ("--image-shape 3,224,200", "a square"),
        ("--num-layer 20", "--num-layers=20: it is 18, 34, 50, 101 or 152"),
        ("EVAL_OFFSET=9", "eval.offset = 9 must be less than eval.every_epochs = 4"),
        ("BATCHSIZE=0", "train.batch_size"),
    ],
)
def test_mlperf_wrong_values_say_what_is_allowed(words: str, why: str):
    with pytest.raises(ConfigError, match=why):
        tell_old("mlperf-resnet50", words.split())
