"""codec.h on docs/protocol/golden/, and random frames into the session of the C server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from board_server import SOURCES, built, need
from golden_frames import FOLDER, Golden, golden_frames

HERE = Path(__file__).parent
FIELDS = ("operation", "flags", "session", "request", "step", "batch", "steps", "width", "dtype")
# What is wrong with them is not in one frame alone: the session refuses them.
OF_THE_SESSION = {"one-frame", "three-frames", "control-without-id", "control-without-op"}


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("cc")
    program = tmp_path_factory.mktemp("codec") / "golden_frames"
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsanitize=address,undefined", f"-I{SOURCES}"]
    subprocess.run(["cc", *strict, "-o", program, HERE / "golden_frames.c"], check=True)
    return program


@pytest.mark.parametrize("socket", ["control", "data"])
def test_golden_frames_are_read_and_written_as_they_are(codec: Path, socket: str) -> None:
    goldens = [one for one in golden_frames() if one.says["socket"] == socket and one.name not in OF_THE_SESSION]
    command = [codec, socket, *(FOLDER / f"{golden.name}.bin" for golden in goldens)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [said(golden) for golden in goldens]


def said(golden: Golden) -> str:
    """What the program says of a message."""
    if golden.is_spoiled:
        return "refused"
    header = [] if golden.is_control else [str(golden.header[field]) for field in FIELDS]
    return " ".join([*header, "same"])


def fuzz(count: int, **variables: str) -> None:
    """Feed frames under ASan and UBSan; golden ones are among those that it begins with."""
    goldens = [FOLDER / f"{golden.name}.bin" for golden in golden_frames()]
    done = subprocess.run(
        [built("fuzz", CFLAGS="-O0 -Werror", **variables), str(count), "1", *goldens],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[2]) > count / 3, done.stdout


GOLDEN_SIZES = "-DVN_INPUTS=2 -DVN_NODES=3"


@pytest.mark.slow
def test_three_thousand_frames() -> None:
    fuzz(3_000, DEFINES=GOLDEN_SIZES)


@pytest.mark.slow
def test_many_frames() -> None:
    fuzz(400_000, DEFINES=GOLDEN_SIZES)
    fuzz(400_000, DEVICE=str(HERE / "leaky_device.c"))
