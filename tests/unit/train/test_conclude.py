from trainstone.results.schema import Device
from trainstone.train.conclude import sum_energy


def device(host: str, label: str, watts: float | None) -> Device:
    telemetry = {} if watts is None else {"average_watts": watts, "meter": "NVML energy counter"}
    return Device(host=host, name="x", label=label, telemetry=telemetry)


def test_energy_of_several_devices_is_the_sum_of_their_own_meters():
    energy = sum_energy([device("a", "cuda:0", 200.0), device("a", "cuda:1", 300.0)], 1000.0)
    assert energy is not None
    assert (energy.average_watts, energy.joules_per_image, energy.meter) == (500.0, 0.5, "NVML energy counter")


def test_ranks_that_share_a_meter_or_lack_one_have_no_energy():
    assert sum_energy([device("a", "cpu", 200.0), device("a", "cpu", 200.0)], 1000.0) is None
    assert sum_energy([device("a", "cuda:0", 200.0), device("a", "cuda:1", None)], 1000.0) is None
    assert sum_energy([device("a", "cpu", None)], 1000.0) is None
