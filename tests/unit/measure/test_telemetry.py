"""The sampler and its file, with made-up readers and an injected clock."""

import logging
import threading
import time

import pytest

from trainstone.measure.telemetry import Telemetry
from trainstone.results.samples import HEADER, Reading, read_samples


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class FakeReader:
    """Gives its readings one after another, then the last one for ever; an exception is raised."""

    meter: str | None = "fake"

    def __init__(self, *readings: Reading | Exception) -> None:
        self.unsupported: list[str] = []
        self.readings = list(readings) or [Reading()]
        self.closed = False

    def read(self) -> Reading:
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(reading, Exception):
            raise reading
        return reading

    def close(self) -> None:
        self.closed = True


# The sampler


def test_file_of_a_run(tmp_path):
    clock = FakeClock()
    reader = FakeReader(Reading(clock_mhz=1410.0, energy_joules=5.5, mem_used_bytes=7, throttle="none"))
    telemetry = Telemetry(
        tmp_path, "cuda:0", reader, lambda: 12, interval_seconds=60, now=clock, started=98.5, host="node/7"
    )
    with telemetry:
        while telemetry.latest is None:
            time.sleep(0.001)
        clock.seconds = 102.0
    assert telemetry.path == tmp_path / "telemetry-node_7-cuda_0.csv"
    line = "12,1410.000,,,5.500,,,7,none\n"
    assert telemetry.path.read_text() == f"{HEADER}\n1.500,{line}3.500,{line}"
    assert reader.closed
    assert read_samples(telemetry.path)[-1] == telemetry.latest
    assert telemetry.latest.time_seconds == 3.5


def test_samples_keep_coming_and_leaving_does_not_wait(tmp_path):
    telemetry = Telemetry(tmp_path, "cpu", FakeReader(), lambda: 0, interval_seconds=0.01)
    entering = time.perf_counter()
    with telemetry:
        time.sleep(0.15)
        num_samples = len(read_samples(telemetry.path))  # on disk at once: it is the heart-beat
        assert 3 <= num_samples <= 2 + (time.perf_counter() - entering) / 0.01
        telemetry._interval_seconds = 60.0
        time.sleep(0.03)
        leaving = time.perf_counter()
    assert time.perf_counter() - leaving < 1.0
    assert 0 < telemetry.cpu_seconds < 0.2
    assert not [thread for thread in threading.enumerate() if thread.name == "telemetry-cpu"]


def test_reader_error_is_logged_once_and_the_heart_beats_on(tmp_path, caplog):
    reader = FakeReader(RuntimeError("driver gone"))
    telemetry = Telemetry(tmp_path, "cpu", reader, lambda: 4, interval_seconds=0.005)
    with caplog.at_level(logging.WARNING), telemetry:
        time.sleep(0.05)
    assert [record.getMessage() for record in caplog.records] == [
        "telemetry: cannot read the device: RuntimeError: driver gone"
    ]
    samples = read_samples(telemetry.path)
    assert len(samples) >= 2
    assert {sample.step for sample in samples} == {4}
    assert {sample.clock_mhz for sample in samples} == {None}


def test_reader_that_recovers_is_recorded_again(tmp_path):
    reader = FakeReader(RuntimeError("once"), Reading(temp_celsius=50.0))
    telemetry = Telemetry(tmp_path, "cpu", reader, lambda: 1)
    telemetry.sample()
    assert telemetry.latest is not None
    assert telemetry.latest.temp_celsius is None
    telemetry.sample()
    assert telemetry.latest.temp_celsius == 50.0


def test_folder_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with Telemetry(tmp_path / "file", "cpu", FakeReader(), lambda: 1, interval_seconds=0.005) as telemetry:
        time.sleep(0.02)
    assert telemetry.latest is not None
    assert [record.getMessage()[:23] for record in caplog.records] == ["telemetry: cannot write"]


def test_exception_of_the_run_passes_through(tmp_path):
    reader = FakeReader()
    with pytest.raises(KeyError), Telemetry(tmp_path, "cpu", reader, lambda: 1):
        raise KeyError("step")
    assert reader.closed


def test_machine_that_gives_no_thread_does_not_end_the_run(tmp_path, caplog, monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Telemetry(tmp_path, "cpu", FakeReader(), lambda: 1) as telemetry:
        pass
    assert "can't start new thread" in caplog.text
    assert len(read_samples(telemetry.path)) == 1


def test_driver_that_hangs_is_left_behind(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("trainstone.measure.telemetry.JOIN_SECONDS", 0.02)
    release = threading.Event()
    reader = FakeReader()
    monkeypatch.setattr(reader, "read", lambda: release.wait(5) and Reading())
    with Telemetry(tmp_path, "cpu", reader, lambda: 1) as telemetry:
        pass
    assert "hangs" in caplog.text
    release.set()
    telemetry._thread.join(5)
    assert telemetry._file is not None
    telemetry._file.close()


@pytest.mark.parametrize("torn", ["", "0.5", "time_sec", f"{HEADER}\n", f"{HEADER}\n1.000,3,,,,,,,,none\n2.0,4,,"])
def test_resumed_run_goes_on_after_the_last_whole_line(tmp_path, torn):
    telemetry = Telemetry(tmp_path, "cpu", FakeReader(), lambda: 9, interval_seconds=60, host="h")
    telemetry.path.write_text(torn)
    with telemetry:
        pass
    steps = [sample.step for sample in read_samples(telemetry.path)]
    assert [step for step in steps if step != 9] == ([3] if "1.000" in torn else [])
    assert steps[-1] == 9
    assert telemetry.path.read_text().count(HEADER) == 1
