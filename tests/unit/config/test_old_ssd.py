"""Lines, variables and scripts of MLPerf's SSD: its own are the shipped systems; single flags change single keys."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from hostile import EVIL, hidden
from old_lines import SSD_EXTRA, SSD_GEOMETRY, SSD_NAMES, ssd_config, ssd_program
from parsed_command import parse_command, parse_told
from trainstone.config.load import load_config
from trainstone.config.old.ssd_flags import FLAGS
from trainstone.config.old.told import Told, read_key, tell_old, write_file
from trainstone.errors import ConfigError

PRETRAINED = "/pretrained/mxnet/resnet34-333f7ec4.pickle"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tell(line: str | list[str]) -> Told:
    told = tell_old("mlperf-ssd", shlex.split(line) if isinstance(line, str) else line)
    parse_told(told)
    return told


def changed(*flags: str) -> dict[str, Any]:
    """What flags change of what ssd_main.py is without them."""
    before, after = (tell(["ssd_main.py", *more]).config.model_dump() for more in ((), flags))
    found = {}
    for key, value in after.items():
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": v for inner, v in value.items() if v != before[key][inner]}
        elif value != before[key]:
            found[key] = value
    found.pop("train.adapt", None)  # what is asked for is not adapted
    return found


@pytest.mark.parametrize("system", SSD_EXTRA)
def test_the_program_line_of_a_system_is_the_system(system: str):
    flags = {"data.root": "/data/coco2017", "data.source": "files", "model.pretrained": PRETRAINED}
    assert tell(ssd_program(system)).config == load_config("ssd300-mlperf", system=system, flags=flags)


@pytest.mark.parametrize("system", SSD_EXTRA)
def test_variables_of_a_system_are_the_system(system: str):
    told = tell(["SYSTEM=" + SSD_NAMES[system], "DATADIR=/d/", "PRETRAINED_DIR=/p", "LOGDIR=/l"])
    flags = {"data.root": "/d/coco2017", "data.source": "files"}
    flags["model.pretrained"] = "/p/resnet34-333f7ec4.pickle"
    assert told.config == load_config("ssd300-mlperf", system=system, flags=flags)
    assert told.command.endswith("--data /d/coco2017 --out /l")


@pytest.mark.parametrize("system", SSD_EXTRA)
@pytest.mark.parametrize("form", ["file", "text", "named", "sourced"])
def test_the_file_of_a_system_is_the_system(system: str, form: str, here: Path):
    file = f"config_{SSD_NAMES[system]}.sh"
    (here / file).write_text(ssd_config(system))
    words = {
        "file": [f"./{file}"],
        "text": [ssd_config(system)],
        "named": [f"SYSTEM={SSD_NAMES[system]}", "./run_and_time.sh"],
        "sourced": [f"source {file}; ./run_and_time.sh"],
    }[form]
    if form == "text" and system == "2xc4140":
        words = [words[0].replace("NNODES=1", "NNODES=2")]  # the text does not say whose it is
    told = tell(words)
    assert told.config == load_config("ssd300-mlperf", system=system)
    assert any(note.startswith("WALLTIME=") for note in told.notes)
    if system == "2xc4140" and form != "text":
        assert "NNODES=1: config_2xC4140.sh says so by mistake; it ran on 2 nodes" in told.notes


@pytest.mark.parametrize("system", SSD_EXTRA)
@pytest.mark.parametrize(
    "form", ["config_{}.sh", "./config_{}.sh", "source there/config_{}.sh; ./run_and_time.sh", ". 'config_{}.sh'"]
)
@pytest.mark.parametrize("pasted", [False, True])
def test_a_file_that_is_not_here_is_what_dell_s_said(system: str, form: str, pasted: bool):
    line = form.format(SSD_NAMES[system])
    told = tell([line] if pasted else shlex.split(line))
    assert told.config == load_config("ssd300-mlperf", system=system)
    assert any(note.startswith(f"config_{SSD_NAMES[system]}.sh: as Dell EMC's") for note in told.notes)


@pytest.mark.parametrize(("short", "system"), [("4xC4140", "4xc4140"), ("DGX1", "dgx1"), ("DGXA100", "dgxa100")])
def test_short_names_of_systems(short: str, system: str):
    assert tell(f"config_{short}.sh").config == load_config("ssd300-mlperf", system=system)


def test_a_word_that_is_nothing_is_answered_with_the_own_program():
    with pytest.raises(ConfigError) as err:
        tell("NGPU=4 strange")
    assert err.value.hint is not None
    assert err.value.hint.endswith("flags of ssd_main.py")


def test_a_tar_file_of_the_pictures_is_told(here: Path):
    text = f'# from a tar file\nexport CREATE_TMP_FILE_FROM="/far/coco2017.tar"\n\n{ssd_config("dgxa100")}'
    (here / "config_DGXA100_1x8x114.sh").write_text(text)
    for line in ("config_DGXA100_1x8x114.sh", "SYSTEM=DGXA100_1x8x114 run_and_time.sh"):
        told = tell(line)
        assert told.config == load_config("ssd300-mlperf", system="dgxa100")
        assert "CREATE_TMP_FILE_FROM=/far/coco2017.tar: data is read where it lies: `--data`" in told.notes


def test_what_goes_on_does_not_begin_with_random_weights():
    notes = tell("ssd_main.py --resume-from a.params").notes
    assert not [note for note in notes if "random" in note]
    assert any(note.startswith("--resume-from=a.params: `train --resume RUN`") for note in notes)


def test_no_epochs_to_evaluate_after():
    told = tell("ssd_main.py --val-epochs --async-val")
    assert told.config is not None
    assert (told.config.eval.at_epochs, told.config.eval.every_epochs, told.config.eval.async_) == ((), 0, True)
    assert "--val-epochs: no epoch to evaluate after; here the end of the run is" in told.notes
    told = tell("ssd_main.py --val-interval 40 --val-epochs")
    assert told.config is not None
    assert told.config.eval.at_epochs == (40.0, 80.0)
    assert changed("--val-epochs") == {"eval.at_epochs": (), "eval.every_epochs": 0}


def test_the_number_of_nodes_that_sbatch_is_given_counts():
    told = tell("SYSTEM=2xC4140 PRETRAINED_DIR=/p DATADIR=/d sbatch -N 2 -n 8 run.slurm")
    assert told.config.system == "2xc4140"
    assert not [note for note in told.notes if "mistake" in note]
    assert any("5 runs on 2 x 4 devices: for seed in 1 2 3 4 5; do" in note for note in told.notes)


def test_docker_repeats_five_times_and_each_variable_is_told():
    told = tell("SYSTEM=DSS8440 CONT=image DATADIR=/d LOGDIR=/l PRETRAINED_DIR=/p CLEAR_CACHES=1 ./run_with_docker.sh")
    assert "--set mlperf.clear_caches=true" in told.command
    assert any(note.startswith("CONT=image: no container is needed") for note in told.notes)
    assert any("5 runs on 8 devices" in note for note in told.notes)
    alone = tell(
        "NGPU=1 NEXP=3 NUMEPOCHS=10 EXTRA_PARAMS='--batch-size=8' DATADIR=/d PRETRAINED_DIR=/p run_and_time.sh"
    )
    assert "--runs 3" in alone.command
    assert (alone.config.stop.epochs, alone.config.train.batch_size) == (10.0, 8)


@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("precision", ["fp16", "amp"])
def test_scripts_for_a_dgx1(shared: int, layout: str, precision: str):
    batch, warm_up = {1: (128, 2.619685), 2: (64, 1.3098425), 4: (32, 0.65492125)}[shared]
    name = f"train_mlperf_dgx1_{f'gbn{shared}_' if shared > 1 else ''}{layout}_{precision}.sh"
    told = tell(f"bash scripts/train/dgx1/{name}")
    config = told.config
    assert (config.nodes, config.devices_per_node, config.train.batch_size) == (1, 8, batch)
    assert (config.parallel.bn_ranks, config.engine.channels_last) == (shared, layout == "nhwc")
    assert (config.train.precision, config.train.loss_scale) == ("fp16", 128.0 if precision == "fp16" else "dynamic")
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (2.5e-3, 5e-4)
    assert (config.schedule.warm_up_epochs, config.original.every_steps, config.eval.async_) == (warm_up, 20, False)
    assert round(warm_up * 117266 / (8 * batch)) == 300  # cut off it is 299, there and here


def test_a_script_that_is_there_is_read(here: Path):
    (here / "train_mlperf_dgx1_nhwc_amp.sh").write_text(
        "#!/bin/bash\nWARMUP_EPOCHS=1.5 # many\nmpirun -np 2 \\\n    -bind-to none \\\n    -x PATH \\\n"
        "    python ssd_main_async.py \\\n        --batch-size 16 \\\n        --lr-warmup-epoch $WARMUP_EPOCHS\n"
    )
    config = tell("./train_mlperf_dgx1_nhwc_amp.sh").config
    assert (config.devices_per_node, config.train.batch_size, config.schedule.warm_up_epochs) == (2, 16, 1.5)


def test_defaults_are_the_programs():
    told = tell("ssd_main.py")
    keys = {
        **{"train.batch_size": 32, "optimizer.learning_rate": 2.5e-3, "optimizer.rate_for": 32},
        **{"optimizer.weight_decay": 5e-4, "schedule.warm_up_epochs": 0.0, "eval.async": False, "eval.target": 0.23},
        **{"train.precision": "fp16", "train.loss_scale": 128.0, "seed": 1, "loader.threads": "auto"},
    }
    assert {key: read_key(told.config, key) for key in keys} == keys
    assert "--coco-root is not given: give --data DIR" in told.notes
    assert "--pretrained-backbone is not given: it begins with random weights, as there" in told.notes


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ("--batch-size 64", {"train.batch_size": 64}),
        ("--lr 5.84e-3", {"optimizer.learning_rate": 5.84e-3}),
        ("--lr-warmup-epoch 5.25", {"schedule.warm_up_epochs": 5.25}),
        (
            "--lr-warmup-epochs=5.25 --lr-warmup-factor 1",
            {"schedule.warm_up_epochs": 5.25, "schedule.warm_up_from": 0.5},
        ),
        ("--lr-decay-epochs 40 50", {"schedule.decay_epochs": (40.0, 50.0)}),
        ("--lr-decay-factor .2", {"schedule.decay_factor": 0.2}),
        ("--momentum .8", {"optimizer.momentum": 0.8}),
        ("--weight-decay 1e-4", {"optimizer.weight_decay": 1e-4}),
        ("--bn-group 4", {"parallel.bn_ranks": 4}),
        ("--precision FP32", {"train.precision": "fp32"}),
        ("--precision amp", {"train.loss_scale": "dynamic"}),
        ("--fp16-loss-scale 64", {"train.loss_scale": 64.0}),
        ("--data-layout nchw", {"engine.channels_last": False}),
        ("-j 4", {"loader.threads": 4}),
        ("-j4", {"loader.threads": 4}),
        ("--dali-workers=3", {"loader.threads": 3}),
        ("-t 21.2", {"eval.target": 0.212}),
        ("--target-map 20", {"eval.target": 0.2}),
        ("--seed 99", {"seed": 99}),
        ("--epochs 60", {"stop.epochs": 60.0}),
        ("--async-val", {"eval.async": True}),
        ("--val-epochs 10 20", {"eval.at_epochs": (10.0, 20.0)}),
        (
            "--val-interval 30",
            {"eval.at_epochs": (30.0, 40.0, 50.0, 55.0, 60.0, 65.0, 70.0, 75.0, 80.0)},
        ),
        ("--eval-batch-size 7", {"eval.batch_size": 7}),
        ("--save-interval 5", {"checkpoint.every_epochs": 5.0}),
        ("--nms-valid-thresh .05", {"detect.min_score": 0.05}),
        ("--nms-overlap-thresh .45", {"detect.nms_overlap": 0.45}),
        ("--nms-topk 400", {"detect.before_nms": 400}),
        ("--nms-topk 400 --post-nms -1", {"detect.before_nms": 400, "detect.max_found": 400}),
        ("--post-nms 100", {"detect.max_found": 100}),
        ("--log-interval 20", {"original.every_steps": 20}),
        ("--pretrained-backbone w.pth", {"model.pretrained": "w.pth"}),
        ("--coco-root /c", {"data.root": "/c", "data.source": "files"}),
        ("--use-tfrecord --tfrecord-root /t", {"data.root": "/t", "data.source": "files"}),
    ],
)
def test_single_flags(flags: str, keys: dict[str, Any]):
    assert changed(*flags.split()) == keys


def test_synthetic_batches_are_measured():
    told = tell("python ssd_main.py --synthetic --batch-size 8 --results /out")
    assert told.command.startswith("trainstone bench ssd300-mlperf ")
    assert told.command.endswith("--out /out")


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if not flag.ours])
def test_every_flag_without_a_meaning_is_told(flag):
    value = [] if flag.kind == "switch" else [(flag.choices or (flag.default or "1",))[0]]
    told = tell(["ssd_main.py", f"--{flag.name}", *value])
    assert any(note.startswith(f"--{flag.name}") and note.endswith(flag.remark) for note in told.notes)


def test_what_was_refused_there_is_said():
    told = tell("ssd_main.py --bn-group 2 --data-layout NCHW")
    assert "--bn-group=2 with NCHW or fp32: refused there; here it is done" in told.notes
    assert told.config.parallel.bn_ranks == 2


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("ssd_main.py --lr-warmup 5", "--lr-warmup may be --lr-warmup-epochs or --lr-warmup-factor"),
        ("ssd_main.py --batchsize 5", "unknown flag --batchsize, did you mean --batch-size?"),
        ("ssd_main.py --precision bf16", "--precision=bf16: it is fp32, fp16 or amp"),
        ("ssd_main.py --data-shape 512", "--data-shape=512: it is 300"),
        ("ssd_main.py --batch-size 0", "--batch-size=0: input should be greater than or equal to 1"),
        ("ssd_main.py --resume-from a --pretrained-backbone b", "--resume-from and --pretrained-backbone exclude each"),
        ("SYSTEM=C9999", "SYSTEM=C9999: there is no config_C9999.sh here"),
        ("SISTEM=C4140", "unknown variable SISTEM, did you mean SYSTEM?"),
        ("NGPU=0", "NGPU=0: must be at least 1"),
        ("EXTRA_PARAMS=$(date) NGPU=4", "only a shell could tell these"),
        ("prepare-json.py one", "prepare-json.py takes IN OUT"),
        ("create_tfrecord.py -q 5", "'-q' is no flag of create_tfrecord"),
        ("create_tfrecord.py -n", "-n: it takes a value"),
        ("create_tfrecord.py -n many", "-n many: must be a whole number of at least 1"),
        ("mll-status -v a.log", "mll-status takes LOG..., not -v"),
        ("ssd_main.py --lr-decay-epochs --async-val", "--lr-decay-epochs: it takes a value"),
        ("config_C9999.sh", "SYSTEM=C9999: there is no config_C9999.sh here"),
        ("SYSTEM=DSS8440 ./config_C4140.sh", "SYSTEM=C4140 and SYSTEM=DSS8440: one system at a time"),
    ],
)
def test_mistakes_are_named(line: str, error: str):
    with pytest.raises(ConfigError) as err:
        tell(line.split() if "$(" in line else line)
    assert error in err.value.message


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "scripts/datasets/prepare-json.py /d/coco/annotations/a.json /d/coco/annotations/b.json -k -p",
            "trainstone data coco --from /d/coco --to /d/coco-checked",
        ),
        (
            "create_tfrecord.py -i /d/coco/train2017 -a x.json -o /r/train -n 1 --ltrb --ratio",
            "trainstone data convert /d/coco /r --format tfrecord",
        ),
        (
            "create_tfrecord.py -i /d/train2017/ -a x -o /d/tf/train -n 8 --ltrb --ratio --skip-empty --seed 2020",
            "trainstone data convert /d /d-tfrecord --format tfrecord --skip-empty --shuffle --shards 8",
        ),
        (
            "create_tfrecord.sh --dataset-dir '/my data'",
            "trainstone data convert '/my data/coco2017' '/my data/coco2017-tfrecord' --format tfrecord "
            "--skip-empty --shuffle",
        ),
        (
            "scripts/get_resnet34_backbone.sh",
            "trainstone weights convert resnet34-333f7ec4.pth resnet34.safetensors",
        ),
        ("scripts/docker/build.sh", "trainstone doctor"),
        ("prepare-json.py instances_val2017.json out.json", "trainstone data coco --from COCO --to COCO-checked"),
        ("prepare-json.py ../annotations/a.json b.json", "trainstone data coco --from COCO --to COCO-checked"),
        (
            "create_tfrecord.py -i train2017 -a x.json -o tf/train --ltrb --ratio",
            "trainstone data convert COCO COCO-tfrecord --format tfrecord",
        ),
        (
            "create_tfrecord.py -i train2017 -o /r/train --ltrb --ratio",
            "trainstone data convert COCO /r --format tfrecord",
        ),
        (
            "create_tfrecord.py -i -d/train2017 -o train --ltrb --ratio",
            "trainstone data convert ./-d ./-d-tfrecord --format tfrecord",
        ),
        ("mll-status a.log", "trainstone mlperf summary a.log"),
        ("./mll-status 'my logs/a.log' 'r s/*.log' | sort", "trainstone mlperf summary 'my logs/a.log' 'r s/'*.log"),
        ("mll-status", "trainstone mlperf summary LOG"),
    ],
)
def test_scripts_that_train_nothing(line: str, command: str):
    told = tell(line)
    assert (told.command, told.config, told.verb) == (command, None, shlex.split(command)[1])
    text = write_file(told)
    assert f"# Command   {command}\n" in text
    assert all(part.startswith("#") for part in text.splitlines())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("data convert --from a --to b", "No such option: --from"),
        ("data convert a", "Missing parameter: target"),
        ("data convert a b c", "unexpected extra argument"),
        ("data convert a b --format tar", "is not one of"),
        ("data converts a b", "there is no data converts"),
        ("launch local --ranks 2 -- trains a", "there is no trains a"),
        ("launch local --ranks 2 -- train a --sed 1", "No such option: --sed"),
    ],
)
def test_a_command_that_is_not_ours_would_be_found(wrong: str, why: str):
    with pytest.raises((AssertionError, typer.BadParameter.__base__)) as err:
        parse_command(f"trainstone {wrong}")
    assert why in str(err.value)


def test_a_hostile_line_stays_a_comment_and_words():
    told = tell(["prepare-json.py", f"/x/{EVIL}/a.json", "b.json"])
    assert not hidden(write_file(told))
    assert f"/{EVIL}" not in told.command or shlex.split(told.command)
    told = tell(["mll-status", "$(date)/*.log", "a'b"])
    assert shlex.split(told.command)[3:] == ["$(date)/*.log", "a'b"]
    assert "'$(date)/'*.log" in told.command


@given(st.sampled_from(sorted(SSD_GEOMETRY)), st.integers(1, 512), st.integers(0, 10**6))
def test_a_system_s_line_with_another_batch_and_seed(system: str, batch: int, seed: int):
    told = tell([*ssd_program(system), f"--batch-size={batch}", "--seed", str(seed)])
    assert (told.config.train.batch_size, told.config.seed) == (batch, seed)
    nodes, each = SSD_GEOMETRY[system]
    assert (told.config.nodes, told.config.devices_per_node) == (nodes, each)
