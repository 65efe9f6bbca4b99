"""How busy the pipes of the device's cores were, by ncu."""

from trainstone.report.blocks import Block, Facts, Section
from trainstone.report.profile_charts import draw_pipes
from trainstone.report.view import RunView
from trainstone.units import format_count


def build(view: RunView) -> Section | None:
    """A bar a pipe."""
    timeline = view.result.timeline
    if timeline is None or timeline.cores is None or not timeline.cores.pipes_percent:
        return None
    cores = timeline.cores
    processes = f"{cores.processes:,} process{'' if cores.processes == 1 else 'es'}"
    where = f"{format_count(cores.kernels, 'kernel')} of {processes}"
    rows = [("measured over", where), ("cycles", f"{cores.cycles:,.0f}")]
    rows += [("by ncu, in", cores.file)] if cores.file else []
    blocks: list[Block] = [draw_pipes(cores), Facts(rows)]
    return Section("cores", "Cores", blocks, "Percent of each pipe's peak, weighted by each kernel's cycles.")
