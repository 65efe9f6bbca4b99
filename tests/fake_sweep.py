"""The command line with points that need no torch and without a page: python tests/fake_sweep.py sweep ..."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import trainstone.cli.bench
from trainstone.cli.main import main
from trainstone.launch import children

if __name__ == "__main__":
    vars(children)["TRAINSTONE"] = (sys.executable, "-I", "-S", str(Path(__file__).with_name("fake_point.py")))
    vars(trainstone.cli.bench)["write_page"] = lambda run: None
    main()
