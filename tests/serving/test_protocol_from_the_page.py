"""docs/protocol.md is enough: a device written from it alone speaks with the project's own client."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import free_address

from reservoir_hw.core.errors import (
    CalibrationError,
    DeviceBusy,
    DeviceDisconnected,
    DeviceError,
    DeviceFault,
    DeviceTimeout,
    InputRangeError,
    NotSupported,
    ReservoirError,
    StateLost,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.codec import Header
from reservoir_hw.testing.protocol.device import Device

from . import page_device as leaky
from .page_device import PageDevice, Refusal

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
PATIENCE_S = 10.0


# ---- the page's own numbers -----------------------------------------------------------------------


def examples() -> list[bytes]:
    dumps: list[str] = []
    last = ""
    for line in PAGE.read_text(encoding="utf-8").partition("## Examples in hex")[2].splitlines():
        found = re.fullmatch(r" {4}([0-9a-f]{2}) ((?: [0-9a-f]{2})+)", line)
        if found is None:
            last = ""
            continue
        if not last:
            dumps.append("")
        assert int(found[1], 16) == len(dumps[-1]) // 2
        dumps[-1] += found[2].replace(" ", "")
        last = line
    return [bytes.fromhex(dump) for dump in dumps]


def test_the_check_value() -> None:
    assert wire.crc32c(b"123456789") == 0xE3069283
    assert wire.crc32c(b"") == 0


def test_the_examples_say_what_the_text_says() -> None:
    ping, reset, run, run_payload, reply, reply_payload, *_unix = examples()
    mine = 0x0102030405060708
    assert wire.unpack_control(ping) == {"op": "ping", "id": 5, "session": mine}
    assert wire.unpack_data([reset, b""])[0] == Header(wire.RESET, mine, 2, batch=1)
    header, payload = wire.unpack_data([run, run_payload])
    assert header == Header(wire.RUN, mine, 3, step=7, batch=1, steps=1, width=2, dtype=wire.F4)
    assert wire.numbers(header, payload).tolist() == [[[0.5, -1.0]]]
    header, payload = wire.unpack_data([reply, reply_payload])
    due = replace(header, operation=wire.RUN | wire.REPLY, session=mine, request=3, step=7, batch=1, steps=1, width=3)
    assert header == replace(due, dtype=wire.F4, scale=1.0, time=1700000000 * 10**9, period=1e-3, flags=0)
    assert wire.numbers(header, payload).tolist() == [[[0.25, 0.5, -0.75]]]


def test_my_own_code_writes_the_examples() -> None:
    ping, reset, run, run_payload, reply, reply_payload, *_unix = examples()
    assert wire.pack_control({"op": "ping", "id": 5, "session": 0x0102030405060708}) == ping
    for frames in ([reset, b""], [run, run_payload], [reply, reply_payload]):
        header, payload = wire.unpack_data(frames)
        assert wire.pack_data(header, payload) == frames


# ---- the project's client, the page's device ------------------------------------------------------


@pytest.fixture
def device(address: str) -> Iterator[PageDevice]:
    with PageDevice(address) as device:
        yield device


def opened(address: str, **options: Any) -> Reservoir:
    return open_reservoir({"kind": "zmq", "address": address, **options})


def drive(batch: int = 1, steps: int = 30) -> np.ndarray:
    return np.random.default_rng(8).uniform(-1, 1, (batch, steps, leaky.INPUTS)).astype(np.float32)


def test_the_client_drives_a_device_built_from_the_page() -> None:
    address = free_address()
    with PageDevice(address) as device, opened(address) as reservoir:
        spec = reservoir.spec
        assert (spec.inputs, spec.nodes, spec.dtype) == (leaky.INPUTS, leaky.NODES, "float32")
        assert (spec.identity.vendor, spec.identity.model, spec.identity.serial) == ("a bench", "leaky", "7")
        assert not spec.identity.simulated
        assert spec.continuity == "held"
        assert not any((spec.snapshot, spec.settable, spec.programmable))
        u = drive()
        reservoir.reset(1)
        states = np.asarray(reservoir.run(u))
        assert states.dtype == np.float32
        assert np.array_equal(states, leaky.model(u))
        assert device.seen[0].operation == wire.ATTACH
        assert [header.request for header in device.seen] == list(range(1, len(device.seen) + 1))


def test_fields_that_are_not_named_are_zero(device: PageDevice, address: str) -> None:
    with opened(address) as reservoir:
        reservoir.reset(2)
        reservoir.run(drive(2))
        mine = {"session": device.seen[0].session}
    for header in device.seen:
        expected = Header(header.operation, request=header.request, **mine)
        if header.operation == wire.RESET:
            expected.batch = header.batch
        if header.operation == wire.RUN:
            shape = {"batch": 2, "steps": header.steps, "width": leaky.INPUTS, "step": header.step}
            expected = replace(expected, **shape, dtype=wire.I2, scale=leaky.INPUT_SCALE, flags=header.flags)
        assert header == expected


@pytest.mark.parametrize("credits", [1, 2, 8])
def test_the_client_streams_within_the_credits(address: str, credits: int) -> None:
    u = drive(batch=2, steps=200)
    with PageDevice(address, credits=credits) as device, opened(address) as reservoir:
        reservoir.reset(2)
        states = list(reservoir.stream(np.array_split(u, 40, axis=1)))
        assert np.array_equal(np.concatenate(states, axis=1), leaky.model(u))
        assert device.most_waiting <= credits


def test_the_client_keeps_to_the_size_of_a_frame(address: str) -> None:
    u = drive(steps=4000)
    with PageDevice(address, max_frame_bytes=2048) as device, opened(address, chunk_steps=250) as reservoir:
        assert np.array_equal(reservoir.run(u), leaky.model(u))
        assert max(device.payload_sizes) <= 2048


def test_a_device_that_wants_the_whole_run_gets_it_whole(address: str) -> None:
    u = drive(steps=3000)
    with PageDevice(address, chunked=False) as device, opened(address) as reservoir:
        assert np.array_equal(reservoir.run(u), leaky.model(u))
        runs = [header for header in device.seen if header.operation == wire.RUN]
        assert [(header.steps, header.flags) for header in runs] == [(3000, 0)]


def test_a_declaration_of_only_what_is_required(device: PageDevice, address: str) -> None:
    identity = {"vendor": "a bench", "model": "leaky", "simulated": False, "colour": "red"}
    device.declaration["spec"] |= {"identity": identity, "smell": ["of", "solder"]}
    for name in ("dtype", "deterministic", "continuity"):
        del device.declaration["spec"][name]
    device.declaration["weather"] = None
    with opened(address) as reservoir:
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))


def test_what_the_device_does_not_have(device: PageDevice, address: str) -> None:
    with opened(address) as reservoir:
        with pytest.raises(NotSupported):
            reservoir.snapshot()
        with pytest.raises(NotSupported):
            reservoir.transition(np.zeros((1, leaky.INPUTS)), np.zeros((1, leaky.NODES)))
        with pytest.raises(NotSupported):
            reservoir.upload({})
        with pytest.raises(InputRangeError):
            reservoir.run(np.full((1, 2, leaky.INPUTS), 1.1, np.float32))
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))


@pytest.mark.slow
def test_the_client_pings_while_nobody_asks_for_anything(address: str) -> None:
    u = drive()
    with PageDevice(address, lease_s=0.4) as device, opened(address) as reservoir:
        first = reservoir.run(u[:, :10])
        started = time.monotonic()
        while time.monotonic() - started < 1.0:
            assert device.pings.acquire(timeout=PATIENCE_S)
        assert not device.freed.is_set()
        assert np.array_equal(np.concatenate([first, reservoir.run(u[:, 10:])], axis=1), leaky.model(u))


def test_the_client_says_goodbye(device: PageDevice, address: str) -> None:
    with opened(address):
        assert not device.freed.is_set()
    assert device.freed.wait(PATIENCE_S)
    with opened(address) as reservoir:
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))


def test_the_client_names_who_has_the_device(device: PageDevice, address: str) -> None:
    with Device(address) as line, line.client("Ada, room 3") as client:
        client.hello()
        with pytest.raises(DeviceBusy, match="Ada, room 3"):
            opened(address).open()
        client.goodbye()


@pytest.mark.slow
def test_the_client_waits_for_a_busy_device(address: str) -> None:
    with PageDevice(address, lease_s=0.4) as device, opened(address) as reservoir:
        gate = threading.Event()

        def hold(header: Header) -> None:
            if header.operation == wire.RUN:
                while device.pings.acquire(blocking=False):
                    pass
                for _ in range(8):
                    assert device.pings.acquire(timeout=PATIENCE_S)
                gate.set()

        device.before = hold
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))
        assert gate.is_set()


def test_no_version_in_common_with_the_device(device: PageDevice, address: str) -> None:
    device.versions = {2, 3}
    with pytest.raises(ReservoirError, match=r"2, 3"):
        opened(address).open()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (wire.E_FAULT, DeviceFault),
        (wire.E_TIMEOUT, DeviceTimeout),
        (wire.E_DISCONNECTED, DeviceDisconnected),
        (wire.E_CALIBRATION, CalibrationError),
        (wire.E_STATE_LOST, StateLost),
        (wire.E_DISCONTINUITY, StateLost),
        (wire.E_INTERNAL, DeviceError),
        (wire.E_NOT_SUPPORTED, NotSupported),
        (wire.E_RANGE, InputRangeError),
        (99, DeviceError),
    ],
)
def test_the_client_passes_errors_on(device: PageDevice, address: str, code: int, kind: type[Exception]) -> None:
    def fail(header: Header) -> None:
        if header.operation == wire.RUN:
            raise Refusal(code, "the pump is off")

    with opened(address) as reservoir:
        device.before = fail
        with pytest.raises(kind, match="the pump is off"):
            reservoir.run(drive())
        device.before = lambda header: None
        reservoir.reset(1)
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))


def test_a_device_that_is_shutting_down(device: PageDevice, address: str) -> None:
    def fail(header: Header) -> None:
        if header.operation == wire.RUN:
            raise Refusal(wire.E_SHUTTING_DOWN, "lights out at six")

    device.before = fail
    with opened(address) as reservoir, pytest.raises(DeviceError, match="lights out at six"):
        reservoir.run(drive())


def test_the_client_hands_on_what_was_harvested(device: PageDevice, address: str) -> None:
    u = drive()
    counts = np.rint(leaky.model(u) / leaky.STATE_SCALE).astype("<i2")

    def fail(header: Header) -> None:
        if header.step == 10:
            raise Refusal(wire.E_FAULT, "dark", step=14, steps_done=4, states=counts[:, 10:14].tobytes())

    with opened(address) as reservoir:
        device.before = fail
        reservoir.run(u[:, :10])
        with pytest.raises(DeviceFault, match="dark") as caught:
            reservoir.run(u[:, 10:])
        assert caught.value.steps_done == 4
        assert np.array_equal(np.asarray(caught.value.states), leaky.model(u)[:, 10:14])
        with pytest.raises(StateLost):
            reservoir.run(u)
        reservoir.reset(1)
        device.before = lambda header: None
        assert np.array_equal(reservoir.run(u), leaky.model(u))
