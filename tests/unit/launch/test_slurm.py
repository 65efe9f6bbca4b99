"""The script of a Slurm job: what it says of each plan, and that nothing from outside becomes a command."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from launching import make_verb
from trainstone.config.load import load_system
from trainstone.config.schema import LaunchConfig, System
from trainstone.errors import ConfigError
from trainstone.launch.child_runs import TRAINSTONE
from trainstone.launch.slurm import OWN, Options, count_devices, read_directives, read_time, write_script

RUN = Path("/shared/runs/one")
HERE = Path("/home/me/work")
NASTY = ("x; touch hacked", "two  words", "$(touch hacked)", "`touch hacked`", "it's", '"; touch hacked #', "a\\", "&&")


def script_of(*arguments: str, **options: Any) -> str:
    return write_script(make_verb(*arguments), Options(**options), RUN, HERE)


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_a_container_sees_the_folders_of_the_job():
    script = script_of("resnet50", container="image 1.sif", gres="gpu:2")
    binds = "--bind /home/me/work --bind /shared/runs"
    assert f"apptainer exec --nv {binds} 'image 1.sif' python3 -P -m trainstone train resnet50" in script
    assert f"apptainer exec {binds} 'image 1.sif' python3 -P -m trainstone.launch.aftermath" in script
    script = write_script(make_verb("demo-classify"), Options(), Path("/runs/50%j"), HERE)
    assert "--output=/runs/50%%j/launch/engine-%j.log" in directives(script)  # not Slurm's own %j


@pytest.mark.parametrize("word", NASTY)
def test_whatever_is_in_a_word_it_stays_a_word(word: str, tmp_path: Path):
    run, tools = tmp_path / f"run {word.replace('/', '-')}", tmp_path / "tools"
    (run / "launch").mkdir(parents=True)
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/bash\nprintf "%s\\0" "$@" > words\necho 8 > "$TRAINSTONE_RUN/launch/code"\n')
    (tools / "srun").chmod(0o755)
    system = System(name="s", summary="s", launch=LaunchConfig(environment={"ODD": word}))
    options = Options(partition=word, account=word, container=word, sbatch=(f"comment={word}",))
    script = tmp_path / "job.sh"
    script.write_text(write_script(make_verb(word, "--set", word, system=system), options, run, HERE))
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (8, "", "")
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    assert words[-4:] == ["train", word, "--set", word]
    assert words[words.index("python3") - 1] == word
    assert list(tmp_path.rglob("hacked")) == []


def test_a_line_break_cannot_make_a_directive():
    with pytest.raises(ConfigError, match=r"invalid --partition .* has a line break"):
        script_of("demo-classify", partition="a\n#SBATCH --nodes=99")
    with pytest.raises(ConfigError, match="has a line break"):
        script_of("demo-classify", sbatch=("comment=a\rb",))
    script = script_of("demo-classify", "--set", "name=x\ntouch hacked\n#SBATCH --nodes=99")
    assert "--nodes=99" not in directives(script.partition("\nset -u\n")[0])
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr == ""


def test_system_file_with_an_invalid_variable_name_is_rejected(tmp_path: Path):
    text = 'name = "s"\nsummary = "s"\n[launch.environment]\n"A=1; touch hacked; B" = "x"\n'
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ConfigError, match="touch hacked"):
        load_system(str(tmp_path / "s.toml"))


def test_a_sweep_has_one_rank():
    verb = make_verb("demo-classify", name="sweep")
    assert "--ntasks-per-node=1" in directives(write_script(verb, Options(), RUN, HERE))
    with pytest.raises(ConfigError, match="sweep runs on one rank, not on 2"):
        write_script(verb, Options(nodes=2), RUN, HERE)


def run_job(
    folder: Path, srun: str, *, name: str = "train", fleet: tuple[str, ...] = (), **environment: str
) -> tuple[int, str, str]:
    """Really run the script of a job that may go back into the queue; return its code, its log, and whether it does."""
    run, tools = folder / "run", folder / "tools"
    (run / "launch").mkdir(parents=True, exist_ok=True)
    (run / "checkpoints").mkdir(exist_ok=True)
    tools.mkdir(exist_ok=True)
    aftermath = f'echo "$*" > {folder}/aftermath; exit 3'
    programs = {"srun": srun, "squeue": f'echo "$*" > {folder}/asked; echo RUNNING', "python": aftermath}
    for program, text in (programs | {"scontrol": f'echo "$*" >> {folder}/requeued'}).items():
        (tools / program).write_text(f'#!/bin/bash\nrun="$TRAINSTONE_RUN"\n{text}\n')
        (tools / program).chmod(0o755)
    script = write_script(make_verb("demo-classify", name=name), Options(requeue=True), run, HERE, fleet)
    script = script.replace(f"\n{TRAINSTONE[0]} ", "\npython ")  # the line that finds the cause of a failure
    told = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **environment}
    log = run / "launch" / "engine-7.log"
    with log.open("ab") as file:
        code = subprocess.run(["bash", "-c", script], env=told, stdout=file, stderr=file, cwd=folder).returncode
    requeued = folder / "requeued"
    return code, log.read_text(), requeued.read_text() if requeued.exists() else ""


STOPPED = 'echo 75 > "$run/launch/code"'


def test_a_job_goes_on_as_long_as_it_makes_checkpoints(tmp_path: Path):
    for count in range(5):
        srun = f"touch $run/checkpoints/step-0000000{count}.safetensors; {STOPPED}"
        assert run_job(tmp_path, srun, SLURM_RESTART_COUNT=str(count))[0] == 0
    assert (tmp_path / "requeued").read_text() == "requeue 7\n" * 5
    for count, code in ((5, 0), (6, 0), (7, 75)):
        assert run_job(tmp_path, STOPPED, SLURM_RESTART_COUNT=str(count))[0] == code
    code, log, requeued = run_job(tmp_path, STOPPED, name="bench", SLURM_RESTART_COUNT="99")
    assert "not requeued: 3 starts in a row wrote no new checkpoint" in log
    assert (code, requeued.count("requeue 7")) == (0, 8)
    assert run_job(tmp_path, STOPPED, name="bench", SLURM_RESTART_COUNT="100")[0] == 75


def test_a_task_of_a_fleet_goes_back_by_itself(tmp_path: Path):
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1", "SLURMD_NODENAME": "n2"}
    code, _, requeued = run_job(tmp_path, STOPPED, fleet=("n1", "n2"), **task)
    assert (code, requeued) == (0, "requeue 7_1\n")
    assert "-j 7_1 " in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(
    ("said", "ended", "again"),
    [
        ("n1: task 0: Terminated", 143, True),
        ("n1: tasks 0-3: User defined signal 1", 138, True),
        ("n1: task 1: Exited with exit code 5\nsrun: error: n1: task 0: Terminated", 143, True),
        ("n2: task 1: Killed\nsrun: error: n1: task 0: Terminated", 143, False),
        ("n1: task 0: Killed", 137, False),
    ],
)
def test_ranks_that_died_of_the_signal_to_stop_start_again(tmp_path: Path, said: str, ended: int, again: bool):
    code, log, requeued = run_job(tmp_path, f'printf "%s\\n" "srun: error: {said}" >&2; exit {ended}')
    assert (code, bool(requeued)) == ((0, True) if again else (3, False)), log


def test_a_rank_that_said_why_it_failed_is_no_stop(tmp_path: Path):
    left = """echo '{ "echo": false }' > $run/launch/failed-rank0000.json; exit 143"""
    assert run_job(tmp_path, left)[0] == 3
    assert run_job(tmp_path, left.replace("false", "true"))[0] == 0


def test_options_of_sbatch_are_quoted_as_it_reads_them():
    words = ("--exclusive", "mem=0", "mem=4G", 'comment=a="b" \\ #')
    assert directives(script_of("demo-classify", sbatch=words))[-3:] == [
        *("--exclusive", "--mem=4G", '--comment="a=\\"b\\" \\\\ #"'),
    ]
    assert read_directives(["array=%4", "export=NONE"], fleet=True) == {"array": "%4", "export": "NONE"}


@pytest.mark.parametrize(
    ("word", "fleet"),
    [
        *((f"--{name}=1", False) for name in (*OWN, "out", "arr", "ntasks")),
        ("N 4", False),
        ("array=%4", False),
        ("array=0-3%4", True),
    ],
)
def test_read_directives_rejects_options_that_the_launcher_sets_and_what_is_none(word: str, fleet: bool):
    message = "expected KEY or KEY=VALUE" if word == "N 4" else "launch slurm sets --"
    with pytest.raises(ConfigError, match=message) as raised:
        read_directives([word], fleet=fleet)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("30", 1800), ("30:05", 1805), ("1:00:05", 3605), ("2-3", 183_600), ("1-0:10", 87_000), ("unlimited", None)],
)
def test_time_limits(time: str, seconds: int | None):
    assert read_time(time) == seconds


@pytest.mark.parametrize(
    ("gres", "ranks"),
    [
        *((None, 1), ("gpu", 1), ("shard:3", 1), ("gpu:4", 4), ("gpu:2080ti:4", 4), ("gpu:1g.5gb:2", 2)),
        *(("gpu:a100:2(S:0-1)", 2), ("nic:1,gpu:16", 16), ("gpu:v100:2,gpu:a100:1", 3)),
    ],
)
def test_a_rank_for_each_device(gres: str | None, ranks: int):
    assert count_devices(gres) == ranks
