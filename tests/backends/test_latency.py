"""A device of a lab that answers late: `latency_steps` moves its answers to where their inputs are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError, DeviceError, NotSupported, StateLost
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir, reservoir_config
from reservoir_hw.experiment.states.drive import forecast
from tests import lab_devices
from tests.served import ipc_address, served

STEPS = 90
U = np.random.default_rng(3).uniform(-1, 1, (1, STEPS, 1))


def film(late: int = 6, **over: Any) -> Reservoir:
    """The film, told how late it is. It has no noise."""
    declared = {
        "kind": "python", "call": "tests.lab_devices:drive", "reset_call": "tests.lab_devices:settle", "inputs": 1,
        "nodes": lab_devices.NODES, "simulated": True, "continuity": "held", "input_range": [-1, 1],
        "latency_steps": late, "params": {"late": late, "noise_v": 0.0}, **over,
    }  # fmt: skip
    return reservoir_config(declared).build()


def at_once() -> np.ndarray:
    """What the film answers where nothing is late."""
    with film(late=0) as device:
        return np.asarray(device.run(U))


@pytest.mark.parametrize("call", ["drive", "one_step"])
@pytest.mark.parametrize("continuity", ["held", "free_running"])
@pytest.mark.parametrize("late", [1, 6])
def test_row_t_is_the_response_to_step_t(continuity: str, call: str, late: int) -> None:
    mode = {"call": f"tests.lab_devices:{call}", "mode": "run" if call == "drive" else "step"}
    with film(late, continuity=continuity, **mode) as device:
        assert device.spec.latency_steps == late
        assert np.array_equal(device.run(U), at_once())
        # What was driven behind the last input counts.
        assert device.counters.steps == device.played_steps(STEPS) == STEPS + late
        with pytest.raises(StateLost, match=rf"driven {late} steps further until its late answers were there"):
            device.run(U)
        with pytest.raises(NotSupported, match="its answers come late"):
            forecast(device, None, U, 3)  # pyright: ignore[reportArgumentType]
        assert device.counters.steps == STEPS + late


@pytest.mark.parametrize("pieces", [(90,), (30, 30, 30), (1, 1, 2, 0, 80, 6), (89, 1), (40, 50, 0)])
@pytest.mark.parametrize("late", [3, 6])
def test_a_stream_of_a_held_device_is_one_drive(late: int, pieces: tuple[int, ...]) -> None:
    with film(late) as device:
        chunks = np.split(U, np.cumsum(pieces)[:-1], axis=1)
        streamed = [np.asarray(states) for states in device.stream(chunks)]
        assert [len(states[0]) for states in streamed] == list(pieces)
        assert np.array_equal(np.concatenate(streamed, axis=1), at_once())
        assert device.counters.steps == STEPS + late


@pytest.mark.parametrize("pieces", [(45, 45), (1, 2, 3, 84), (1,) * 8])
def test_pieces_of_a_replayed_device_are_its_whole(pieces: tuple[int, ...]) -> None:
    """Each call begins with earlier inputs, and ends with the steps by which the answers are late."""
    with film(continuity="replayed", memory_steps=60) as device:
        ends = np.cumsum(pieces)
        parts = [np.asarray(device.run(part)) for part in np.split(U[:, : ends[-1]], ends[:-1], axis=1)]
        assert np.allclose(np.concatenate(parts, axis=1), at_once()[:, : ends[-1]], rtol=0, atol=1e-12)
        repeated = sum(min(60, end) for end in ends[:-1])
        assert device.counters.steps == ends[-1] + repeated + 6 * len(pieces)


def test_a_reset_that_is_played_is_late_too() -> None:
    """Nothing of the noise that brings a device to rest is taken for an answer."""
    washout = {"reset_call": None, "reset": {"kind": "washout", "steps": 40}}
    lab_devices.settle()
    with film(**washout) as device:
        late = np.asarray(device.run(U))
        assert device.counters.steps == device.played_steps(40) + device.played_steps(STEPS)
    lab_devices.settle()
    with film(late=0, **washout) as device:
        assert np.allclose(late[:, 60:], np.asarray(device.run(U))[:, 60:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("fails_at", "kept"), [(4, 0), (50, 44), (93, 87)])
def test_what_was_there_before_a_fault_is_in_its_place(fails_at: int, kept: int, streamed: bool) -> None:
    count = 0

    def fails(u: np.ndarray) -> np.ndarray:
        nonlocal count
        count += 1
        if count > fails_at:
            raise OSError("the card is gone")
        return lab_devices.one_step(u, noise_v=0.0, late=6)

    expected = at_once()
    with (
        film(call=fails, mode="step", params={}) as device,
        pytest.raises(DeviceError, match="the card is gone") as found,
    ):
        list(device.stream([U])) if streamed else device.run(U)
    fault = found.value
    assert fault.states is not None
    assert fault.steps_done == fault.states.shape[1] == kept
    assert np.array_equal(fault.states, expected[:, :kept])


def test_the_latency_is_a_part_of_the_identity() -> None:
    """A readout that was trained on late rows cannot read others."""
    with film(late=0) as plain:
        fingerprint = plain.spec.identity.fingerprint
    with film(latency_steps=2, params={}) as told, film(latency_steps=3, params={}) as otherwise:
        assert len({fingerprint, told.spec.identity.fingerprint, otherwise.spec.identity.fingerprint}) == 3


def test_a_forecast_of_a_late_device_is_refused_before_it_is_opened() -> None:
    from reservoir_hw import Experiment

    document = {
        "task": {"kind": "mackey_glass", "closed_loop": {"forecast_steps": 5, "starts": 1, "warmup_steps": 20}},
        "reservoir": {
            "kind": "python", "call": "tests.lab_devices:drive", "reset_call": "tests.lab_devices:settle",
            "nodes": 8, "simulated": False, "continuity": "held", "latency_steps": 6,
        },
        "readout": {"kind": "ridge"},
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match="waits for each answer, and a device whose answers are 6 steps late"):
        Experiment(document).run()


@pytest.mark.parametrize(("continuity", "memory"), [("held", 0), ("free_running", 0), ("replayed", 60)])
def test_a_served_device_that_is_late(continuity: str, memory: int) -> None:
    """The client learns how late it is, and gets the rows that it would get beside the device."""
    with (
        ipc_address() as address,
        served(film(continuity=continuity, memory_steps=memory), address),
        open_reservoir({"kind": "zmq", "address": address}) as client,
    ):
        assert client.spec.latency_steps == 6
        assert np.allclose(np.asarray(client.run(U)), at_once(), rtol=0, atol=1e-12)
        assert client.counters.steps == client.played_steps(STEPS) == STEPS + 6
        client.reset()
        if continuity == "held":
            streamed = [np.asarray(states) for states in client.stream(np.split(U, [3, 40, 41], axis=1))]
            assert [states.shape[1] for states in streamed] == [3, 37, 1, 49]
            assert np.array_equal(np.concatenate(streamed, axis=1), at_once())
