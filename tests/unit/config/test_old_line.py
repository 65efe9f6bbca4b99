import pytest

from trainstone.config.old.launcher import Geometry, read_launcher
from trainstone.config.old.line import Line, Reading, read_line
from trainstone.errors import ConfigError

PROGRAM = Reading((r"[\w.-]+\.py",))


def test_words_before_the_program_start_it():
    line = read_line(["bede-ddlrun", "python", "/opt/a b/main.py", "--mode=train", "--x", "1"], PROGRAM)
    assert line == Line(("bede-ddlrun", "python"), "/opt/a b/main.py", ("--mode=train", "--x", "1"))
    assert line.program == "main.py"


def test_flags_may_stand_alone():
    assert read_line(["--mode=train"], PROGRAM) == Line((), "", ("--mode=train",))


def test_one_quoted_word_is_a_text_with_quotes_and_continuations():
    line = read_line(["mpirun -n 4 python main.py \\\n --data_dir='/a b' \\\r\n --x \"1\"  # why"], PROGRAM)
    assert line.before == ("mpirun", "-n", "4", "python")
    assert line.after == ("--data_dir=/a b", "--x", "1")


def test_a_backslash_pasted_by_itself_is_nothing():
    assert read_line(["main.py", "\\", "--x", " ", "1"], PROGRAM).after == ("--x", "1")


def test_a_job_script_gives_its_line_and_what_slurm_is_asked_for():
    head = "#!/bin/bash\n#SBATCH -N4\n# note\nmodule load x\n"
    text = f"{head}python main.py --a 1 \\\n  --b 2\n\n-model_dir=./m\necho end\n"
    line = read_line([text], PROGRAM)
    assert line.before == ("-N4", "python")
    assert line.after == ("--a", "1", "--b", "2", "-model_dir=./m")
    assert line.notes == ("lines left out: module load x; echo end",)


def test_bare_words_of_the_shell_are_not_worth_telling():
    text = "if [ a ]\nthen\n  cd x\nfi\npython main.py --a 1\n"
    assert read_line([text], PROGRAM).notes == ("lines left out: if [ a ]; cd x",)


def test_lines_of_flags_without_a_program_are_one_line():
    assert read_line(["--a 1\n--b 2"], PROGRAM).after == ("--a", "1", "--b", "2")


@pytest.mark.parametrize("end", ["> out.txt", "|& tee x.log", "2>&1", "| grep y", "2>&1 | tee x"])
def test_a_redirection_ends_the_line_and_is_told(end: str):
    line = read_line(["main.py", "--a", "1", *end.split()], PROGRAM)
    assert line.after == ("--a", "1")
    assert line.notes == (f"{end}: output lies in the run folder",)


@pytest.mark.parametrize("end", ["; echo z", "&& python main.py --b", "|| exit 1", "; a && b"])
def test_a_second_command_is_no_output(end: str):
    for words in (["main.py", "--a", "1", *end.split()], [f"main.py --a 1 {end}"]):
        line = read_line(words, PROGRAM)
        assert line.after == ("--a", "1")
        assert line.notes == (f"{end}: a second command, not translated: give it by itself",)


def test_flags_after_a_redirection_are_flags():
    line = read_line(["main.py --a 1 > x.log --b 2 &"], PROGRAM)
    assert line.after == ("--a", "1", "--b", "2")
    assert line.notes == ("> x.log: output lies in the run folder", "&: put it behind the new command")


def test_a_text_that_starts_nothing_is_told_and_nothing_is_guessed():
    with pytest.raises(ConfigError, match=r"nothing here starts the program: mkdir -p logs; eval \$CMD") as told:
        read_line(["mkdir -p logs\neval $CMD"], PROGRAM)
    assert told.value.hint == "no shell is started: give its value, or the script's name"


def test_flags_alone_end_at_the_next_command():
    line = read_line(["--a 1; rm -r x"], PROGRAM)
    assert line == Line((), "", ("--a", "1"), ("; rm -r x: a second command, not translated: give it by itself",))


def test_open_quotes_are_told():
    with pytest.raises(ConfigError, match="no closing quotation"):
        read_line(["main.py --a 'x"], PROGRAM)


def test_a_text_of_megabytes_is_refused():
    with pytest.raises(ConfigError, match="2,000,002 characters"):
        read_line(["a " * 1_000_001], PROGRAM)


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ("mpirun -n 4 python", Geometry(None, None, 4)),
        ("mpirun --allow-run-as-root --bind-to none --np 2", Geometry(None, None, 2)),
        ("mpirun -np 8 -N 4", Geometry(2, 4, 8)),
        ("horovodrun -H ip1:2,ip2:2 -np 4", Geometry(2, 2, 4)),
        ("python -m torch.distributed.launch --nproc_per_node=4", Geometry(None, 4, None)),
        ("torchrun --nnodes 2 --nproc-per-node 4", Geometry(2, 4, None)),
        ("sbatch -N4 --gres=gpu:4", Geometry(4, 4, None)),
        ("srun -N 2 --gres gpu:v100:4", Geometry(2, 4, None)),
        ("srun --ntasks=16 --nodes=4", Geometry(4, 4, 16)),
        ("bede-ddlrun python", Geometry()),
        ("mpirun -n many --nodes=", Geometry()),
        ("mpirun -n 0", Geometry()),
    ],
)
def test_geometry_of(words: str, seen: Geometry):
    assert read_launcher(words.split()) == seen


def test_ddl_says_gpus_and_nodes():
    words = ["mpirun", "-n", "8", "-x", "DDL_OPTIONS=-mode p:4x2x1x1 "]
    assert read_launcher(words) == Geometry(2, 4, 8)
    assert read_launcher(words).devices() == 8
