"""Where logs lie: in runs, in their points, in submissions; each once, in order, and never in a circle."""

from trainstone.results.mlperf import find


def find_logs(given):
    logs, errors = find.find_logs(given)
    assert not errors
    return logs


def touch(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return list(paths)


def test_a_file_is_itself_even_where_there_is_none(tmp_path):
    assert find_logs([tmp_path / "gone"]) == [tmp_path / "gone"]


def test_a_run_and_the_points_of_one(tmp_path):
    (own,) = touch(tmp_path / "a/mlperf.log")
    touch(tmp_path / "a/result.json", tmp_path / "a/original/result_0.txt")
    points = touch(tmp_path / "b/points/p2/mlperf.log", tmp_path / "b/points/p10/mlperf.log")
    assert find_logs([tmp_path / "b", tmp_path / "a"]) == [*points, own]


def test_a_tree_is_walked_and_numbers_are_numbers(tmp_path):
    logs = touch(*(tmp_path / f"x/resnet/result_{number}.txt" for number in (2, 10)))
    touch(tmp_path / "x/resnet/other.txt", tmp_path / "x/systems/s.json")
    assert find_logs([tmp_path]) == logs


def test_the_same_log_counts_once(tmp_path):
    (log,) = touch(tmp_path / "r/result_0.txt")
    (tmp_path / "link.txt").symlink_to(log)
    assert find_logs([log, tmp_path / "r", tmp_path / "link.txt"]) == [log]


def test_links_that_lead_round_in_a_circle(tmp_path):
    (log,) = touch(tmp_path / "r/result_0.txt")
    (tmp_path / "r/again").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert find_logs([tmp_path]) == [log]
    assert find_logs([tmp_path / "loop"]) == [tmp_path / "loop"]


def test_a_folder_without_logs_is_told_beside_the_logs_of_the_others(tmp_path):
    (log,) = touch(tmp_path / "good/mlperf.log")
    touch(tmp_path / "other/result.json")
    (tmp_path / "empty").mkdir()
    logs, errors = find.find_logs([tmp_path / "empty", tmp_path / "good", tmp_path / "other"])
    assert logs == [log]
    assert list(errors) == [tmp_path / "empty", tmp_path / "other"]
    nothing, no_log = errors.values()
    assert nothing.message.startswith("no mlperf.log or result_*.txt in")
    assert no_log.message.startswith("no mlperf.log in run")
    assert no_log.hint == "trainstone train writes one, other verbs do not"
