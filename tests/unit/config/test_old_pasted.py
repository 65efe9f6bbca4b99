"""Whole scripts, pasted or named, and what is said about them."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import EVIL
from old_lines import MLPERF_SYSTEMS, WMLCE_JOB, mlperf_words
from trainstone.config.load import load_config
from trainstone.config.old.told import ORIGINALS, Told, tell_old, write_file
from trainstone.errors import ConfigError

HINT = "no shell is started: give its value, or the script's name"
SC22_SCRIPT = """#!/bin/bash
NGPUS=3
if [ "$MVAPICH" == true ]; then
  LOCAL_RANK=$MV2_COMM_WORLD_RANK
fi
KWARGS=""
KWARGS+="--base-lr 0.05 "
KWARGS+="--batch-size 48 "
#KWARGS+="--kfac-update-freq 500 "
KWARGS+="--kfac-update-freq 0 "
ts=`date '+%s'`
__PREFETCH=off python -m torch.distributed.launch \\
 --nproc_per_node=$NGPUS \\
torch_imagenet_resnet.py $KWARGS > resnet_iterdur_${ts}.txt
echo Completed
"""
TBD_LINE = (
    "python3 main.py --batch_size=384 --dtype=fp32 --use_synthetic_data=false --data_dir=/d --train_epochs=90 "
    "--distribution_strategy multi_worker_mirrored |& tee training.log"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_mlperf(system: str) -> str:
    """Write a configuration and what it sources, as the original has them; return its text."""
    first, *more = mlperf_words(system)
    Path("config_common.sh").write_text(f"export {first}\n")
    head = "source $(dirname ${BASH_SOURCE[0]})/config_common.sh\n## DL params\n"
    end = "export DGXSYSTEM=$(basename $(readlink -f ${BASH_SOURCE[0]}) | sed 's/^config_//' | sed 's/\\.sh$//' )\n"
    text = head + "".join(f'export {word.replace("=", chr(61) + chr(34))}"  # why\n' for word in more) + end
    Path("config_MINE.sh").write_text(text)
    return text


def has(told: Told, *parts: str) -> bool:
    return any(all(part in note for part in parts) for note in told.notes)


@pytest.mark.parametrize("system", MLPERF_SYSTEMS)
def test_the_text_of_a_configuration_is_its_file(system: str):
    text = write_mlperf(system)
    pasted, named = tell_old("mlperf-resnet50", [text]), tell_old("mlperf-resnet50", ["config_MINE.sh"])
    assert pasted.config == named.config == load_config("resnet50-mlperf", system=system)
    assert pasted.notes == named.notes


@pytest.mark.parametrize(
    "words",
    [
        ["source config_MINE.sh; mpirun --np 2 ./run_and_time.sh"],
        [". ./config_MINE.sh\nmpirun --allow-run-as-root --bind-to none --np 2 ./run_and_time.sh"],
        ["source", "config_MINE.sh", "&&", "mpirun", "--np", "2", "./run_and_time.sh"],
        ["source", "config_MINE.sh;", "mpirun", "--np", "2", "./run_and_time.sh"],
        ["config_MINE.sh", "mpirun", "--np", "2", "./run_and_time.sh"],
    ],
)
def test_what_is_sourced_before_the_program_is_read(words: list[str]):
    write_mlperf("a30-1x2")
    told = tell_old("mlperf-resnet50", words)
    assert told.command == "trainstone train resnet50-mlperf --system a30-1x2"


def test_exports_before_the_program_are_read_and_a_missing_file_is_refused():
    exports = "\n".join(f"export {word}" for word in mlperf_words("a30-1x2"))
    told = tell_old("mlperf-resnet50", [f"{exports}\nmpirun --np 2 ./run_and_time.sh"])
    assert told.config == load_config("resnet50-mlperf", system="a30-1x2")
    with pytest.raises(ConfigError, match=r"source config_A30\.sh: there is no such file"):
        tell_old("mlperf-resnet50", ["source config_A30.sh; mpirun --np 2 ./run_and_time.sh"])


def test_several_runs_on_several_devices_are_a_loop():
    told = tell_old("mlperf-resnet50", [*mlperf_words("dgxa100"), "NEXP=5"])
    launch = "trainstone launch local --ranks 8 -- train FILE.toml"
    assert has(told, f"5 runs on 8 devices: for seed in 1 2 3 4 5; do {launch} --seed $seed; done")
    assert "--runs" not in told.command + told.file_command
    many = tell_old("mlperf-resnet50", [*mlperf_words("dgxa100-8x8"), "NEXP=50", "LOGDIR=my log", "SEED=3"])
    launch = "trainstone launch slurm --nodes 8 --ranks-per-node 8 -- train FILE.toml --out 'my log'"
    assert has(many, f"for seed in $(seq 3 52); do {launch} --seed $seed; done")
    alone = tell_old("mlperf-resnet50", ["NEXP=5", "DGXNGPU=1", "DGXNNODES=1"])
    assert alone.file_command == "trainstone train FILE.toml --runs 5"


@pytest.mark.parametrize(
    ("original", "line"),
    [
        ("wmlce", "mpirun -n 4 python main.py --mode=training_benchmark --batch_size=8"),
        ("sc22", "run-resnet.sh"),
        ("tbd", "--skip_eval --num_gpus=4"),
        ("mlperf-resnet50", "SYNTH_DATA=1 DGXNGPU=4"),
    ],
)
def test_bench_says_how_devices_are_measured_together(original: str, line: str):
    told = tell_old(original, line.split())
    assert told.verb == "bench"
    assert has(told, "bench by itself measures one device; the original's 4 worked together:")
    assert has(told, "trainstone launch local --ranks 4 -- bench FILE.toml")


def test_a_script_of_the_study_is_read_where_it_is():
    absent = tell_old("sc22", ["./run-resnet.sh"])
    assert has(absent, "what the study's own script ran")
    Path("run-resnet.sh").write_text(SC22_SCRIPT)
    named = tell_old("sc22", ["./run-resnet.sh"])
    assert named.config == tell_old("sc22", [SC22_SCRIPT]).config
    assert (named.config.train.batch_size, named.config.devices_per_node) == (48, 3)
    assert has(named, "./run-resnet.sh: read as text, not executed")
    Path("run-resnet.sh").write_text("python x.py --kfac-update-freq 0 --batch-size $2 --local_rank $1\n")
    assert tell_old("sc22", ["bash", "run-resnet.sh", "1", "7"]).config.train.batch_size == 7


def test_a_script_of_the_suite_is_read_where_it_is():
    absent = tell_old("tbd", ["run_train.sh"])
    assert has(absent, "what the suite's own script ran")
    Path("run_train.sh").write_text(TBD_LINE.replace("384", "64"))
    assert tell_old("tbd", ["./run_train.sh"]).config.train.batch_size == 64
    assert tell_old("tbd", ["./run_train.sh", "--batch_size=8"]).config.train.batch_size == 8
    assert has(tell_old("tbd", ["measure_throughput.sh"]), "what the suite's own script ran")
    Path("measure_throughput.sh").write_text("for b in 1 2 4; do\n eval $CMD\ndone\n")
    told = tell_old("tbd", ["measure_throughput.sh"])
    assert told.command.endswith("--batch-sizes 1,2,4")
    assert has(told, "the batch sizes of its loop are taken")


def test_the_suites_line_is_the_suites_script():
    told = tell_old("tbd", [TBD_LINE])
    flags = {"data.root": "/d", "data.source": "files"}
    assert told.config == load_config("resnet50-tbd", system="tbd-4gpu", flags=flags)
    assert has(told, "--batch_size=384 is of all GPUs", "give --num_gpus for others")
    other = tell_old("tbd", [TBD_LINE.replace("384", "512")])
    assert (other.config.train.batch_size, other.config.devices_per_node) == (512, 1)
    assert has(other, "--batch_size is of all GPUs; give --num_gpus")


def test_a_job_script_is_read_where_it_is():
    with pytest.raises(ConfigError, match=r"there is no file job\.sh") as told:
        tell_old("wmlce", ["sbatch", "-N4", "job.sh"])
    assert told.value.hint == 'where it lies, give its text: "$(cat job.sh)"'
    Path("job.sh").write_text(WMLCE_JOB)
    pasted = tell_old("wmlce", [WMLCE_JOB])
    assert tell_old("wmlce", ["job.sh"]).config == pasted.config
    assert tell_old("wmlce", ["sbatch -N1 ./job.sh"]).config.system == "bede-1x4"
    Path("job.sh").write_text("echo nothing\n")
    with pytest.raises(ConfigError, match="nothing here starts the program: echo nothing"):
        tell_old("wmlce", ["job.sh"])


@pytest.mark.parametrize(
    ("original", "text", "why"),
    [
        ("sc22", "python torch_imagenet_resnet.py $KWARGS", "'.KWARGS' is no flag of sc22"),
        ("wmlce", "mkdir -p x\npython main.py --batch_size=$BS", "--batch_size=.BS: must be a whole number"),
        ("tbd", 'mkdir -p x\nfor b in 1 2\ndo\nCMD="python a.py $b"\neval $CMD\ndone', "nothing here starts"),
    ],
)
def test_variables_that_nobody_set_are_told(original: str, text: str, why: str):
    with pytest.raises(ConfigError, match=why) as told:
        tell_old(original, [text])
    assert told.value.hint == HINT
    assert "did you mean" not in told.value.message


def test_a_number_of_devices_that_nobody_set_is_told():
    assert has(tell_old("wmlce", ["mpirun -n $N python main.py"]), f"-n $N: {HINT}")


@pytest.mark.parametrize(
    ("line", "command", "with_file"),
    [
        (
            "--mode=evaluate --data_dir /d --batch_size 64 --precision fp16 --num_iter 3",
            "trainstone eval CHECKPOINT --data /d --set eval.batch_size=64",
            "trainstone eval WEIGHTS --recipe FILE.toml",
        ),
        (
            "--mode=predict --to_predict a.jpg --data_dir /d --precision fp16 --num_iter 3",
            "trainstone eval CHECKPOINT --predict a.jpg",
            "trainstone eval WEIGHTS --recipe FILE.toml --predict a.jpg",
        ),
        (
            "--mode=inference_benchmark --precision fp16 --num_iter 3 --data_dir=/d",
            "trainstone eval CHECKPOINT --data /d --bench",
            "trainstone eval WEIGHTS --recipe FILE.toml --data /d --bench",
        ),
    ],
)
def test_evaluation_asks_for_what_it_needs_and_tells_the_rest(line: str, command: str, with_file: str):
    told = tell_old("wmlce", line.split())
    assert (told.command, told.file_command) == (command, with_file)
    assert has(told, "--precision=fp16: the checkpoint's own")
    assert has(told, "--num_iter=3: left out")
    assert "the second for weights of other tools" in write_file(told)


@pytest.mark.parametrize(
    ("original", "line", "why", "recipe"),
    [
        ("wmlce", "--batch_size=-1", "--batch_size=-1: input should be greater", "resnet50-wmlce"),
        ("tbd", "--train_steps=-1", "--train_steps=-1: input should be", "resnet50-tbd"),
        ("sc22", "--kfac-update-freq 0 --momentum 7", "--momentum=7: input should be", "resnet50-sc22"),
        ("mlperf-resnet50", "EVAL_OFFSET=9", "EVAL_OFFSET=9: eval.offset = 9 must be less", "resnet50-mlperf"),
        ("mlperf-resnet50", "--wd=-1", "--wd=-1: input should be", "resnet50-mlperf"),
    ],
)
def test_values_that_the_recipe_refuses_are_named_as_they_were_written(original: str, line: str, why: str, recipe: str):
    with pytest.raises(ConfigError) as told:
        tell_old(original, line.split())
    assert told.value.message.startswith(why)
    assert recipe in told.value.message
    assert told.value.hint == f"`trainstone recipes {recipe}` lists the keys"


@pytest.mark.parametrize(
    ("original", "line", "why"),
    [
        ("mlperf-resnet50", "DGXNGPU=0", "DGXNGPU=0: must be at least 1"),
        ("mlperf-resnet50", "NODENUM=-2 GPUPERNODE=1", "NODENUM=-2: must be at least 1"),
        ("mlperf-resnet50", "DGXNGPU=8000 DGXNNODES=900", "900 x 8,000 devices: must be at most 100,000"),
        ("tbd", "--num_gpus=-1", "--num_gpus=-1: must be at least 0"),
        ("sc22", "run-resnet-multi.sh 1 0", "NODES=0: must be at least 1"),
        ("sc22", "run-resnet-multi.sh 1 999999999999", "devices: must be at most 100,000"),
        ("wmlce", "mpirun -n 99999999999999999999 python main.py", "devices: must be at most 100,000"),
        ("wmlce", "--lr_init=nan", "--lr_init=nan: must be a finite number"),
        ("wmlce", "--batch_size=4.5", "--batch_size=4.5: must be a whole number"),
        ("tbd", "--dtype=fp16 --loss_scale=nan", "--loss_scale=nan: must be a finite number"),
    ],
)
def test_numbers_nobody_has_are_refused(original: str, line: str, why: str):
    with pytest.raises(ConfigError) as told:
        tell_old(original, line.split())
    assert why in told.value.message
    assert told.value.exit_code == 2


PIECES = [
    "main.py",
    "run_and_time.sh",
    "--batch_size",
    "4",
    "\n",
    ";",
    "&&",
    "$(",
    ")",
    "'",
    '"',
    "LR=1",
    "#",
    "|",
    EVIL,
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(ORIGINALS)), st.lists(st.sampled_from([*PIECES, "source x", "A+=$A", "-p", "> x"])))
def test_any_text_is_read_or_refused(original: str, pieces: list[str]):
    for words in ([" ".join(pieces)], pieces):
        with suppress(ConfigError):
            assert write_file(tell_old(original, words))
