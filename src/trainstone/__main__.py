"""The entry point of `trainstone` and `python -m trainstone`: what must be right before anything else is imported."""

import os
import signal
import sys


def main() -> None:
    """Run the command line."""
    # Until cli/main.py handles signals, Ctrl-C ends the process without a traceback of half-imported modules.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A stream that the caller has closed: the next file that is opened would take its number, and its output.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    from trainstone.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
