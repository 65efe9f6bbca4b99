"""Memory and energy."""

from trainstone.report.blocks import Facts, Section
from trainstone.report.view import RunView
from trainstone.units import format_bytes


def build(view: RunView) -> Section | None:
    """What was used at most, and per image."""
    memory, energy = view.result.memory, view.result.energy
    rows = []
    if memory:
        if memory.peak_device_bytes:
            rows.append(("memory of the device, at most", format_bytes(memory.peak_device_bytes)))
        if memory.peak_host_bytes:
            rows.append(("memory of the host, at most", format_bytes(memory.peak_host_bytes)))
        if memory.allocator:
            rows.append(("allocator", memory.allocator))
        if memory.page_faults_per_step is not None:
            rows.append(("page faults a step", f"{memory.page_faults_per_step:,.0f}"))
    if energy:
        rows.append(("energy an image", f"{energy.joules_per_image:.3g} J"))
        rows.append(("average power", f"{energy.average_watts:.3g} W"))
        rows.append(("meter", energy.meter))
    title = "Memory and energy" if energy else "Memory"
    return Section("resources", title, [Facts(rows)]) if rows else None
