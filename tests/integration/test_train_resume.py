"""`trainstone train` killed, stopped and resumed: the result equals an uninterrupted run bit for bit."""

import os
import random
import signal

import pytest

from support.builders.training_runs import TrainedRun, assert_same, assert_trained_alike, read_trained_run
from support.processes.command import find_run
from support.processes.forked import Nursery
from support.processes.launches import RANK_STEPS, kill_and_resume, start, wait_for_steps

pytestmark = pytest.mark.slow

# Number of kills by number of ranks, in CI; tests/soak/test_soak.py kills more often.
KILLS = {1: 3, 2: 3, 3: 1}


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery):
    """Uninterrupted runs by number of ranks."""
    runs: dict[int, TrainedRun] = {}

    def run(ranks: int) -> TrainedRun:
        if ranks not in runs:
            out = nursery.folder / f"undisturbed-{ranks}"
            codes = {child.wait().code for child in start(nursery, ranks, "--out", str(out))}
            assert codes == {0}
            runs[ranks] = read_trained_run(find_run(out), ranks)
        return runs[ranks]

    return run


@pytest.mark.parametrize("ranks", KILLS)
def test_train_killed_and_resumed_equals_uninterrupted_run(nursery: Nursery, undisturbed, ranks: int):
    learned, killed = kill_and_resume(
        nursery, ranks, KILLS[ranks], nursery.folder / f"killed-{ranks}", random.Random(ranks)
    )
    assert killed
    assert_same(learned, undisturbed(ranks))
    assert learned.document["step"] == RANK_STEPS[ranks]
    assert learned.steps[-1]["step"].tolist() == list(range(RANK_STEPS[ranks]))
    quality = learned.result.quality
    assert learned.result.status == "target_missed"
    assert quality.starts == 1 + killed
    seconds = [one.seconds for one in quality.history]
    assert seconds == sorted(seconds)
    assert "resumed" in [finding.code for finding in learned.result.findings]


def test_train_stopped_by_signal_and_resumed_equals_uninterrupted_run(nursery, undisturbed):
    out = nursery.folder / "signalled"
    children = start(nursery, 1, "--out", str(out))
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
        wait_for_steps(children)
        children[0].send(number)
        ended = children[0].wait()
        assert ended.code == (130 if number == signal.SIGINT else 75), ended.err
        run = find_run(out)
        stopped = read_trained_run(run)
        assert stopped.result.status == "interrupted"
        assert [f.message for f in stopped.result.findings if f.code == "interrupted"] == [
            f"stopped by {number.name} after {stopped.document['step']} steps"
        ]
        assert len(stopped.steps[0]["step"]) == stopped.document["step"] < RANK_STEPS[1]
        assert f"trainstone train --resume {run}" in "".join(ended.out.replace(" \n", " ").split("\n    "))
        children = nursery.start_ranks(1, "train", "--resume", str(run))
    assert children[0].wait().code == 0
    learned = read_trained_run(run)
    assert_same(learned, undisturbed(1))
    assert learned.result.quality.starts == 5


def test_train_signal_to_one_rank_stops_both_after_same_step(nursery: Nursery, undisturbed):
    out = nursery.folder / "one-signalled"
    children = start(nursery, 2, "--out", str(out))
    wait_for_steps(children)
    children[1].send(signal.SIGTERM)
    assert [child.wait().code for child in children] == [75, 75]
    run = find_run(out)
    stopped = read_trained_run(run, 2)
    assert stopped.result.status == "interrupted"
    assert stopped.steps[0]["step"].tolist() == stopped.steps[1]["step"].tolist()
    assert len(stopped.steps[0]["step"]) == stopped.document["step"] < RANK_STEPS[2]
    assert nursery.run("train", "--resume", str(run), world=2).code == 0
    # Running statistics were averaged once more at the stop; the trained weights do not depend on them.
    assert_trained_alike(read_trained_run(run, 2), undisturbed(2))


def test_train_under_nohup_ignores_hangup(nursery: Nursery, undisturbed):
    out = nursery.folder / "nohup"
    (child,) = start(nursery, 1, "--out", str(out), ignore=(signal.SIGHUP,))
    wait_for_steps([child])
    child.send(signal.SIGHUP)
    assert child.wait().code == 0
    assert_same(read_trained_run(find_run(out)), undisturbed(1))


def test_train_resume_refuses_running_run(nursery: Nursery):
    out = nursery.folder / "living"
    (child,) = start(nursery, 1, "--out", str(out), "--set", "stop.epochs=1000")
    wait_for_steps([child])
    refused = nursery.run("train", "--resume", str(find_run(out)))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert refused.code == 7
    assert f"is in use by process {child.pid} on " in refused.err
