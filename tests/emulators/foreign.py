"""Runs the programs in `witnesses/`, which drive an instrument by somebody else's driver."""

import os
import subprocess
from pathlib import Path

import pytest

WITNESSES = Path(__file__).with_name("witnesses")


def run_witness(name, argument, folder, status=0):
    """What it prints, when it has ended with this status. It is run in `folder`, and takes that for its home."""
    python = os.environ.get("RESERVOIR_HW_WITNESSES")
    if not python:
        pytest.skip("RESERVOIR_HW_WITNESSES names no python that has pymeasure, qcodes, tm_devices and this package")
    environment = {**os.environ, "HOME": str(folder)}
    command = [python, str(WITNESSES / name), str(argument)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, cwd=folder, env=environment
    )
    assert done.returncode == status, done.stderr
    return done.stdout
