"""Translate torch's errors into messages for users: out of memory, a lost rank, a failed torch.compile."""

import re

from trainstone.engine.distributed.store import first_line
from trainstone.errors import MachineError, OutOfMemoryError, PeerLostError, TrainstoneError
from trainstone.measure.devices import is_out_of_memory

# Error texts of gloo and NCCL when another rank has ended or does not answer.
PEER_SIGNS = re.compile(
    "closed by peer|reset by peer|broken pipe|connection refused|connection was likely closed|timed out waiting|"
    "caused pair closure|collective operation timeout|communicator was aborted|ncclremoteerror|remote process exited|"
    "socket timeout",
    re.IGNORECASE,
)


def explain_torch_error(err: RuntimeError) -> TrainstoneError | None:
    """Return an error with a message for users; None if the torch error is not recognised."""
    text = str(err)
    if is_out_of_memory(err):
        first = text.splitlines()[0]
        return OutOfMemoryError(
            f"out of memory: {first}", hint="use a smaller train.batch_size (eval.batch_size for eval), or auto"
        )
    if type(err).__module__.startswith(("torch._dynamo", "torch._inductor")):
        message = next(
            (line.strip() for line in text.splitlines() if line.strip() and not line.endswith("raised:")), text
        )
        return MachineError(f"torch.compile does not work here: {message}", hint="--set engine.compile=false")
    if PEER_SIGNS.search(text):
        return PeerLostError(
            f"another rank died or does not answer: {first_line(err)}",
            hint="see its own output; `trainstone train --resume RUN` resumes from the last checkpoint",
        )
    return None
