import pytest

from trainstone.train import trial
from trainstone.train.trial import Trial, fastest, try_precisions


@pytest.mark.parametrize(
    ("seconds", "choice"),
    [
        ({"fp32": 1.0}, "fp32"),
        ({"fp32": 1.0, "bf16": 13.0}, "fp32"),  # emulated
        ({"fp32": 1.0, "bf16": 0.95}, "fp32"),  # not clearly faster
        ({"fp32": 1.0, "bf16": 0.3}, "bf16"),
        ({"fp32": 1.0, "bf16": 0.30, "fp16": 0.29}, "bf16"),  # equals: the one without a loss scale
        ({"fp32": 1.0, "tf32": 0.5, "bf16": 0.3, "fp16": 0.2}, "fp16"),
        ({"fp32": 1.0, "bf16": None}, "fp32"),  # crashed
        ({"fp32": None, "bf16": 0.3}, "bf16"),
    ],
)
def test_the_fastest_that_works_is_taken(seconds: dict, choice: str):
    assert fastest([Trial(precision, value) for precision, value in seconds.items()]) == choice


def test_fp32_runs_here():
    (done,) = try_precisions("cpu", ["fp32"], threads=1)
    assert done.failure is None
    assert done.seconds is not None
    assert 0 < done.seconds < 10


def test_a_crash_costs_only_the_precision_that_crashed(monkeypatch: pytest.MonkeyPatch):
    script = (
        "import json, os, signal, sys\n"
        "for name in sys.argv[2].split(','):\n"
        "    if name == 'bf16': os.kill(os.getpid(), signal.SIGILL)\n"
        "    print(json.dumps({'precision': name, 'seconds': 0.5, 'failure': None}), flush=True)\n"
    )
    real_run = trial.subprocess.run

    def run_script(command, **options):
        return real_run([command[0], "-c", script, *command[4:]], **options)

    monkeypatch.setattr(trial.subprocess, "run", run_script)
    fp32, bf16, fp16 = try_precisions("cpu", ["fp32", "bf16", "fp16"], threads=1)
    assert (fp32.seconds, fp16.seconds) == (0.5, 0.5)
    assert bf16.failure == "crashed: Illegal instruction"


def test_a_device_that_is_not_here_fails_in_words():
    (done,) = try_precisions("cuda:77", ["fp32"], threads=1)
    assert done.seconds is None
    assert done.failure


def test_a_child_that_says_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    real_run = trial.subprocess.run
    monkeypatch.setattr(trial.subprocess, "run", lambda command, **o: real_run([command[0], "-c", ""], **o))
    (done,) = try_precisions("cpu", ["fp32"], threads=1)
    assert done.failure == "failed without a word"
