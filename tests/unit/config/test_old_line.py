import pytest

from trainstone.config.old.launcher import Geometry, read_launcher
from trainstone.config.old.line import read_line
from trainstone.errors import ConfigError

PROGRAM = r"[\w.-]+\.py"


def test_words_before_the_program_start_it():
    line = read_line(["bede-ddlrun", "python", "/opt/a b/main.py", "--mode=train", "--x", "1"], PROGRAM)
    assert line == (("bede-ddlrun", "python"), "main.py", ("--mode=train", "--x", "1"), ())


def test_flags_may_stand_alone():
    assert read_line(["--mode=train"], PROGRAM) == ((), "", ("--mode=train",), ())


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


def test_lines_of_flags_without_a_program_are_one_line():
    assert read_line(["--a 1\n--b 2"], PROGRAM).after == ("--a", "1", "--b", "2")


@pytest.mark.parametrize("end", ["> out.txt", "|& tee x.log", "2>&1", "| grep y", "&", "; echo z"])
def test_a_redirection_ends_the_line_and_is_told(end: str):
    line = read_line(["main.py", "--a", "1", *end.split()], PROGRAM)
    assert line.after == ("--a", "1")
    assert line.notes == (f"{end}: output lies in the run folder",)


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
        ("mpirun -n 0 --nodes=99999999999999", Geometry()),
    ],
)
def test_geometry_of(words: str, seen: Geometry):
    assert read_launcher(words.split()) == seen


def test_ddl_says_gpus_and_nodes():
    words = ["mpirun", "-n", "8", "-x", "DDL_OPTIONS=-mode p:4x2x1x1 "]
    assert read_launcher(words) == Geometry(2, 4, 8)
    assert read_launcher(words).devices() == 8
