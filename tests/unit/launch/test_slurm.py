"""Slurm jobs: batch script and its quoting; submit, follow and end of a job; nodes and results of a fleet."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.processes.flows import drain
from support.processes.launches import make_verb
from trainstone.config.load import load_system
from trainstone.config.schema import LaunchConfig, System
from trainstone.errors import ConfigError, DataError, LaunchError, MachineError
from trainstone.flows.child_runs import TRAINSTONE
from trainstone.launch import slurm
from trainstone.launch.slurm import (
    FORGOTTEN,
    RESERVED_OPTIONS,
    Job,
    RefusedError,
    SlurmOptions,
    apply_system,
    collect_members,
    delayed_interrupt,
    describe_job,
    follow_job,
    format_script,
    format_submit_script,
    list_nodes,
    parse_directives,
    parse_job,
    parse_time,
    require_slurm,
    resolve_job_exit_code,
    submit,
)

RUN = Path("/shared/runs/one")
HERE = Path("/home/me/work")
NASTY = ("x; touch hacked", "two  words", "$(touch hacked)", "`touch hacked`", "it's", '"; touch hacked #', "a\\", "&&")


def make_script(*arguments: str, **options: Any) -> str:
    return format_script(make_verb(*arguments), SlurmOptions(**options), RUN, HERE)


def find_directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_format_script_binds_job_folders_into_the_container():
    script = make_script("resnet50", container="image 1.sif", gres="gpu:2")
    binds = "--bind /home/me/work --bind /shared/runs"
    assert f"apptainer exec --nv {binds} 'image 1.sif' python3 -P -m trainstone train resnet50" in script
    assert f"apptainer exec {binds} 'image 1.sif' python3 -P -m trainstone.launch.failure_report" in script
    script = format_script(make_verb("demo-classify"), SlurmOptions(), Path("/runs/50%j"), HERE)
    assert "--output=/runs/50%%j/launch/engine-%j.log" in find_directives(script)  # not Slurm's own %j


@pytest.mark.parametrize("word", NASTY)
def test_format_script_quotes_hostile_words(word: str, tmp_path: Path):
    run, tools = tmp_path / f"run {word.replace('/', '-')}", tmp_path / "tools"
    (run / "launch").mkdir(parents=True)
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/bash\nprintf "%s\\0" "$@" > words\necho 8 > "$TRAINSTONE_RUN/launch/code"\n')
    (tools / "srun").chmod(0o755)
    system = System(name="s", summary="s", launch=LaunchConfig(environment={"ODD": word}))
    options = SlurmOptions(partition=word, account=word, container=word, sbatch=(f"comment={word}",))
    script = tmp_path / "job.sh"
    script.write_text(format_script(make_verb(word, "--set", word, system=system), options, run, HERE))
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (8, "", "")
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    assert words[-4:] == ["train", word, "--set", word]
    assert words[words.index("python3") - 1] == word
    assert list(tmp_path.rglob("hacked")) == []


def test_format_script_rejects_line_breaks_and_hostile_variable_names(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"invalid --partition .*: line breaks are not allowed"):
        make_script("demo-classify", partition="a\n#SBATCH --nodes=99")
    with pytest.raises(ConfigError, match="line breaks are not allowed"):
        make_script("demo-classify", sbatch=("comment=a\rb",))
    script = make_script("demo-classify", "--set", "name=x\ntouch hacked\n#SBATCH --nodes=99")
    assert "--nodes=99" not in find_directives(script.partition("\nset -u\n")[0])
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr == ""
    text = 'name = "s"\nsummary = "s"\n[launch.environment]\n"A=1; touch hacked; B" = "x"\n'
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ConfigError, match="touch hacked"):
        load_system(str(tmp_path / "s.toml"))


def test_format_script_rejects_sweep_on_several_ranks():
    verb = make_verb("demo-classify", name="sweep")
    assert "--ntasks-per-node=1" in find_directives(format_script(verb, SlurmOptions(), RUN, HERE))
    with pytest.raises(ConfigError, match="sweep cannot run on 2 ranks"):
        format_script(verb, SlurmOptions(nodes=2), RUN, HERE)


def run_job(
    folder: Path, srun: str, *, name: str = "train", fleet: tuple[str, ...] = (), **environment: str
) -> tuple[int, str, str]:
    """Run the batch script of a job with --requeue; return its exit code, its log and its scontrol calls."""
    run, tools = folder / "run", folder / "tools"
    (run / "launch").mkdir(parents=True, exist_ok=True)
    (run / "checkpoints").mkdir(exist_ok=True)
    tools.mkdir(exist_ok=True)
    programs = {"srun": srun, "squeue": f'echo "$*" > {folder}/squeue-arguments; echo RUNNING', "python": "exit 3"}
    for program, text in (programs | {"scontrol": f'echo "$*" >> {folder}/requeued'}).items():
        (tools / program).write_text(f'#!/bin/bash\nrun="$TRAINSTONE_RUN"\n{text}\n')
        (tools / program).chmod(0o755)
    script = format_script(make_verb("demo-classify", name=name), SlurmOptions(requeue=True), run, HERE, fleet)
    script = script.replace(f"\n{TRAINSTONE[0]} ", "\npython ")  # the line that reports a failure
    variables = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **environment}
    log = run / "launch" / "engine-7.log"
    with log.open("ab") as file:
        code = subprocess.run(["bash", "-c", script], env=variables, stdout=file, stderr=file, cwd=folder).returncode
    requeued = folder / "requeued"
    return code, log.read_text(), requeued.read_text() if requeued.exists() else ""


STOPPED = 'echo 75 > "$run/launch/code"'


def test_job_script_requeues_while_starts_write_checkpoints(tmp_path: Path):
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


def test_job_script_requeues_only_its_own_task_and_no_failed_rank(tmp_path: Path):
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1", "SLURMD_NODENAME": "n2"}
    code, _, requeued = run_job(tmp_path, STOPPED, fleet=("n1", "n2"), **task)
    assert (code, requeued) == (0, "requeue 7_1\n")
    assert "-j 7_1 " in (tmp_path / "squeue-arguments").read_text()
    left = """echo '{ "secondary": false }' > $run/launch/failed-rank0000.json; exit 143"""
    assert run_job(tmp_path, left)[0] == 3
    assert run_job(tmp_path, left.replace("false", "true"))[0] == 0


@pytest.mark.parametrize(
    ("message", "ended", "again"),
    [
        ("n1: task 0: Terminated", 143, True),
        ("n1: tasks 0-3: User defined signal 1", 138, True),
        ("n1: task 1: Exited with exit code 5\nsrun: error: n1: task 0: Terminated", 143, True),
        ("n2: task 1: Killed\nsrun: error: n1: task 0: Terminated", 143, False),
        ("n1: task 0: Killed", 137, False),
    ],
)
def test_job_script_requeues_ranks_ended_by_the_stop_signal(tmp_path: Path, message: str, ended: int, again: bool):
    code, log, requeued = run_job(tmp_path, f'printf "%s\\n" "srun: error: {message}" >&2; exit {ended}')
    assert (code, bool(requeued)) == ((0, True) if again else (3, False)), log


def test_format_script_quotes_sbatch_options():
    words = ("--exclusive", "mem=0", "mem=4G", 'comment=a="b" \\ #')
    assert find_directives(make_script("demo-classify", sbatch=words))[-3:] == [
        *("--exclusive", "--mem=4G", '--comment="a=\\"b\\" \\\\ #"'),
    ]
    assert parse_directives(["array=%4", "export=NONE"], fleet=True) == {"array": "%4", "export": "NONE"}


@pytest.mark.parametrize(
    ("word", "fleet"),
    [
        *((f"--{name}=1", False) for name in (*RESERVED_OPTIONS, "out", "arr", "ntasks")),
        ("N 4", False),
        ("array=%4", False),
        ("array=0-3%4", True),
    ],
)
def test_parse_directives_rejects_reserved_and_invalid_options(word: str, fleet: bool):
    message = "expected KEY or KEY=VALUE" if word == "N 4" else "launch slurm sets --"
    with pytest.raises(ConfigError, match=message) as raised:
        parse_directives([word], fleet=fleet)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("30", 1800), ("30:05", 1805), ("1:00:05", 3605), ("2-3", 183_600), ("1-0:10", 87_000), ("unlimited", None)],
)
def test_parse_time_returns_seconds_of_a_time_limit(time: str, seconds: int | None):
    assert parse_time(time) == seconds


@pytest.mark.parametrize(
    ("gres", "ranks"),
    [
        *((None, 1), ("gpu", 1), ("shard:3", 1), ("gpu:4", 4), ("gpu:2080ti:4", 4), ("gpu:1g.5gb:2", 2)),
        *(("gpu:a100:2(S:0-1)", 2), ("nic:1,gpu:16", 16), ("gpu:v100:2,gpu:a100:1", 3)),
    ],
)
def test_apply_system_starts_one_rank_per_device(gres: str | None, ranks: int):
    assert apply_system(SlurmOptions(gres=gres), None).ranks_per_node == ranks


CPU_NODES = r"""#!/bin/bash
echo "$*" >> "${0%/*}/calls"
case "$*" in
  *%P*) printf 'batch*\ngpu\nempty\n';;
  *"-p batch "*) printf '0/64/0/64 (null)\n32/16/0/48 (null)\n';;
  *"-p gpu "*) printf '0/96/0/96 gpu:a100:8(S:0-1)\n0/64/0/64 gpu:a100:4(S:0-1)\n0/16/0/16 (null)\n';;
esac
"""


@pytest.mark.parametrize(
    ("options", "cpus"),
    [
        ({}, 48),  # the smallest node of the default partition
        ({"ranks_per_node": 4}, 12),
        ({"ranks_per_node": 100}, 1),
        ({"partition": "gpu", "gres": "gpu:4"}, 12),  # half of 96 are those of 4 GPUs
        ({"partition": "gpu", "gres": "gpu:1"}, 12),
        ({"partition": "gpu", "gres": "gpu:8"}, 12),
        ({"partition": "gpu", "gres": "gpu:4", "ranks_per_node": 1}, 48),
        ({"partition": "gpu", "gres": "gpu:16"}, None),  # no such node: Slurm reports it
        ({"partition": "empty"}, None),
        *(({"sbatch": (word,)}, None) for word in ("exclusive", "cpus-per-task=3", "--cpus-per-gpu=2", "cpus-per-t=9")),
    ],
)
def test_request_cpus_gives_ranks_their_share_of_the_node(tmp_path: Path, options: dict[str, Any], cpus: int | None):
    (tmp_path / "sinfo").write_text(CPU_NODES)
    chosen = slurm.request_cpus(SlurmOptions(**options), None)
    requested = [word for word in chosen.sbatch if word not in options.get("sbatch", ())]
    assert requested == ([] if cpus is None else [f"cpus-per-task={cpus}"])
    (tmp_path / "sinfo").unlink()
    assert slurm.request_cpus(SlurmOptions(**options), None) == SlurmOptions(**options)


def test_format_script_leaves_binding_to_several_gpu_ranks():
    """Slurm would bind them without regard to the GPUs."""
    assert "srun --kill-on-bad-exit=1 --cpu-bind=none " in make_script("demo-classify", gres="gpu:4")
    for options in ({}, {"ranks_per_node": 4}, {"gres": "gpu:1"}, {"gres": "gpu:4", "ranks_per_node": 1}):
        assert "--cpu-bind" not in make_script("demo-classify", **options)


LINE = (
    "JobId=12 ArrayJobId=11 ArrayTaskId=1 JobName=trainstone-x UserId=me(1) JobState=PENDING Reason=Resources "
    "Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 ExitCode=0:0 NodeList=n[1-2] Comment=x JobState=FAILED"
)
# scontrol's answers in turn; an empty line is a controller that does not answer.
ANSWERS = """JobId=3 JobState=PENDING Reason=Priority
JobId=3 JobState=PENDING Reason=Priority

JobId=3 JobState=RUNNING Reason=None NodeList=n1
JobId=3 JobState=PENDING Reason=BeginTime Restarts=1
JobId=3 JobState=COMPLETED Restarts=1 NodeList=n1
"""
SINFO = r"""#!/bin/bash
case "$*" in
  *%P*) printf 'batch*\nurgent\nheld\n';;
  *"-p batch"*) printf 'n1 idle\nn2 down*\nn3 mix\nn4 drain\nn5 idle~\nn6 alloc*\n';;
  *"-p held -n n[2-5]"*) printf 'n2 resv\nn3 maint\nn4 idle$\nn5 down$\n';;
  *"-p held"*) printf 'n1 idle\nn2 resv\nn3 maint\nn4 idle$\nn5 down$\n';;
  *) printf 'n9 down\n';;
esac
"""
SCONTROL = r"""#!/bin/bash
cd "${0%/*}"
echo "$*" >> calls
case "$*" in
  *reservation*) echo 'ReservationName=maintenance Nodes=n[2-5] NodeCnt=4';;
  *_1*) eval "$PINNING";;
  "show job"*)
    line=$(head -n 1 answers); sed -i 1d answers
    if [ -z "$line" ]; then echo "Unable to contact slurm controller" >&2; exit 1; fi
    echo "$line";;
esac
"""


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    note = '#!/bin/bash\necho "${0##*/} $*" >> "${0%/*}/calls"\n'
    programs = {"sinfo": SINFO, "scontrol": SCONTROL, "sbatch": f"{note}echo 7", "scancel": note}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "calls"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slurm, "VISIBLE_SECONDS", 0.05)
    monkeypatch.setattr(slurm, "LOOK_SECONDS", 0.01)
    (tmp_path / "launch").mkdir()
    return tmp_path


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "launch dir" / "submit.sh"
    path.parent.mkdir()
    path.write_text(format_submit_script(["n1", "x; touch hacked"]))
    return str(path)


def test_require_slurm_without_slurm_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(MachineError, match="sbatch not found on "):
        require_slurm()


def test_submit_without_a_confirmation_does_not_raise_refused_error():
    with pytest.raises(RefusedError, match="Slurm rejected the job: invalid account"):
        submit("bash", "-c", "echo 'sbatch: error: invalid account' >&2; exit 1")
    refused = "Batch job submission failed: Requested node configuration is not available"
    with pytest.raises(RefusedError) as unavailable:
        submit("bash", "-c", f"echo 'sbatch: error: {refused}' >&2; exit 1")
    assert "--sbatch cpus-per-task=N" in unavailable.value.hint
    timeout = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    with pytest.raises(LaunchError, match="Socket timed out") as raised:
        submit("bash", "-c", f"echo '{timeout}' >&2; exit 1")
    assert not isinstance(raised.value, RefusedError)


def test_parse_job_takes_first_values_and_describe_job_shows_state_nodes_and_start():
    assert parse_job(LINE) == Job("12", "PENDING", "Resources", 2, 0, "n[1-2]", 1)
    killed = parse_job("JobId=3 JobState=FAILED ExitCode=0:9 NodeList=(null)")
    assert (killed.exit_code, killed.task, killed.nodes) == (137, None, "")
    assert describe_job(Job("3", "PENDING", "Resources")) == "job 3 is pending: Resources; cancel it with: scancel 3"
    assert describe_job(Job("3", "RUNNING", nodes="n[1-2]", restarts=1)) == "job 3 is running on n[1-2] (start 2)"


def test_follow_job_yields_state_changes_and_continues_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)
    (tmp_path / "answers").write_text(ANSWERS)
    lines, end = drain(follow_job("3", tmp_path))
    assert end == [Job("3", "COMPLETED", restarts=1, nodes="n1")]
    assert [line.partition(";")[0] for line in lines] == [
        "job 3 is pending: Priority",
        "Slurm does not answer: Unable to contact slurm controller",
        "job 3 is running on n1",
        "job 3 is pending (start 2): BeginTime",
    ]


@pytest.mark.parametrize(
    ("job", "kind", "message", "hint"),
    [
        (
            *(Job("3", "TIMEOUT", nodes="n1"), LaunchError),
            *("Slurm ended job 3 on n1: TIMEOUT, it reached its time limit", "--requeue"),
        ),
        (Job("3", "FAILED", exit_code=3, nodes="n1"), DataError, "job 3 ended with exit code 3", "see "),
        (Job("3", "FAILED"), LaunchError, "job 3 ended with exit code 0", "see "),  # Slurm could not start it
        (Job("3", "CANCELLED"), LaunchError, "Slurm ended job 3: CANCELLED, it was cancelled", "scontrol show job 3"),
    ],
)
def test_resolve_job_exit_code_without_files_raises_class_state_and_hint(
    run: Path, monkeypatch: pytest.MonkeyPatch, job: Job, kind: type, message: str, hint: str
):
    if not job.nodes:  # it never started, so nothing is waited for
        monkeypatch.setattr(slurm, "VISIBLE_SECONDS", 1e9)
    with pytest.raises(kind) as raised:
        resolve_job_exit_code(job, run, run / "log")
    assert raised.value.message == message
    assert hint in str(raised.value.hint)
    cause = run / "launch/cause.txt"
    assert cause.exists() == message.startswith("Slurm ended")
    assert not cause.exists() or message in cause.read_text()


@pytest.mark.parametrize(("state", "code"), [("COMPLETED", 0), ("FAILED", 8), ("FAILED", 75)])
def test_resolve_job_exit_code_without_files_returns_the_code_of_the_script(run: Path, state: str, code: int):
    assert resolve_job_exit_code(Job("3", state, exit_code=code, nodes="n1"), run, run / "log") == code


@pytest.mark.parametrize("state", [FORGOTTEN, "CANCELLED"])
def test_resolve_job_exit_code_waits_for_files_that_become_visible_late(
    run: Path, monkeypatch: pytest.MonkeyPatch, state: str
):
    monkeypatch.setattr(slurm, "VISIBLE_SECONDS", 60.0)
    monkeypatch.setattr("time.sleep", lambda _seconds: (run / "launch/code").write_text("8\n"))
    assert resolve_job_exit_code(Job("3", state, nodes="n1"), run, run / "log") == 8


def test_list_nodes_skips_nodes_that_are_down_and_reads_reservations():
    assert list_nodes(None) == (["n1", "n3", "n5"], {"n2": "down*", "n4": "drain", "n6": "alloc*"})
    assert list_nodes("held", "maintenance") == (["n2", "n3", "n4"], {"n5": "down$"})
    assert list_nodes("held")[0] == ["n1"]
    with pytest.raises(LaunchError, match="no usable node in partition urgent: n9 down"):
        list_nodes("urgent")
    with pytest.raises(LaunchError, match="unknown Slurm partition: nope") as raised:
        list_nodes("nope")
    assert raised.value.hint == "--partition: batch*, urgent, held"


def test_format_submit_script_pins_each_held_task_or_cancels_all(
    calls: Path, script: str, monkeypatch: pytest.MonkeyPatch
):
    assert submit("bash", script) == "7"
    assert calls.read_text().splitlines() == [
        f"sbatch --parsable --hold {Path(script).parent}/job.sh",
        "update JobId=7_0 ReqNodeList=n1",
        "update JobId=7_1 ReqNodeList=x; touch hacked",
        "release 7",
    ]
    monkeypatch.setenv("PINNING", "echo 'slurm_update error: Invalid node name specified' >&2; exit 1")
    with pytest.raises(RefusedError, match="Invalid node name"):
        submit("bash", script)
    assert calls.read_text().splitlines()[-1] == "scancel 7"


def test_delayed_interrupt_waits_for_the_job_number(calls: Path, script: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PINNING", 'kill -INT $PPID "$(ps -o ppid= -p $PPID)"')
    number = ""
    with pytest.raises(KeyboardInterrupt), delayed_interrupt():
        number = submit("bash", script)
    assert number == "7"
    assert calls.read_text().splitlines()[-1] == "release 7"


def test_collect_members_keeps_codes_and_names_failures(run: Path):
    for node, code in (("n1", "8"), ("n2", "75")):
        (run / node / "launch").mkdir(parents=True)
        (run / node / "launch/code").write_text(code)
    ended = [
        Job("7", "FAILED", exit_code=8),
        Job("8", "CANCELLED", nodes="n2"),
        Job("9", FORGOTTEN),
        Job("9", "NODE_FAIL", nodes="n4"),
    ]
    members = collect_members(run, "7", ["n1", "n2", "n3", "n4"], ended)
    assert [member.code for member in members] == [8, 75, None, None]
    assert [member.failure for member in members[2:]] == [
        "job 9 ended with exit code 0",
        "Slurm ended job 9 on n4: NODE_FAIL, one of its nodes failed",
    ]
