"""`kind: python`: a lab's function as a backend, from the configuration alone."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import ipc_address, served

from reservoir_hw import open_reservoir
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceBusy,
    DeviceDisconnected,
    DeviceFault,
    DeviceTimeout,
    StateLost,
)
from reservoir_hw.core.functions import name_of
from reservoir_hw.core.reservoir_config import build_reservoir, parse_reservoir

U = np.linspace(-1, 1, 12).reshape(1, 12, 1)


@pytest.fixture(autouse=True)
def _bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setenv("RESERVOIR_HW_LOCKS", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("lab_bench", None)


def bench(**over: Any) -> dict[str, Any]:
    config = {
        "kind": "python", "inputs": 1, "nodes": 2, "simulated": False, "continuity": "held",
        "mode": "step", "call": "lab_bench:step", "reset_call": "lab_bench:to_rest",
    }  # fmt: skip
    return {key: value for key, value in {**config, **over}.items() if value is not None}


def truth(u: np.ndarray) -> np.ndarray:
    charge, states = 0.0, []
    for value in u[0, :, 0]:
        charge = charge / 2 + value
        states.append([charge, charge**2])
    return np.array([states])


@pytest.mark.parametrize(
    "over",
    [
        {},
        {"mode": "run", "call": "lab_bench:burst"},
        {"mode": "procedure", "call": None, "set_call": "lab_bench:apply", "read_call": "lab_bench:read"},
    ],
)
def test_every_mode_drives_the_function(over: dict[str, Any]) -> None:
    with open_reservoir(bench(**over)) as reservoir:
        np.testing.assert_allclose(reservoir.run(U), truth(U))
        reservoir.reset(1)
        chunks = [reservoir.run(U[:, :5]), reservoir.run(U[:, 5:])]
        np.testing.assert_allclose(np.concatenate(chunks, axis=1), truth(U))
        reservoir.reset(3)
        np.testing.assert_allclose(reservoir.run(np.repeat(U, 3, axis=0)), np.repeat(truth(U), 3, axis=0))


def test_life_cycle_and_provenance() -> None:
    over = {"setup_call": "lab_bench:setup", "close_call": "lab_bench:close", "serial": "A7"}
    with open_reservoir(bench(**over)) as reservoir:
        import lab_bench  # pyright: ignore[reportMissingImports]

        record = reservoir.provenance()
    assert lab_bench.calls == ["setup", "reset", "close"]
    assert record["settings"] == {"supply": "3.3 V"}
    assert record["identity"]["serial"] == "A7"
    assert record["identity"]["simulated"] is False


def test_each_function_gets_the_parameters_that_it_has_as_arguments() -> None:
    """They tell one device from another, and are kept."""
    over = {"setup_call": "lab_bench:set_bias", "call": "lab_bench:amplified", "dtype": "float32"}
    fingerprints = set()
    for bias, gain in ((0.2, 2), (0.3, 2), (0.3, 3)):
        with open_reservoir(bench(**over, params={"bias_v": bias, "gain": gain})) as reservoir:
            states = reservoir.run(U)
            record = reservoir.provenance()
        assert states.dtype == np.float32
        np.testing.assert_allclose(states[0], np.column_stack([gain * U[0, :, 0], np.full(12, bias)]), rtol=1e-6)
        assert record["params"] == {"bias_v": bias, "gain": gain}
        assert record["settings"] == {"bias_v": bias}
        fingerprints.add(record["identity"]["fingerprint"])
    assert len(fingerprints) == 3


def test_a_program_gives_its_own_functions() -> None:
    """Source, plain values and objects that a function carries along tell it from others."""

    def scaled(gain: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda u: np.repeat(gain * u, 2, axis=1)

    class Bench:
        def __init__(self, gain: float) -> None:
            self.gain = gain

        def measure(self, u: np.ndarray) -> np.ndarray:
            return np.repeat(self.gain * u, 2, axis=1)

    at_rest = {"reset_call": None, "reset": {"kind": "none", "reason": "no memory"}, "mode": "run"}
    two = [Bench(5), Bench(6)]
    given = [scaled(2), scaled(3), functools.partial(lambda gain, u: np.repeat(gain * u, 2, axis=1), 4)]
    configs = [bench(**at_rest, call=call) for call in (*given, two[0].measure, two[1].measure)]
    documents = [parse_reservoir(Document.from_mapping(config, "test")) for config in configs]
    fingerprints = set()
    for gain, config in enumerate(documents, 2):
        with open_reservoir(config) as reservoir:
            np.testing.assert_allclose(reservoir.run(U)[0, :, 0], gain * U[0, :, 0])
            fingerprints.add(reservoir.spec.identity.fingerprint)
    assert len(fingerprints) == 5
    again = parse_reservoir(Document.from_mapping(bench(**at_rest, call=scaled(2)), "test"))
    assert again == documents[0]
    # What another process would find: nothing, or another function of this name.
    name = again.model_dump()["call"]
    for call, why in ((name.replace("@", "@0"), "call = "), (name[:-2] + "zz", "call = ")):
        with pytest.raises(ConfigurationError, match=why):
            open_reservoir(bench(**at_rest, call=call))
    with pytest.raises(ConfigurationError, match="was given by a Python program, and this process does not have it"):
        open_reservoir(bench(**at_rest, call=name[:-1] + ("0" if name[-1] != "0" else "1")))
    import lab_bench  # pyright: ignore[reportMissingImports]

    changed = name_of(lab_bench.step).partition("@")[0] + "@0123456789ab"
    with pytest.raises(ConfigurationError, match="its source is another one now"):
        open_reservoir(bench(call=changed))


def test_a_function_that_hangs_is_given_up() -> None:
    over = {"call": "lab_bench:waits", "close_call": "lab_bench:close", "timeout_s": 0.2}
    reservoir = open_reservoir(bench(**over))
    import lab_bench  # pyright: ignore[reportMissingImports]

    with pytest.raises(DeviceTimeout, match=r"waits at step 5.*: no answer for 0\.2\d* s.*it still runs") as caught:
        reservoir.run(U)
    assert caught.value.steps_done == 5
    with pytest.raises(DeviceFault, match="an earlier call still runs"):
        reservoir.reset(1)
    with pytest.raises(DeviceFault, match=r"still runs.*lab_bench:close was not called"):
        reservoir.close()
    with pytest.raises(DeviceFault, match=r"still runs.*lab_bench:close was not called"):
        reservoir.open()
    assert "close" not in lab_bench.calls
    lab_bench.released.set()
    with reservoir:
        assert lab_bench.calls[-2:] == ["close", "reset"]
    with open_reservoir(bench(**{**over, "call": "lab_bench:step"})) as well:
        np.testing.assert_allclose(well.run(U), truth(U))
    assert lab_bench.calls[-1] == "close"


def test_a_close_that_hangs_is_stopped_and_one_that_is_interrupted_is_not() -> None:
    over = {"close_call": "lab_bench:hangs_on_close", "stop_call": "lab_bench:stop", "timeout_s": 0.2}
    reservoir = open_reservoir(bench(**over))
    import lab_bench  # pyright: ignore[reportMissingImports]

    with pytest.raises(DeviceTimeout, match="stop_call was called beside it; see that the device is in its safe state"):
        reservoir.close()
    assert lab_bench.calls[-1] == "stop"
    assert reservoir.unsafe is not None
    interrupted = open_reservoir(bench(close_call="lab_bench:gets_an_interrupt_on_close"))
    with pytest.raises(KeyboardInterrupt):
        interrupted.close()
    assert lab_bench.calls[-1] == "close"
    assert interrupted.unsafe is None


def test_a_procedure_runs_once_per_step() -> None:
    over = {
        "mode": "procedure", "call": None, "wait_s": 0.001,
        "set_call": "lab_bench:apply", "sweep_call": "lab_bench:sweep", "read_call": "lab_bench:read",
    }  # fmt: skip
    with open_reservoir(bench(**over)) as reservoir:
        import lab_bench  # pyright: ignore[reportMissingImports]

        reservoir.run(U[:, :2])
    assert lab_bench.calls == ["reset", "set", "sweep", "read", "set", "sweep", "read"]


def test_faults_name_the_function_and_the_step_and_keep_the_states() -> None:
    with open_reservoir(bench(call="lab_bench:loses_its_cable")) as reservoir:
        with pytest.raises(
            DeviceDisconnected, match=r"loses_its_cable at step 11 \(lab_bench.py:\d+\): .*unplugged"
        ) as caught:
            reservoir.run(U)
        assert caught.value.steps_done == 11
        np.testing.assert_allclose(caught.value.states, truth(U)[:, :11])
        with pytest.raises(StateLost):
            reservoir.run(U)
    slow = open_reservoir(bench(call="lab_bench:times_out"))
    with slow, pytest.raises(DeviceTimeout, match="no trigger"):
        slow.run(U)
    with (
        open_reservoir(bench(call="lab_bench:wrong_width")) as reservoir,
        pytest.raises(DeviceFault, match=r"at step 0: returned an array of shape \(1,\) instead of \(2,\)"),
    ):
        reservoir.run(U)
    with open_reservoir(bench(call="lab_bench:not_numbers")) as odd, pytest.raises(DeviceFault, match="at step 0"):
        odd.run(U)
    with open_reservoir(bench(call="lab_bench:burst", mode="run")) as reservoir:
        reservoir.run(U[:, :8])
        with pytest.raises(DeviceFault, match=r"lab_bench:burst in steps 8 to 11 \(lab_bench.py:\d+\): ValueError"):
            reservoir.run(np.full((1, 4, 1), 7.0))


def test_real_devices_are_locked_and_simulated_ones_are_not() -> None:
    with open_reservoir(bench()), pytest.raises(DeviceBusy, match="python:lab_bench:step"):
        open_reservoir(bench())
    with open_reservoir(bench(simulated=True)), open_reservoir(bench(simulated=True)):
        pass
    with open_reservoir(bench(resource=["scope", "generator"])):
        for one in ("scope", ["generator", "stage"]):
            with pytest.raises(DeviceBusy, match=r"'(scope|generator)' is in use"):
                open_reservoir(bench(resource=one))
        with open_reservoir(bench(resource="stage")):
            pass


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"call": "lab_bench:stepp"}, r"reservoir\.call: lab_bench has no function 'stepp'; did you mean 'step'"),
        ({"call": "lab_bench.step"}, "did you mean lab_bench:step"),
        ({"params": {"bias_v": 1}}, r"reservoir\.params\.bias_v: no function has an argument of this name"),
        ({"params": {"bais_v": 1}, "setup_call": "lab_bench:set_bias"}, r"params\.bais_v: did you mean 'bias_v'\?"),
        ({"setup_call": "lab_bench:set_bias"}, r"reservoir\.setup_call: lab_bench:set_bias.*'bias_v'"),
        ({"params": {"bias_v": {}}, "setup_call": "lab_bench:set_bias"}, r"params\.bias_v"),
        ({"call": "no_such_bench:step"}, r"reservoir\.call: 'no_such_bench:step' cannot be imported"),
        ({"call": "lab_bench:calls"}, "is not a function"),
        ({"call": "lab_bench"}, "call = 'lab_bench'"),
        ({"call": None}, "mode step needs call"),
        ({"mode": "procedure"}, "needs set_call and read_call"),
        ({"reset_call": None}, "say how the device is brought to rest"),
        ({"reset": {"kind": "idle", "settle_s": 0.1}}, "either reset_call or reset"),
        ({"continuity": None}, "continuity is missing"),
        ({"simulated": None}, "simulated is missing"),
        ({"inputs": None}, "needs `inputs`"),
        ({"continuity": "replayed"}, "needs memory_steps"),
        ({"resource": ["scope", 7]}, r"resource\.1 = 7"),
        ({"input_range": [1, -1]}, r"input_range \[1.0, -1.0\] must be"),
    ],
)
def test_wrong_configurations(over: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_reservoir(bench(**over))


def test_buffers_are_not_shared_with_the_function() -> None:
    with open_reservoir(bench(mode="run", call="lab_bench:reuses_its_buffer", memory_steps=0)) as reservoir:
        u = U.copy()
        first = reservoir.run(u[:, :6])
        second = reservoir.run(u[:, 6:])
        assert not np.array_equal(first, second)
        np.testing.assert_array_equal(u, U)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("lab_bench:leaves", "SystemExit: 5"),
        ("lab_bench:lock_in", "complex128 instead of real numbers"),
    ],
)
def test_a_function_that_leaves_or_returns_complex_numbers(call: str, message: str) -> None:
    with open_reservoir(bench(call=call)) as reservoir, pytest.raises(DeviceFault, match=message):
        reservoir.run(U)


@pytest.mark.parametrize("answer", [np.ma.masked_array([1.0, 2.0], [False, True]), [1.0, 9.9e37], [1.0, -9.91e37]])
@pytest.mark.parametrize("mode", ["run", "step"])
def test_answers_that_are_no_numbers(answer: Any, mode: str) -> None:
    count = iter(range(20))

    def measure(u: np.ndarray) -> Any:
        bad = np.ma.masked_array(answer)
        if mode == "step":
            return bad if next(count) == 3 else u.repeat(2)
        return np.ma.concatenate([u[:3].repeat(2, 1), bad[None], u[4:].repeat(2, 1)])

    with (
        open_reservoir(bench(call=measure, mode=mode)) as reservoir,
        pytest.raises(DeviceFault, match="step 3, node 1") as caught,
    ):
        reservoir.run(U)
    np.testing.assert_allclose(caught.value.states, U[:, :3].repeat(2, 2))


def test_modules_that_break_on_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "syntax_bench.py").write_text("def f(:\n")
    (tmp_path / "zero_bench.py").write_text("1 / 0\n")
    for call, message in (("syntax_bench:f", "SyntaxError"), ("zero_bench:f", "ZeroDivisionError")):
        with pytest.raises(ConfigurationError, match=rf"cannot be imported: {message}"):
            open_reservoir(bench(call=call, reset_call=None, reset={"kind": "none", "reason": "test"}))


def test_a_served_function_tells_its_settings() -> None:
    over = {"setup_call": "lab_bench:set_bias", "params": {"bias_v": 0.2}, "tolerance": {"bias_v": 0.01}}
    device = build_reservoir(parse_reservoir(Document.from_mapping(bench(**over), "test")))
    with (
        ipc_address() as address,
        served(device, address),
        open_reservoir({"kind": "zmq", "address": address}) as reservoir,
    ):
        assert reservoir.read_back() == {"bias_v": 0.2}
        assert reservoir.tolerances == {"bias_v": 0.01}
