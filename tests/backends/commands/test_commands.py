"""Lines of text to a board and to instruments on a film: states, limits, time, knobs, and bad input in a sentence."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest
from scripted_instrument import instrument
from text_benches import board_states, film, film_states, levels, text_board

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceBusy,
    DeviceFault,
    DeviceTimeout,
    InputRangeError,
    NotSupported,
    ProtocolError,
    StateLost,
)
from reservoir_hw.core.reservoir_config import reservoir_config

U = np.random.default_rng(0).uniform(-1, 1, (1, 60, 1))
V = np.random.default_rng(1).uniform(0, 0.5, (1, 30, 1))
CUTS = [0, 1, 7, 20, 21, 30]
LEAST = {"kind": "commands", "nodes": 2, "continuity": "held", "simulated": True}
AT = {"address": "/dev/ttyNONE"}
SEVERAL = {"instruments": {"source": {"address": "GPIB::1::INSTR"}, "meter": {"address": "GPIB::2::INSTR"}}}
ASKED = {"ask": "S {u[0]:.3f}"}


# ---- states -------------------------------------------------------------------------------------


def test_a_board_needs_four_keys() -> None:
    with text_board(counted=False) as (_, config):
        four = {key: config[key] for key in ("kind", "address", "step", "nodes", "continuity", "simulated")}
        with open_reservoir(four) as reservoir:
            assert np.array_equal(reservoir.run(U), board_states(U))
            assert (reservoir.spec.inputs, reservoir.spec.input_range) == (1, (-1, 1))
            assert reservoir.reset_policy.model_dump()["kind"] == "none"
        assert reservoir.counters.faults == 0


def test_states_of_a_board_however_they_are_cut() -> None:
    with text_board() as (line, config), open_reservoir(config) as reservoir:
        assert np.array_equal(reservoir.run(U), board_states(U))
        reservoir.reset()
        parts = [reservoir.run(U[:, a:b]) for a, b in itertools.pairwise([*CUTS, 60])]
        assert np.array_equal(np.concatenate(parts, 1), board_states(U))
        reservoir.reset()
        steps = [reservoir.step(U[:, at])[:, None] for at in range(10)]
        assert np.array_equal(np.concatenate(steps, 1), board_states(U)[:, :10])
        # Two sequences, one after the other.
        reservoir.reset(2)
        both = reservoir.run(np.concatenate([U, -U]))
        assert np.array_equal(both, np.concatenate([board_states(U), board_states(-U)]))
    assert line.board.lines > 200


@pytest.mark.slow
def test_states_of_a_film_however_they_are_cut() -> None:
    with film() as (lab, config), open_reservoir(config) as reservoir:
        whole = reservoir.run(V)
        assert np.array_equal(whole, film_states(V))
        reservoir.reset()
        parts = [reservoir.run(V[:, a:b]) for a, b in itertools.pairwise(CUTS)]
        assert np.array_equal(np.concatenate(parts, 1), whole)
        assert reservoir.spec.identity.serial == "1234567"
        assert reservoir.read_back() == {"source": lab_identity(lab)}


def lab_identity(lab: Any) -> str:
    with socket.create_connection(("127.0.0.1", int(lab.source.split("::")[2]))) as asked:
        asked.sendall(b"*IDN?\n")
        return asked.makefile().readline().strip()


@pytest.mark.slow
def test_a_burst_is_as_its_steps() -> None:
    with film() as (_, config):
        with open_reservoir({**config, "nodes": 1, "step": at_once(config)}) as reservoir:
            steps = reservoir.run(V)
        burst = {
            "most": 7,
            "lines": [
                {"to": "switch", "write": "ROUT:CLOS (@103)"},
                {"to": "source", "write": "SOUR:LIST:VOLT {u[0]:.4f};:SOUR:VOLT:MODE LIST;:TRIG:COUN {steps}"},
                {"to": "source", "ask": "READ?", "reads": ["state", "_"]},
            ],
        }
        of_bursts = {key: value for key, value in config.items() if key != "step"}
        with open_reservoir({**of_bursts, "nodes": 1, "burst": burst}) as reservoir:
            assert np.array_equal(reservoir.run(V), steps)
        with open_reservoir({**of_bursts, "nodes": 1, "burst": burst, "continuity": "free_running"}) as reservoir:
            assert np.array_equal(reservoir.run(V[:, :7]), steps[:, :7])
            reservoir.reset()
            with pytest.raises(NotSupported, match="takes at most 7 steps after a reset, not 30: between two lists"):
                reservoir.run(V)


def at_once(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of the burst."""
    connected = {"to": "switch", "write": "ROUT:CLOS (@103)"}
    return [connected, config["step"][0], {"to": "source", "ask": "READ?", "reads": ["state", "_"]}]


def test_blocks_of_binary_numbers() -> None:
    def answer(line: bytes, connection: socket.socket) -> None:
        value = float(line.split()[1])
        block = np.array([value, 2 * value, 7], ">i2").tobytes()
        connection.sendall(b"#16" + block + b"\n")

    with instrument(answer) as address:
        step = {"ask": "S {u[0]:d}", "answer": {"binary": "h", "big_endian": True}, "reads": ["state", "state", "_"]}
        config = {**LEAST, "address": address, "step": step, "scaling": {"gain": 100}, "state_scale": 0.5}
        with open_reservoir(config) as reservoir:
            assert reservoir.run(np.array([[[0.5], [-0.126]]])).tolist() == [[[25, 50], [-6.5, -13]]]


@pytest.mark.slow
def test_compliance_is_counted_as_saturation() -> None:
    with film() as (_, config):
        config["instruments"]["source"]["setup"][2] = "SENS:CURR:PROT 3e-5"
        with open_reservoir(config) as reservoir:
            states = reservoir.run(V)
            count = int(np.count_nonzero(states == 3.0))
            assert 0 < count < np.size(states)
            assert reservoir.counters.saturations == count


def test_steps_that_begin_late_are_counted() -> None:
    taken = iter([0.0, 0.0, 0.12, 0.0, 0.0])

    def answer(line: bytes, connection: socket.socket) -> None:
        del line
        times.append(time.monotonic())
        stopped.wait(next(taken))
        connection.sendall(b"1,2\n")

    stopped, times = threading.Event(), list[float]()
    with instrument(answer) as address:
        config = {**LEAST, "address": address, "step": [ASKED], "period_s": 0.05}
        with open_reservoir(config) as reservoir:
            reservoir.run(U[:, :5])
            # One must be late. On a busy computer others are, too.
            gaps = np.diff(times)
            assert gaps[2] > 0.12
            assert np.sum(gaps > 0.06) <= reservoir.counters.underruns <= np.sum(gaps > 0.05)
            assert gaps.min() > 0.04
            assert reservoir.spec.step_period_s == 0.05


def test_a_line_that_waits_for_its_time() -> None:
    def answer(line: bytes, connection: socket.socket) -> None:
        times.append(time.monotonic())
        if line == b"R?":
            connection.sendall(b"1,2\n")

    times: list[float] = []
    with instrument(answer) as address:
        lines = [{"write": "S {u[0]:.3f}"}, {"ask": "R?", "at_s": 0.05}]
        with open_reservoir({**LEAST, "address": address, "step": lines, "period_s": 0.08}) as reservoir:
            reservoir.run(U[:, :3])
        # Not earlier; later on a busy computer.
        sent, asked = np.reshape(times, (3, 2)).T
        assert (asked - sent).min() > 0.045
        assert np.diff(sent).min() > 0.07


# ---- knobs, faults, limits ----------------------------------------------------------------------


@pytest.mark.slow
def test_knobs_are_turned_on_the_open_device_and_again_after_a_fault() -> None:
    with film() as (lab, config):
        config["instruments"]["supply"] = {"address": lab.supply, "setup": ["*RST"]}
        config["knobs"] = {
            "gate_v": {
                "to": "supply",
                "set": "VOLT {value:.3f}",
                "read": "MEAS:VOLT?",
                "value": 0.2,
                "limits": [0, 1],
                "unit": "V",
                "closing": 0.1,
            }
        }
        config["monitors"] = {"temperature_c": {"to": "switch", "ask": "TEMP?", "every_s": 1e-6}}
        with open_reservoir(config) as reservoir:
            before = reservoir.run(V)
            reservoir.set(gate_v=0.6)
            reservoir.reset()
            turned = reservoir.run(V)
            assert turned == pytest.approx(before * 1.3 / 1.1, rel=1e-5)
            assert reservoir.get() == {"gate_v": 0.6, "temperature_c": 22.5}
            assert len(reservoir.monitored()["temperature_c"]["times"]) > 30
            with pytest.raises(InputRangeError, match=r"knob gate_v: .*nothing was turned"):
                reservoir.set(gate_v=1.1)
            # A line that the source refuses, by somebody else's hand: after that all is set up again.
            with socket.create_connection(("127.0.0.1", int(lab.source.split("::")[2]))) as other:
                other.sendall(b"OUTP OFF\n*OPC?\n")
                assert other.recv(10)
            with pytest.raises(DeviceTimeout, match='803,"Not permitted with OUTPUT off"'):
                reservoir.run(V)
            reservoir.reset()
            assert lab.bench.gate_v == 0.6
            assert np.array_equal(reservoir.run(V), turned)
        assert lab.bench.gate_v == 0.1
        events = [(event["event"], event["channel"]) for event in lab.bench.log.events]
        # The closing value, then the safe state.
        assert events[-3:] == [("level", 2), ("level", 1), ("off", 1)]


@pytest.mark.slow
def test_a_fault_leaves_the_device_safe_and_keeps_what_came() -> None:
    fault = {"kind": "drop", "direction": "to_host", "occurrence": 9}
    with text_board(fault, timeout_s=0.2) as (line, config), open_reservoir(config) as reservoir:
        with pytest.raises(DeviceTimeout, match=r"nothing came within 0.2 s, .*\(asked: 'S ") as caught:
            reservoir.run(U)
        # R was the first answer.
        assert caught.value.steps_done == 7
        assert np.array_equal(caught.value.states, board_states(U)[:, :7])
        assert line.board._log.events[-1]["event"] == "off"
        with pytest.raises(StateLost, match="call reset"):
            reservoir.run(U)
        reservoir.reset()
        assert np.array_equal(reservoir.run(U), board_states(U))


@pytest.mark.slow
def test_what_is_written_stays_within_the_limits() -> None:
    with film() as (lab, config), open_reservoir({**config, "out_of_range": "clip"}) as reservoir:
        reservoir.run(V * 10 - 1)
        assert reservoir.counters.clipped > 20
        with pytest.raises(DeviceBusy):
            open_reservoir(config)
    driven = levels(lab.bench.log)
    assert min(volts for volts in driven if volts) >= 0.2
    assert max(driven) <= 0.8
    with film() as (lab, config), open_reservoir(config) as reservoir:
        with pytest.raises(InputRangeError, match=r"outside the range \[0, 0.5\]"):
            reservoir.run(V + 0.2)
        assert levels(lab.bench.log) == []


@pytest.mark.parametrize(
    ("step", "answers", "error", "said"),
    [
        (ASKED, b"1,2,3\n", ProtocolError, "a step gave 3 numbers, and nodes is 2"),
        (ASKED, b"1,9.91E37\n", DeviceFault, "9.91e[+]37 is no number but a word of instruments"),
        (ASKED, b"1,x\n", ProtocolError, "'x' is no number"),
        ({**ASKED, "answer": "(?P<state>.*)#{n}"}, b"1,2#99\n", ProtocolError, "which is not"),
        ({**ASKED, "answer": {"binary": "f"}}, b"1,2\n", ProtocolError, "binary data was expected"),
    ],
)
def test_what_is_no_answer_to_a_step(step: dict[str, Any], answers: bytes, error: type[Exception], said: str) -> None:
    with (
        instrument(lambda line, connection: connection.sendall(answers)) as address,
        open_reservoir({**LEAST, "address": address, "step": step, "timeout_s": 0.3}) as reservoir,
        pytest.raises(error, match=said),
    ):
        reservoir.run(U)


# ---- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"step": ASKED}, "give either `address`"),
        ({**AT, **SEVERAL, "step": ASKED}, "give either `address`"),
        ({**SEVERAL, "baud": 9600, "step": ASKED}, "baud belongs to an instrument"),
        ({**AT}, "give either `step`"),
        ({**AT, "step": {"ask": "S"}}, "no line of the step names an input"),
        ({**AT, "step": {"write": "S {u[0]}"}}, "no line of the step asks for anything"),
        ({**AT, "step": {"ask": "S {u[1]:.2f}"}, "inputs": 1}, r"there is no u\[1\]"),
        ({**AT, "step": ASKED, "inputs": 2}, r"inputs is 2, and no line of the step writes u\[1\]"),
        ({**AT, "step": {"ask": "S {v}"}, "inputs": 1}, r"there is no v \(but u\[0\], n\)"),
        ({**AT, "step": {"ask": "S {u[0].real}"}}, "is no place for a number"),
        ({**AT, "step": {"ask": "S {u[n]}"}, "inputs": 1}, "needs a number, or the name of a `for:`"),
        (
            {**AT, "step": {"ask": "S {u[0]:.1f}"}, "scaling": {"gain": 0.47}},
            "0.5 would be written, beyond -0.47 to 0.47",
        ),
        ({**AT, "step": {"ask": "S {u[0]:x}"}, "input_range": [-0.4, 0.6]}, "1 would be written, beyond -0.4 to 0.6"),
        ({**AT, "step": {"ask": "S", "write": "S"}}, "either `write:` .* or `ask:`"),
        ({**AT, "step": {**ASKED, "then": {"write": "X"}}}, "`then:` belongs to the rounds of a `for:`"),
        ({**AT, "step": {**ASKED, "for": {"k": []}}}, "k must be a name of its own, with a list of values"),
        ({**AT, "step": {**ASKED, "for": {"u": [1]}}}, "u must be a name of its own"),
        (
            {**AT, "step": {**ASKED, "saturated_if": "status & 8"}},
            "saturated_if names status, and the answer has state",
        ),
        ({**AT, "step": {**ASKED, "saturated_if": "state ** 8"}}, "is no comparison"),
        ({**AT, "step": {**ASKED, "answer": "(?P<state>"}}, "is no regular expression"),
        ({**AT, "step": {**ASKED, "answer": "{m} (?P<state>.*)"}}, "there is no m"),
        ({**AT, "step": {**ASKED, "to": "source"}}, "there is no instrument 'source'; there is one, without a name"),
        ({**SEVERAL, "step": ASKED}, "say to which instrument, `to:` one of source, meter"),
        ({**SEVERAL, "step": {**ASKED, "to": "switch"}}, "there is no instrument 'switch'; there is source, meter"),
        ({**AT, "step": ASKED, "safe": {"write": "S {u[0]}"}}, r"there is no u \(but n\)"),
        ({**AT, "step": ASKED, "safe": {"ask": "R", "reads": ["state"]}}, "safe: no states are read there"),
        ({**AT, "step": ASKED, "setup": ["A\nB"]}, "must be one line"),
        ({**AT, "step": ASKED, "continuity": "replayed"}, "replayed needs memory_steps"),
        ({**AT, "step": ASKED, "reset": {"kind": "command"}}, "needs `rest:`"),
        ({**AT, "step": ASKED, "input_range": [1, -1]}, "must be .lowest, highest."),
        ({**AT, "step": {**ASKED, "at_s": 0.2}, "period_s": 0.1}, "at_s must grow from line to line"),
        ({**AT, "step": ASKED, "identity": "("}, "is no regular expression"),
        (
            {**AT, "step": ASKED, "knobs": {"b": {"set": "B", "value": 0, "limits": [0, 1]}}},
            "must say where the number",
        ),
        (
            {**AT, "step": ASKED, "knobs": {"b": {"set": "B {value:.0f}", "value": 0, "limits": [0, 1.6]}}},
            "2 would be written, beyond limits",
        ),
        (
            {**AT, "step": ASKED, "knobs": {"b": {"set": "B {value}", "value": 0, "limits": [0, 1], "ramp_step": 0.1}}},
            "a ramp begins at the value that is there",
        ),
        (
            {
                **AT,
                "step": ASKED,
                "knobs": {"b": {"set": "B {value:.1f}", "read": "B?", "value": 0, "limits": [0, 1], "ramp_step": 0.25}},
            },
            "ramp_step 0.25 would become 0.3 as it is written",
        ),
        ({**AT, "step": ASKED, "monitors": {"t": {"ask": "T?", "to": "x"}}}, "there is no instrument 'x'"),
    ],
)
def test_what_a_file_cannot_say(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        reservoir_config({**LEAST, **keys})


def test_what_a_port_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="there is no port /dev/ttyNONE"):
        open_reservoir({**LEAST, **AT, "step": ASKED})
