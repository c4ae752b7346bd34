"""Knobs and monitors: the same here and behind a socket, and refused before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from lab_with_knobs import Lab
from served import ipc_address, served

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, InputRangeError, NotSupported, StateLost
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir, reservoir_config
from reservoir_hw.testing.protocol.check import check, rules_for

U = np.random.default_rng(0).uniform(-1, 1, (1, 20, 1))


@contextmanager
def here(lab: Lab, **more: Any) -> Iterator[Reservoir]:
    with open_reservoir(lab.file(**more)) as reservoir:
        yield reservoir


@contextmanager
def behind_a_socket(lab: Lab, **more: Any) -> Iterator[Reservoir]:
    with (
        ipc_address() as address,
        served(build_reservoir(reservoir_config(lab.file(**more))), address),
        open_reservoir({"kind": "zmq", "address": address}) as reservoir,
    ):
        # The server has opened it before, to see what it is.
        lab.log.clear()
        lab.log.append("open")
        yield reservoir


PLACES = pytest.mark.parametrize("place", [here, behind_a_socket])


@PLACES
def test_a_knob_is_turned_between_sequences(place: Any) -> None:
    lab = Lab()
    with place(lab) as reservoir:
        first, spec = reservoir.run(U), reservoir.spec
        assert reservoir.knobs == {"bias_v": 0.2}
        lab.log.clear()
        reservoir.set(bias_v=0.7)
        # From the value of the file, in steps of at most 0.25.
        assert lab.log == ["bias 0.2", "bias 0.45", "bias 0.7"]
        with pytest.raises(StateLost, match="bias_v was turned since the last reset"):
            reservoir.run(U)
        reservoir.reset()
        second = reservoir.run(U)
        assert reservoir.spec.identity.fingerprint != spec.identity.fingerprint
        assert reservoir.spec.knobs["bias_v"].unit == "V"
        assert reservoir.get() == {"bias_v": 0.7, "temperature": 23.5}
        reservoir.set(bias_v=0.2)
        reservoir.reset()
        assert np.array_equal(reservoir.run(U), first)
        assert not np.array_equal(second, first)
        assert reservoir.spec == spec
        seen = reservoir.provenance()["monitors"]["temperature"]
        assert (seen["unit"], seen["lowest"], seen["highest"]) == ("°C", 21.0, 23.5)
        assert len(seen["values"]) >= 3
    # The closing value comes before the device is left.
    assert lab.log[-2:] == ["bias 0", "close"]


@PLACES
def test_what_cannot_be_set_is_refused_before_anything_is_sent(place: Any) -> None:
    lab = Lab()
    with place(lab) as reservoir:
        before = reservoir.run(U)
        lab.log.clear()
        for value, said in (
            (1.6, r"bias_v: 1\.6 lies beyond limits \[0, 1\.5\]; nothing was turned"),
            (float("nan"), "bias_v: nan is not finite"),
            (0.26, r"0\.26 is no multiple of its resolution 0\.05: take 0\.25"),
            ("0.2", "bias_v: '0.2' is no number"),
        ):
            with pytest.raises(InputRangeError, match=said):
                reservoir.set(bias_v=value)
        with pytest.raises(NotSupported, match=r"has no knob 'gate_v'; it has: bias_v"):
            reservoir.set(gate_v=0.2)
        with pytest.raises(NotSupported, match="no knob or monitor 'pressure'"):
            reservoir.get("pressure")
        # The sequence goes on as if nothing had been asked.
        more = reservoir.run(U)
        assert lab.log == []
    with here(Lab()) as reservoir:
        assert np.array_equal(reservoir.run(np.concatenate([U, U], 1)), np.concatenate([before, more], 1))


@PLACES
def test_a_value_that_is_not_reached_leaves_a_device_that_nobody_knows(place: Any) -> None:
    lab = Lab()
    with place(lab) as reservoir:
        lab.stuck = True
        with pytest.raises(DeviceFault, match=r"knob bias_v: 0\.7 V was set, and 0\.2 V is read back"):
            reservoir.set(bias_v=0.7)
        with pytest.raises((StateLost, DeviceFault), match="bias_v could not be turned"):
            reservoir.reset()
        lab.stuck = False
        reservoir.set(bias_v=0.7)
        reservoir.reset()
        assert reservoir.run(U).shape == (1, 20, 8)


@pytest.mark.parametrize("more", [{}, {"latency_steps": 2, "held_for_s": 9.0}], ids=["at once", "late"])
@PLACES
def test_a_monitor_beyond_its_limits_stops_the_drive(place: Any, more: dict[str, Any]) -> None:
    lab = Lab()
    file = lab.file()
    file["monitors"]["temperature"] |= {"outside": "stop"}
    with place(lab, monitors=file["monitors"], **more) as reservoir:
        reservoir.set(bias_v=1.5)
        reservoir.reset()
        with pytest.raises(DeviceFault, match=r"monitor temperature is 27\.5 °C, beyond its limits \[19, 26\]"):
            reservoir.run(U)


def test_the_next_client_gets_the_values_of_the_file() -> None:
    lab = Lab()
    reservoir = build_reservoir(reservoir_config(lab.file()))
    with ipc_address() as address, served(reservoir, address):
        with open_reservoir({"kind": "zmq", "address": address, "knobs": {"bias_v": 1.0}}) as first:
            assert first.knobs == {"bias_v": 1.0}
            assert lab.bias == 1.0
        with open_reservoir({"kind": "zmq", "address": address}) as second:
            assert (second.knobs, lab.bias) == ({"bias_v": 0.2}, 0.2)
        for knobs, said in (
            ({"bias_v": 2.0}, r"knobs\.bias_v: 2 lies beyond limits"),
            ({"gate": 0.0}, "has no knob 'gate'; it has: bias_v"),
        ):
            with pytest.raises(ConfigurationError, match=said):
                open_reservoir({"kind": "zmq", "address": address, "knobs": knobs})


def test_a_served_device_with_knobs_keeps_the_page() -> None:
    reservoir = build_reservoir(reservoir_config(Lab().file(deterministic=True)))
    with ipc_address() as address, served(reservoir, address):
        report = check(address, rules=[rule for rule in rules_for(address) if rule.group == "operations"])
    assert [(row.rule.title, row.detail) for row in report.broken] == []
    held = [row.rule.title for row in report.rows if row.outcome == "held"]
    assert sum(title.startswith(("SET", "GET")) for title in held) == 4
