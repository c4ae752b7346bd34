"""Lines that drop, repeat, flip, cut and stall frames in both directions: the right states or an error."""

from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.backends.serial import SerialConfig
from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.core.errors import ReservoirError
from reservoir_hw.emulators.board.board import SCALE, VirtualNodes
from reservoir_hw.emulators.board.faults import BoardFaultPlan
from reservoir_hw.emulators.board.line import emulated_board

NODES, STEPS = 8, 60
COUNTS = np.random.default_rng(0).integers(-16384, 16384, (STEPS, 1))
INPUTS = (COUNTS * SCALE).astype(np.float32)[None]
STATES = (VirtualNodes(NODES).run(COUNTS) * SCALE).astype(np.float32)[None]
# So that about every other run meets one.
RATE = 0.06


def plan(kind: str) -> BoardFaultPlan:
    more = {"seconds": 0.1} if kind == "stall" else {}
    faults = [{"kind": kind, "direction": way, "rate": RATE, **more} for way in ("to_board", "to_host")]
    return validate(BoardFaultPlan, Document.from_mapping({"seed": 5, "faults": faults}, "a test"))


@pytest.mark.parametrize("runs", [4, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["drop", "repeat", "flip", "cut", "stall"])
def test_runs_on_a_bad_line(kind: str, runs: int, capsys: pytest.CaptureFixture[str]) -> None:
    count = {"right": 0, "refused": 0, "wrong": 0}
    with emulated_board(NODES, frame_bytes=256, faults=plan(kind)) as line:
        reservoir = SerialConfig(kind="serial", port=line.port, timeout_s=0.05).build()
        while sum(count.values()) < runs:
            try:
                reservoir.open()
                reservoir.reset()
                states = reservoir.run(INPUTS)
            except ReservoirError as fault:
                count["refused"] += 1
                states = getattr(fault, "states", None)
                if states is not None and not np.array_equal(states, STATES[:, : states.shape[1]]):
                    count["wrong"] += 1
            else:
                count["right" if np.array_equal(states, STATES) else "wrong"] += 1
            if sum(count.values()) % 20 == 0:
                reservoir.close()
        reservoir.close()
        struck = line.faults.struck
    with capsys.disabled():
        print(f"\n{kind}: {count}, faults {dict(struck)}", end="")  # noqa: T201
    assert count["wrong"] == 0
    assert count["right"] > 0
