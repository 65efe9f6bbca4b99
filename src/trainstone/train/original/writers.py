"""Files that a recipe's original wrote, written again while the run goes on: original/ of the run folder.

Each format is a file beside this one; the first rank writes them. mlperf.log is in mllog.py.
"""

from collections.abc import Callable, Iterator

from trainstone.measure.sink import Sink
from trainstone.train.original.facts import Facts
from trainstone.train.original.iterdur import DurationFile
from trainstone.train.original.nvlog import BenchmarkLog, TrainingLog
from trainstone.train.original.result_line import ResultLine, open_detector_result
from trainstone.train.original.ssd_lines import TrainingLines
from trainstone.train.original.timehistory import LoopLog, ThroughputLog

MAKERS: dict[tuple[str, str], tuple[Callable[[Facts], Sink], ...]] = {
    ("wmlce", "train"): (TrainingLog,),
    ("wmlce", "bench"): (BenchmarkLog,),
    ("sc22", "train"): (DurationFile,),
    ("sc22", "bench"): (DurationFile,),
    ("tbd", "train"): (LoopLog,),
    ("tbd", "bench"): (ThroughputLog,),
    ("mlperf", "train"): (ResultLine,),  # of a bench the original had no log
    ("mlperf_ssd", "train"): (TrainingLines, open_detector_result),
}


def list_writers(facts: Facts) -> Iterator[Sink]:
    """Open one file after the other of those that the recipe's original wrote; for rank 0 only."""
    for maker in MAKERS.get((facts.config.original.name, facts.kind), ()):
        yield maker(facts)
