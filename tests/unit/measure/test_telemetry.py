"""The sampler and its file, with made-up readers and an injected clock."""

import logging
import platform
import threading
import time

import pytest

from trainstone.measure.telemetry import Telemetry
from trainstone.results.samples import HEADER, Reading, read_samples


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


def test_file_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "node/7")
    now = [100.0]
    reader = FakeReader(Reading(clock_mhz=1410.0, energy_joules=5.5, mem_used_bytes=7, throttle="none"))
    telemetry = Telemetry(tmp_path, "cuda:0", reader, lambda: 12, 60.0, now=lambda: now[0], started=98.5)
    with telemetry:
        while not read_samples(telemetry.path):
            time.sleep(0.001)
        now[0] = 102.0
    assert telemetry.path == tmp_path / "telemetry-node_7-cuda_0.csv"
    line = "12,1410.000,,,5.500,,,7,none\n"
    assert telemetry.path.read_text() == f"{HEADER}\n1.500,{line}3.500,{line}"
    assert reader.closed


def test_reader_error_is_logged_once_and_the_heart_beats_on(tmp_path, caplog):
    gone = RuntimeError("driver gone")
    telemetry = Telemetry(tmp_path, "cpu", FakeReader(gone, gone, Reading(temp_celsius=50.0)), lambda: 4)
    with caplog.at_level(logging.WARNING):
        telemetry.path.touch()
        telemetry._file = telemetry.path.open("ab", buffering=0)
        telemetry._file.write(f"{HEADER}\n".encode())
        for _ in range(3):
            telemetry.sample()
    assert [one.getMessage() for one in caplog.records] == [
        "telemetry: cannot read the device: RuntimeError: driver gone"
    ]
    samples = read_samples(telemetry.path)
    assert [(sample.step, sample.temp_celsius) for sample in samples] == [(4, None), (4, None), (4, 50.0)]
    telemetry._file.close()


def test_folder_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    reader = FakeReader()
    with Telemetry(tmp_path / "file", "cpu", reader, lambda: 1, interval_seconds=0.005):
        time.sleep(0.02)
    assert reader.closed
    assert [record.getMessage()[:23] for record in caplog.records] == ["telemetry: cannot write"]


def test_driver_that_hangs_is_left_behind(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("trainstone.measure.telemetry.JOIN_SECONDS", 0.02)
    release = threading.Event()
    reader = FakeReader()
    monkeypatch.setattr(reader, "read", lambda: release.wait() and Reading())
    with Telemetry(tmp_path, "cpu", reader, lambda: 1) as telemetry:
        pass
    assert "hangs" in caplog.text
    release.set()
    telemetry._thread.join()
    assert telemetry._file is not None
    telemetry._file.close()


@pytest.mark.parametrize("torn", ["", "0.5", "time_sec", f"{HEADER}\n", f"{HEADER}\n1.000,3,,,,,,,,none\n2.0,4,,"])
def test_resumed_run_goes_on_after_the_last_whole_line(tmp_path, torn):
    telemetry = Telemetry(tmp_path, "cpu", FakeReader(), lambda: 9, interval_seconds=60)
    telemetry.path.write_text(torn)
    with telemetry:
        pass
    steps = [sample.step for sample in read_samples(telemetry.path)]
    assert [step for step in steps if step != 9] == ([3] if "1.000" in torn else [])
    assert steps[-1] == 9
    assert telemetry.path.read_text().count(HEADER) == 1
