"""Steps that an earlier start of a run has made, for the files that tell of several at once."""

from trainstone.errors import ResultError
from trainstone.results.steps import read_columns
from trainstone.train.original.facts import Facts


def read_earlier(facts: Facts, border: int) -> list[tuple[float, float]]:
    """Return time and loss of the steps from a border to the first of this start; none if they are not all there."""
    if border == facts.first_step:
        return []
    try:
        columns = read_columns(facts.folder / "steps-rank0000.csv", ("step", "step_seconds", "loss"))
    except ResultError:
        return []
    rows = zip(*(columns[name].tolist() for name in ("step", "step_seconds", "loss")), strict=True) if columns else ()
    found = {step: (seconds, loss) for step, seconds, loss in rows if border <= step < facts.first_step}
    return list(found.values()) if list(found) == list(range(border, facts.first_step)) else []
