"""Registry of log writers that reproduce an original benchmark's files, in original/ of the run folder.

Rank 0 writes them during the run. mlperf.log is separate: originals/mlperf/training_log.py.
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


WRITERS: dict[tuple[str, str], tuple[Callable[[RunFacts], Sink], ...]] = {
    ("wmlce", "train"): (TrainingNvlog,),
    ("wmlce", "bench"): (BenchmarkNvlog,),
    ("sc22", "train"): (DurationFile,),
    ("sc22", "bench"): (DurationFile,),
    ("tbd", "train"): (LoopLog,),
    ("tbd", "bench"): (ThroughputLog,),
    ("mlperf", "train"): (ResultLine,),  # the original wrote no log for a bench
    ("mlperf_ssd", "train"): (SsdLog, ResultLine),
}


def list_writers(facts: RunFacts) -> Iterator[Sink]:
    """Open the files that the recipe's original wrote, one after the other; call it on rank 0 only."""
    for writer in WRITERS.get((facts.config.original.name, facts.kind), ()):
        yield writer(facts)
