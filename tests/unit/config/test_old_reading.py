"""Old lines, scripts and files are read as text; nothing runs. Flags and variables are read by their tables."""

import shlex
from pathlib import Path

import pytest

from trainstone.config.old.flag import Flag, Grammar
from trainstone.config.old.launcher import Geometry, read_launcher
from trainstone.config.old.line import PROGRAM, Line, read_line
from trainstone.errors import ConfigError

FLAGS = (
    Flag("mode", "text", "a", "the verb", "", ("a", "b")),
    Flag("count", "integer", "3", "`k.count`"),
    Flag("rate", "number", "", "`k.rate`"),
    Flag("decay", "epochs", "10 20", "`k.decay`"),
    Flag("use_x", "switch", "false", "`k.x`"),
    Flag("use_y", "switch", "true", "", "y is always so"),
)
VARIABLES = (Flag("LR", "number", "0.6", "`k.rate`"), Flag("SEED", "integer", "1", "`seed`", "not drawn"))
VARIABLES += (Flag("MXNET_*", "text", "", "", "of MXNet"),)
GRAMMAR = Grammar("wmlce", FLAGS, VARIABLES, negated=True)
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
if [ "$X" == true ]; then
  BATCHSIZE=1
fi
export EMPTY=
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(*words: str) -> Line:
    return read_line(words, PROGRAM)


@pytest.mark.parametrize(
    ("words", "before", "after", "note"),
    [
        (["bede-ddlrun", "python", "/opt/a b/main.py", "--x", "1"], "bede-ddlrun python", "--x 1", ""),
        (["--mode=train"], "", "--mode=train", ""),
        (["main.py", "\\", "--x", " ", "1"], "", "--x 1", ""),
        (["mpirun -n 4 python main.py \\\n --x='a' \\\r\n --y \"1\"  # why"], "mpirun -n 4 python", "--x=a --y 1", ""),
        (["#!/bin/sh\n#SBATCH -N4 # n\nmodule load x\nmain.py --a 1\n\n-b=2\n"], "-N4", "--a 1 -b=2", "module load x"),
        (["--a 1\n--b 2"], "", "--a 1 --b 2", ""),
        (["main.py --a 1 > x.log --b 2 &"], "", "--a 1 --b 2", "> x.log: the output is in the run folder"),
        (["main.py --a 1 2>&1 | tee x"], "", "--a 1", "2>&1 | tee x: the output"),
        (["main.py --a 1 && python other.py --b"], "", "--a 1", "python other.py --b: a second command"),
        (["A=4\nK='--a $A '\nK+=--b\nrun -n ${A} main.py $K ${M:-5} $O"], "run -n 4", "--a 4 --b 5 $O", ""),
        (["for x in 1 2; do time python main.py --a $x; done"], "python", "--a $x", "for x in 1 2"),
    ],
)
def test_line_is_launcher_program_and_arguments(words: list[str], before: str, after: str, note: str):
    line = read(*words)
    assert (line.launcher, line.after) == (before.split(), after.split())
    assert note in "".join(line.notes)
    assert line.program in ("main.py", "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mkdir -p logs\neval $CMD", r"nothing here starts the program: mkdir -p logs; eval \$CMD"),
        ("LR=1 strange", "nothing here starts the program: strange"),
        ("main.py --a 'x", "no closing quotation"),
        ("a " * 1_000_001, "2,000,002 characters"),
        ("source no.sh; main.py", "source no.sh: there is no such file"),
        ("sbatch -N4 no.sh", "there is no file no.sh"),
        ("sbatch binary.sh", "cannot read binary.sh"),
    ],
)
def test_text_that_cannot_be_read_is_refused(text: str, why: str):
    Path("binary.sh").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=why):
        read(text)


@pytest.mark.parametrize("form", ["config.sh", "source config.sh; true", "sbatch -N2 config.sh", CONFIG])
def test_variables_of_a_file_and_of_what_it_sources(form: str):
    Path("config_common.sh").write_text("set -e\nexport NGPU=8\nexport LR=1\nsource ./config.sh\n")
    Path("config.sh").write_text(CONFIG)
    line = read(form)
    assert line.values == {
        **{"NGPU": "8", "LR": "10.5", "NUMEPOCHS": "37", "A": "1", "B": "2 3", "C": "10.5", "EMPTY": ""},
        **{"ARGS": "--a 408 --b"},
    }
    assert set(line.computed) == {"SYSTEM", "OS", "BATCHSIZE"}  # a condition sets the last
    assert not line.typed
    assert not Path("nothing").exists()


def test_words_beat_a_file_and_a_source_command_beats_words():
    Path("config.sh").write_text("LR=10\nexport EPOCHS=${EPOCHS:-37}\n")
    assert read("LR=2", "export", "EPOCHS=4", "config.sh").values == {"LR": "2", "EPOCHS": "4"}
    assert read("LR=2; EPOCHS=4; source config.sh; A=1").values == {"LR": "10", "EPOCHS": "4", "A": "1"}


def test_a_missing_file_beside_a_file_is_noted_and_a_script_that_starts_itself_ends():
    Path("config.sh").write_text("source ./common.sh\nLR=1\n")
    assert "there is no common.sh here" in read("config.sh").notes[0]
    Path("job.sh").write_text("#SBATCH -N4\nbash job.sh\npython main.py --a 1\n")
    line = read_line(["sbatch", "-N1", "job.sh"], PROGRAM, r"job\.sh")
    assert (line.after, read_launcher(line.launcher).nodes) == (["--a", "1"], 1)  # the command line's -N counts


@pytest.mark.parametrize("value", ["$(rm x)", "`rm x`", "$M", "$((3*8))"])
def test_what_only_a_shell_could_compute_is_not_known(value: str):
    line = read(f"N=3\nN={value}\nmain.py $N")
    assert "N" in line.computed
    assert line.after == ["$N"]


def test_values_do_not_grow_without_end():
    line = read("A=aaaaaaaaaaaaaaaa\n" + "A=$A$A\n" * 60 + "main.py $A")
    assert line.after == ["$A"]


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
        ("mpirun -n 8 -x 'DDL_OPTIONS=-mode p:4x2x1x1 '", Geometry(2, 4, 8)),
        ("ddlrun -H host1,host2,host3,host4 python", Geometry(4, 4, None)),
        ("ddlrun -H host1:2,host2:2 python", Geometry(2, 2, None)),
        ("-N4 bede-ddlrun python", Geometry(4, 4, None)),
        ("bede-ddlrun python", Geometry()),
        ("mpirun -n many --nodes=", Geometry()),
        ("mpirun -n 0", Geometry()),
    ],
)
def test_geometry_of_launchers(words: str, seen: Geometry):
    assert read_launcher(shlex.split(words)) == seen


def test_variables_by_name_and_by_pattern_and_others_ignored_in_files():
    found = GRAMMAR.read_variables(read("LR=3", "MXNET_A=1", "SEED=$RANDOM"), optional=["SEED"])
    assert found.values["LR"] == 3.0
    assert found.notes == ["SEED=$RANDOM: not drawn", "MXNET_A=1: of MXNet"]
    assert GRAMMAR.read_variables(read("LR=3\nLRR=1\nX=$(date)")).asked == {"LR": "LR=3"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["LR=x", "LRR=1"], "LR=x: must be a number; unknown variable LRR, did you mean LR"),
        (["LR=`rm`"], "LR=`rm`: only a shell could compute it"),
        (["if a; then\nLR=3\nfi"], "LR=3: only a shell"),
    ],
)
def test_variables_that_the_recipe_needs_are_refused(words: list[str], why: str):
    with pytest.raises(ConfigError, match=why):
        GRAMMAR.read_variables(read(*words))
