import os
import signal

import pytest

from trainstone.machine.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_only_noted_and_a_second_ctrl_c_ends_at_once(number: signal.Signals):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received == number.name
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # no second Ctrl-C
    assert signal.getsignal(number) is before
