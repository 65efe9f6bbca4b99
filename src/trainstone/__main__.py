"""Entry point of `trainstone` and `python -m trainstone`: set up signals and streams before other imports."""

import os
import signal
import sys


def main() -> None:
    """Run the command line."""
    # Until cli/main.py handles signals, Ctrl-C ends the process without a traceback from an import.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Replace closed streams: the next opened file would get the stream's number, and its output.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    from trainstone.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
