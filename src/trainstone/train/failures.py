"""What torch says when memory runs out, another rank is lost or a model cannot be compiled, as errors with a hint."""

from trainstone.errors import MachineError, OutOfMemoryError, TrainstoneError
from trainstone.measure.devices import is_out_of_memory
from trainstone.train.distributed import explain_peer_error


def explain_torch_error(err: RuntimeError) -> TrainstoneError | None:
    """Recognise what torch says when memory is out, a rank is gone or a model cannot be compiled; None: not known."""
    text = str(err)
    if is_out_of_memory(err):
        first = text.splitlines()[0]
        return OutOfMemoryError(
            f"out of memory: {first}", hint="take a smaller train.batch_size (eval.batch_size to evaluate), or auto"
        )
    if type(err).__module__.startswith(("torch._dynamo", "torch._inductor")):
        told = next((line.strip() for line in text.splitlines() if line.strip() and not line.endswith("raised:")), text)
        return MachineError(f"torch.compile does not work here: {told}", hint="--set engine.compile=false")
    return explain_peer_error(err)
