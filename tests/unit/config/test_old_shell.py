from pathlib import Path

import pytest

from trainstone.config.old.shell import PASTED, read_assignments, read_commands, read_script
from trainstone.errors import ConfigError

CONFIG = """
echo "config RUNNING"
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
## a comment
export LR="10.5"   # the rate
BATCHSIZE=408
export NUMEPOCHS=${NUMEPOCHS:-"37"}
export NAME='two words'
export SYSTEM=$(basename $(readlink -f ${BASH_SOURCE[0]}) | sed 's/^config_//' )
export OS=$(
    source /etc/os-release
    rm -rf nothing || true
)
export EMPTY=
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config_common.sh").write_text("set -e\nexport NGPU=8\nexport LR=1\n")
    (tmp_path / "config.sh").write_text(CONFIG)
    return tmp_path / "config.sh"


def test_assignments_of_a_file_and_of_what_it_sources(config: Path):
    found = read_script(config, {})
    assert found.values == {
        **{"NGPU": "8", "LR": "10.5", "BATCHSIZE": "408"},
        **{"NUMEPOCHS": "37", "NAME": "two words", "EMPTY": ""},
    }
    assert set(found.computed) == {"SYSTEM", "OS"}
    assert not found.notes


def test_a_missing_sourced_file_is_told(config: Path):
    (config.parent / "config_common.sh").unlink()
    assert "there is no config_common.sh beside config.sh" in read_script(config, {}).notes[0]


def test_files_that_source_each_other_end(config: Path):
    (config.parent / "config_common.sh").write_text("source ./config.sh\n")
    assert read_script(config, {}).values["LR"] == "10.5"


def test_words_beat_the_file_and_fill_its_defaults(config: Path):
    found = read_assignments(["NUMEPOCHS=4", "export", "LR=2", str(config)], program="p.py")
    assert (found.values["NUMEPOCHS"], found.values["LR"]) == ("4", "2")


@pytest.mark.parametrize(
    "line", ["rm -rf /", "if true; then", "LR=1; rm x", "cat /etc/passwd > x", "echo $(rm x)", "echo a; rm b"]
)
def test_nothing_but_assignments_is_read_and_nothing_runs(tmp_path: Path, line: str):
    path = tmp_path / "config.sh"
    path.write_text(f"LR=1\n{line}\n")
    with pytest.raises(ConfigError, match=r"no assignments|more than one word"):
        read_script(path, {})


def test_binary_and_endless_files_are_refused(tmp_path: Path):
    (tmp_path / "a.sh").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.sh").write_text("A=1\n" * 300_000)
    for name, why in (("a.sh", "cannot read"), ("b.sh", "larger than")):
        with pytest.raises(ConfigError, match=why):
            read_script(tmp_path / name, {})


def test_words_that_are_neither_are_named():
    with pytest.raises(
        ConfigError, match=r"neither NAME=value nor a config_\*.sh that is there: config_no.sh, word"
    ) as err:
        read_assignments(["LR=1", "config_no.sh", "word"], program="p.py")
    assert err.value.hint.endswith("or flags of p.py")


def test_several_assignments_of_one_line(tmp_path: Path):
    (tmp_path / "a.sh").write_text("export A=1 B='2 3'\nC=4; D=5\n")
    assert read_script(tmp_path / "a.sh", {}).values == {"A": "1", "B": "2 3", "C": "4", "D": "5"}


def test_pasted_commands_source_from_here(config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(config.parent)
    found = read_commands(["NUMEPOCHS=4", "source ./config.sh", "LR=3"], PASTED, {})
    assert (found.values["NUMEPOCHS"], found.values["LR"], found.values["NGPU"]) == ("4", "3", "8")
    with pytest.raises(ConfigError, match=r"source no\.sh: there is no such file"):
        read_commands([". no.sh"], PASTED, {})
