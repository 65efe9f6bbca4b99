"""The command line with fake sweep points and without a report page: python fake_sweep.py sweep ..."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import trainstone.cli.execute
from trainstone.cli.main import main
from trainstone.flows import child_runs

if __name__ == "__main__":
    vars(child_runs)["TRAINSTONE"] = (sys.executable, "-I", "-S", str(Path(__file__).with_name("fake_point.py")))
    vars(trainstone.cli.execute)["write_page"] = lambda run: None
    main()
