"""Files that a recipe's original wrote, written while the run goes on: original/ of the run folder.

Each format is a file beside this one; rank 0 writes them. mlperf.log is in mllog.py.
"""

from collections.abc import Callable, Iterator

from trainstone.measure.recorder import Sink
from trainstone.train.original.iterdur import DurationFile
from trainstone.train.original.lines import Facts, OriginalFile
from trainstone.train.original.nvlog import BenchmarkLines, NvlogFile, TrainingNvlog
from trainstone.train.original.result_line import ResultLine
from trainstone.train.original.ssd_lines import TrainingLines
from trainstone.train.original.timehistory import LoopLines, ThroughputLog

MAKERS: dict[tuple[str, str], tuple[Callable[[Facts], Sink], ...]] = {
    ("wmlce", "train"): (lambda facts: NvlogFile(facts, TrainingNvlog(facts)),),
    ("wmlce", "bench"): (lambda facts: NvlogFile(facts, BenchmarkLines(facts)),),
    ("sc22", "train"): (DurationFile,),
    ("sc22", "bench"): (DurationFile,),
    ("tbd", "train"): (lambda facts: OriginalFile(facts, LoopLines(facts)),),
    ("tbd", "bench"): (ThroughputLog,),
    ("mlperf", "train"): (ResultLine,),  # of a bench the original had no log
    ("mlperf_ssd", "train"): (lambda facts: OriginalFile(facts, TrainingLines(facts)), ResultLine),
}


def list_writers(facts: Facts) -> Iterator[Sink]:
    """Open one file after the other of those that the recipe's original wrote; for rank 0 only."""
    for maker in MAKERS.get((facts.config.original.name, facts.kind), ()):
        yield maker(facts)
