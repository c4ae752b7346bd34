"""Where triton is for the tests: installed, or in a folder that `RESERVOIR_HW_TRITON` names."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def with_triton(script: str, *arguments: str, interpret: bool) -> Any:
    """What a script beside this file prints as JSON, in a process of its own that can import triton.

    The interpreter is chosen before triton is imported, for the whole process.
    """
    folder = os.environ.get("RESERVOIR_HW_TRITON", "")
    if not folder and importlib.util.find_spec("triton") is None:
        pytest.skip(
            "triton is not installed, and RESERVOIR_HW_TRITON names no folder that has it (make test-slow does)"
        )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), folder, environment.get("PYTHONPATH", "")]))
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, str(Path(__file__).with_name(script)), "--json", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
