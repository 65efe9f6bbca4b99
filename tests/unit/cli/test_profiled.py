"""What the terminal says of a profile, at every width, and that text from a trace is not obeyed."""

import io

import pytest
from rich.console import Console

from made_results import make_profile, make_timeline
from trainstone.cli.summary import print_rows, profile_rows
from trainstone.results.schema import Result


def tell(result: Result, width: int = 36, encoding: str = "utf-8") -> dict[str, str]:
    return {name: str(text) for name, text in profile_rows(result, width, encoding)}


def test_a_cpu_profile_tells_where_the_time_went():
    told = tell(make_profile())
    assert list(told) == ["where", "busy", "profiler", "operators", "roofline", "trace"]
    assert told["where"].startswith("compute 90.5 %, optimiser 6.1 %, Python 2.1 %, waiting for data 0.6 %")
    assert told["busy"] == "operators run for 96.6 % of the time, on 1.94 cores"
    assert told["profiler"].startswith("+3.8 % a step (")
    assert told["roofline"].startswith("Convolution backward takes 63 % of the step and reaches")
    assert told["trace"] == "trace/rank0000.json.gz, for https://ui.perfetto.dev"


def test_a_gpu_profile_tells_its_gaps_and_cores():
    told = tell(make_profile(make_timeline("cuda")))
    assert list(told) == ["where", "gaps", "busy", "profiler", "operators", "roofline", "cores", "trace"]
    assert told["gaps"].startswith("The device is idle for 29 %")
    assert told["busy"].startswith("kernels run for 7")
    assert told["cores"] == "fma 17.5 %, fp16 4.0 %, tensor 38.6 %, sfu 1.3 %"


def test_bars_need_no_unicode():
    lines = tell(make_profile(), encoding="ascii")["operators"].split("\n")
    assert lines[0].startswith("######## 47.0 %")
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("width", [30, 40, 80, 120])
def test_operators_keep_to_their_lines(width: int):
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    print_rows(console, list(profile_rows(make_profile(), min(36, width - 2), "utf-8")))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if "aten::" in line]) == 6
