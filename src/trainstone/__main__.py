"""python -m trainstone."""

from trainstone.cli.main import main

main()
