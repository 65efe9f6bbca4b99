"""Files that a recipe's original wrote, written while the run goes on: original/ of the run folder. Rank 0 writes them.

The lines of MLPerf's MXNet SSD, the logs of the TBD suite, the iteration durations of the SC22 study and the log that
MLPerf's run_and_time.sh left. What WMLCE logged is in nvlog.py, mlperf.log in mllog.py.
"""

import logging
from collections.abc import Callable, Iterator

from trainstone.measure.recorder import Sink
from trainstone.originals.mlperf.result_line import ResultLine
from trainstone.originals.mlperf_ssd.training_lines import SsdLog
from trainstone.originals.output_file import RunFacts
from trainstone.originals.sc22.iteration_durations import DurationFile
from trainstone.originals.tbd.throughput_log import LoopLog, ThroughputLog
from trainstone.originals.wmlce.nvlog import BenchmarkNvlog, TrainingNvlog

log = logging.getLogger(__name__)


MAKERS: dict[tuple[str, str], tuple[Callable[[RunFacts], Sink], ...]] = {
    ("wmlce", "train"): (TrainingNvlog,),
    ("wmlce", "bench"): (BenchmarkNvlog,),
    ("sc22", "train"): (DurationFile,),
    ("sc22", "bench"): (DurationFile,),
    ("tbd", "train"): (LoopLog,),
    ("tbd", "bench"): (ThroughputLog,),
    ("mlperf", "train"): (ResultLine,),  # of a bench the original had no log
    ("mlperf_ssd", "train"): (SsdLog, ResultLine),
}


def list_writers(facts: RunFacts) -> Iterator[Sink]:
    """Open one file after the other of those that the recipe's original wrote; for rank 0 only."""
    for maker in MAKERS.get((facts.config.original.name, facts.kind), ()):
        yield maker(facts)
