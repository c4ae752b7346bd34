"""`held_for_s`: a device that keeps its state for a while, and then loses it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import chemical_cell
import numpy as np
import pytest
from served import free_address, served

from reservoir_hw.core.errors import StateLost
from reservoir_hw.core.reservoir_config import build_reservoir, open_reservoir, reservoir_config
from reservoir_hw.testing.conformance import conform
from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.device import Device

HELD_FOR_S = 0.15
U = np.random.default_rng(0).uniform(-1, 1, (1, 40, 1))


def cell(**more: Any) -> dict[str, Any]:
    return {
        "kind": "python", "call": "chemical_cell:forgets", "reset_call": "chemical_cell:to_rest", "nodes": 3,
        "inputs": 1, "continuity": "held", "deterministic": True, "simulated": False, "held_for_s": HELD_FOR_S, **more,
    }  # fmt: skip


def wait_until_forgotten() -> None:
    # The cell tells the time, not the test: it has forgotten when so much time has passed.
    until = time.monotonic() + 2 * HELD_FOR_S
    while time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.parametrize("is_served", [False, True], ids=["here", "served"])
def test_a_longer_pause_is_refused_before_anything_is_driven(is_served: bool) -> None:
    address = free_address()
    far = {"kind": "zmq", "address": address}
    device = build_reservoir(reservoir_config(cell()))
    with served(device, address), open_reservoir(far) if is_served else open_reservoir(cell()) as reservoir:
        assert reservoir.spec.held_for_s == HELD_FOR_S
        whole = reservoir.run(U)
        reservoir.reset()
        first = reservoir.run(U[:, :20])
        assert np.array_equal(np.concatenate([first, reservoir.run(U[:, 20:])], axis=1), whole)
        driven = chemical_cell.driven
        wait_until_forgotten()
        for again in (lambda: reservoir.run(U), lambda: list(reservoir.stream([U]))):
            with pytest.raises(
                StateLost, match=r"nothing was driven for .* holds its state for 0\.15 s \(held_for_s\)"
            ):
                again()
        assert reservoir.state_lost
        assert chemical_cell.driven == driven
        # A rest state waits for ever.
        reservoir.reset()
        wait_until_forgotten()
        assert np.array_equal(reservoir.run(U), whole)


def test_the_server_looks_at_the_time_too() -> None:
    """A client that knows nothing of it gets error 11."""
    address = free_address()
    with served(build_reservoir(reservoir_config(cell())), address), Device(address) as line:
        client = line.client()
        client.hello()
        client.attach()
        u = U.astype(codec.NUMBERS[client.declaration["inputs"][0]])
        client.run(u[:, :20])
        driven = chemical_cell.driven
        wait_until_forgotten()
        assert client.failed(client.send_run(u[:, 20:], step=20), codec.E_STATE_LOST)["state_lost"]
        client.close()
        assert chemical_cell.driven == driven


def test_the_suite_says_how_long_its_pauses_were(tmp_path: Path) -> None:
    for held_for_s, said in ((None, "pauses were 0.02 s long; held_for_s is not declared"), (HELD_FOR_S, "0.12 s")):
        file = tmp_path / "cell.yaml"
        file.write_text(json.dumps(cell(held_for_s=held_for_s)))
        statements = {one.name: one for one in conform(file, groups=["continuity"]).statements}
        (pauses,) = [one for name, one in statements.items() if "pauses" in name]
        assert pauses.outcome == "passed"
        assert said in pauses.text
