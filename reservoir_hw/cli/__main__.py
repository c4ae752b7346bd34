"""`python -m reservoir_hw.cli` is the same as `reservoir-hw`."""

from reservoir_hw.cli import main

main()
