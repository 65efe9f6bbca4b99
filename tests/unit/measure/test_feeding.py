"""How the loader is timed by numbers of threads."""

import pytest

from small_loaders import make_loader
from small_sets import Listed, to_classify
from trainstone.data.loader import STAGES, Loader
from trainstone.machine.cpus import Cores
from trainstone.measure.feeding import Turns, choose_threads, measure_threads, split_stages, summarise_turns


@pytest.mark.parametrize(
    ("logical", "physical", "counts"),
    [(1, 1, [1]), (2, 2, [1, 2]), (12, 6, [1, 2, 4, 6, 8, 12]), (16, 8, [1, 2, 4, 8, 16]), (3, None, [1, 2, 3])],
)
def test_powers_of_two_then_cores_then_hardware_threads(logical: int, physical: int | None, counts: list[int]):
    assert choose_threads(Cores(logical, physical, None, physical or logical)) == counts


def test_each_number_of_threads_has_two_turns_on_pictures_of_their_own():
    opened = []

    def open_with(threads: int, first_step: int) -> Loader:
        opened.append((threads, first_step))
        return make_loader(Listed(to_classify(40)), threads=threads, first_step=first_step)

    done: list[Turns] = []
    told = {progress.phase for progress in measure_threads(open_with, [1, 2], 0.05, done)}
    assert told == {"1 thread", "2 threads"}
    assert [threads for threads, _ in opened] == [1, 2, 2, 1]
    steps = [step for _, step in opened]
    assert steps == sorted(set(steps))
    for turns in done:
        assert len(turns.batch_seconds) >= 2 * 4
        assert turns.wall_seconds == pytest.approx(sum(turns.batch_seconds))
        assert turns.cpu_seconds > 0
        assert turns.pictures >= 4 * len(turns.batch_seconds)
        point = summarise_turns(turns, 4, 2)
        assert point.threads == turns.threads
        assert point.images_per_second == pytest.approx(4 * len(turns.batch_seconds) / turns.wall_seconds)
    stages = split_stages(done[0])
    assert [stage.name for stage in stages] == list(STAGES)
    assert sum(stage.share for stage in stages) == pytest.approx(1)
    assert all(stage.seconds_per_image > 0 for stage in stages)
