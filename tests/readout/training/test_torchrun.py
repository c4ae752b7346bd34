from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pytest
import training_case
from training_case import SmallModel, facts, options, text

from reservoir_hw.readout.training import train


def torchrun(
    folder: Path, *arguments: str, script: list[str] | None = None, **environment: str
) -> subprocess.Popen[str]:
    """The small training without dropout, or another script, shared by two processes."""
    case = script or [training_case.__file__, str(folder / "run"), str(folder / "result.json"), "--dropout", "0"]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *case, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
        # A terminal sends Ctrl-C to all processes of a group.
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What one process gives."""
    model = SmallModel(dropout=0.0)
    return facts(model, train(model, text(3000), text(500, "valid"), options=options(log_steps=1)))


def check_equal(found: dict[str, Any], alone: dict[str, Any]) -> None:
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=0, atol=2e-6)
    # 500 tokens make 31 windows, which two cannot share equally.
    np.testing.assert_allclose(found["validation"], alone["validation"], rtol=0, atol=2e-6)


@pytest.mark.slow
def test_two_processes_are_one(tmp_path: Path, alone: dict[str, Any]) -> None:
    with torchrun(tmp_path) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "deprecated" not in errors
    check_equal(json.loads((tmp_path / "result.json").read_text()), alone)
    assert json.loads((tmp_path / "run" / "training.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_ctrl_c_stops_both_and_they_go_on(tmp_path: Path, alone: dict[str, Any]) -> None:
    with torchrun(tmp_path, "--slowly", "0.1") as process:
        for line in cast(IO[str], process.stdout):
            if line.startswith("step 8 "):
                break
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode != 0
    assert errors.count("the same call goes on from") >= 2
    with torchrun(tmp_path) as process:
        first = cast(IO[str], process.stdout).readline()
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    # Not from the checkpoint after step 7.
    assert 9 <= int(first.split()[1]) <= 11
    check_equal(json.loads((tmp_path / "result.json").read_text()), alone)


OWN_CONSTANTS = """\
import os, sys
from training_case import SmallModel, options, text
from reservoir_hw.readout.training import train

class OwnDevice(SmallModel):
    def constants(self):
        return {"offset": int(os.environ["RANK"])}

for steps in (3, 5):
    train(OwnDevice(), text(3000), options=options(steps=steps), folder=sys.argv[1])
"""


@pytest.mark.slow
def test_every_process_may_have_a_device_of_its_own(tmp_path: Path) -> None:
    """The first has written what its input map is; that of the others need not be the same."""
    (tmp_path / "own.py").write_text(OWN_CONSTANTS)
    path = os.pathsep.join([str(Path(training_case.__file__).parent), os.environ.get("PYTHONPATH", "")])
    with torchrun(tmp_path, script=[str(tmp_path / "own.py"), str(tmp_path / "run")], PYTHONPATH=path) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads((tmp_path / "run" / "training.json").read_text())["steps"] == 5


@pytest.mark.slow
def test_batch_must_be_shared_equally(tmp_path: Path) -> None:
    with torchrun(tmp_path, "--batch", "7") as process:
        _, errors = process.communicate()
    assert process.returncode != 0
    assert "batch 7 cannot be shared equally by 2 processes" in errors
