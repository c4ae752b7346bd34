"""Servers that lie: the client says so, does not hang, and takes no memory for it. And frames that are none."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ProtocolError, ReservoirError
from reservoir_hw.drivers.zeromq import frames
from reservoir_hw.drivers.zeromq.frames import Operation
from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.codec import Header

from .page_device import NODES, PageDevice, is_run

Lie = Callable[[PageDevice, np.random.Generator], None]
ESCAPE = "\x1b]0;owned\x07\x1b[31m"


def in_answer(asked: str, **fields: Any) -> Lie:
    """Other fields in each answer of this kind on the control socket; None takes one away."""

    def lie(device: PageDevice, random: np.random.Generator) -> None:
        del random

        def answer(message: dict[str, Any]) -> list[dict[str, Any]]:
            if message["op"] == asked:
                message = {name: value for name, value in {**message, **fields}.items() if value is not None}
            return [message]

        device.answer = answer

    return lie


def declares(*place: str, value: Any) -> Lie:
    """Another value in the declaration."""

    def lie(device: PageDevice, random: np.random.Generator) -> None:
        del random
        *outer, last = place
        section = device.declaration = copy.deepcopy(device.declaration)
        for key in outer:
            section = section[key]
        section[last] = value

    return lie


def replies(change: Callable[[Header, bytes, np.random.Generator], list[list[bytes]]]) -> Lie:
    """Other messages in the place of each reply on the data socket."""

    def lie(device: PageDevice, random: np.random.Generator) -> None:
        device.reply = lambda header, payload: change(header, payload, random)

    return lie


def of_runs(change: Callable[[Header, bytes], list[list[bytes]]]) -> Lie:
    """Other messages in the place of each reply to a RUN."""
    return replies(lambda header, payload, _: (change if is_run(header) else page_reply)(header, payload))


def page_reply(header: Header, payload: bytes) -> list[list[bytes]]:
    return [wire.pack_data(header, payload)]


def changed(**fields: Any) -> Lie:
    """Other fields in the header of each reply to a RUN."""
    return of_runs(lambda header, payload: [wire.pack_data(replace(header, **fields), payload)])


def huge(header: Header, payload: bytes, random: np.random.Generator) -> list[list[bytes]]:
    del payload, random
    return [wire.pack_data(header, bytes(3 << 20))]


def noise(header: Header, payload: bytes, random: np.random.Generator) -> list[list[bytes]]:
    raw = bytearray(b"".join(wire.pack_data(header, payload)))
    for place in random.integers(0, len(raw), 3):
        raw[place] ^= int(random.integers(1, 256))
    return [[bytes(raw[:80]), bytes(raw[80:])]]


LIES: dict[str, Lie] = {
    "a version that nobody has": in_answer("welcome", version=2),
    "no version": in_answer("welcome", version=None),
    "no session": in_answer("welcome", session=None),
    "a session that is a text": in_answer("welcome", session="mine"),
    "endless frames": in_answer("welcome", max_frame_bytes=1 << 62),
    "no frames": in_answer("welcome", max_frame_bytes=0),
    "a million credits": in_answer("welcome", credits=10**9),
    "a lease of nan": in_answer("welcome", lease_s=float("nan")),
    "escapes in an error": in_answer("welcome", op="error", code=13, text=ESCAPE),
    "busy for ever": in_answer("welcome", op="error", code=2, text="anna has it"),
    "pongs that are none": in_answer("pong", finished="all"),
    "nodes without end": declares("spec", "nodes", value=1 << 40),
    "nodes that fill memory": declares("spec", "nodes", value=1 << 30),
    "names that fill memory": declares("spec", "node_names", value=["x" * 1000] * 3000),
    "a vendor that takes over the terminal": declares("spec", "identity", value={
        "vendor": ESCAPE, "model": "m" * 70_000, "simulated": False,
    }),
    "a spec that is a list": declares("spec", value=[1, 2]),
    "states of a dtype that is none": declares("states", value=[77, 1.0]),
    "frames that were not asked for": replies(huge),
    "damaged replies": replies(noise),
    "steps that were not asked for": changed(steps=1 << 31),
    "a step fewer": of_runs(lambda h, p: [wire.pack_data(replace(h, steps=h.steps - 1), p[: -2 * NODES])]),
    "a node fewer": of_runs(lambda h, p: [wire.pack_data(replace(h, width=NODES - 1), p[: len(p) // 4 * 3])]),
    "another batch": of_runs(lambda h, p: [wire.pack_data(replace(h, batch=2), 2 * p)]),
    "another dtype": of_runs(lambda h, p: [
        wire.pack_data(replace(h, dtype=wire.F4, scale=1.0), wire.numbers(h, p).astype("<f4").tobytes())
    ]),
    "a payload that is too long": of_runs(lambda h, p: [wire.pack_data(h, p + b"x")]),
    "three frames": of_runs(lambda h, p: [[*wire.pack_data(h, p), b""]]),
    "a delimiter": of_runs(lambda h, p: [[b"", *wire.pack_data(h, p)]]),
    "an error that is none": of_runs(lambda h, p: [
        wire.pack_data(Header(wire.ERROR, h.session, h.request, step=h.step), b"\xc1")
    ]),
    "an error without text": of_runs(lambda h, p: [
        wire.pack_data(Header(wire.ERROR, h.session, h.request, step=h.step), b"\x80")
    ]),
    "silence": replies(lambda header, payload, random: []),
    "every reply a thousand times": replies(lambda header, payload, random: 1000 * [wire.pack_data(header, payload)]),
}  # fmt: skip


def resident() -> int:
    """Bytes of memory that this process has."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def meet(address: str, lie: Lie, seed: int) -> str:
    """What the client says; nothing if it was answered as it should be."""
    with PageDevice(address) as device:
        lie(device, np.random.default_rng(seed))
        file = {"kind": "zmq", "address": address, "inputs": 2, "timeout_s": 0.4}
        try:
            with open_reservoir(file) as reservoir:
                states = reservoir.run(np.zeros((1, 20, 2), np.float32))
                assert states.shape == (1, 20, 4)
                reservoir.name.encode()
                return "" if reservoir.name.isprintable() else "a name that a terminal obeys"
        except ReservoirError as error:
            return str(error)


@pytest.mark.parametrize("name", LIES)
def test_a_client_says_who_lies(name: str, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/d"
    began = time.monotonic()
    said = meet(address, LIES[name], 0)
    assert time.monotonic() - began < 10
    assert said.replace("\n", "").isprintable()
    harmless = {"a vendor that takes over the terminal", "every reply a thousand times", "pongs that are none"}
    assert bool(said) != (name in harmless), said
    if said and "busy" not in name and "silence" not in name:
        assert str(tmp_path) in said


@pytest.mark.slow
def test_eighty_hostile_servers_cost_no_memory(tmp_path: Path) -> None:
    meet(f"ipc://{tmp_path}/first", LIES["silence"], 0)
    before = resident()
    for number in range(3):
        for index, lie in enumerate(LIES.values()):
            meet(f"ipc://{tmp_path}/{number}-{index}", lie, number)
            assert resident() - before < 100e6


@pytest.mark.slow
def test_frames_that_are_none_are_refused() -> None:
    """400,000 times: valid messages of every kind, with bytes changed, added or cut off."""
    random = np.random.default_rng(3)
    arrays = frames.pack_arrays({"x": np.arange(6.0).reshape(2, 3), "t": np.zeros((2, 1), np.int64)})
    maps = frames.pack_map({"code": 13, "text": "fault", "states": b"123", "list": [1, [2, {"a": None}]]})
    control = frames.pack_control({"op": "ping", "id": 5, "session": 1 << 60})
    header = frames.pack_header(frames.Header(Operation.RUN, 7, 2, steps=3, batch=1, width=2, dtype=2), b"12345678")
    decoders: list[tuple[bytes, Callable[[bytes], Any]]] = [
        (arrays, frames.unpack_arrays),
        (maps, frames.unpack_map),
        (control, frames.unpack_control),
        (header, frames.unpack_header),
    ]
    refused = 0
    for number in range(400_000):
        valid, decode = decoders[number % 4]
        raw = bytearray(valid)
        for _ in range(int(random.integers(1, 4))):
            place = int(random.integers(0, len(raw)))
            match number // 4 % 3:
                case 0:
                    raw[place] = int(random.integers(0, 256))
                case 1:
                    raw[place:place] = random.bytes(int(random.integers(1, 9)))
                case _:
                    del raw[place : place + int(random.integers(1, 9))]
                    raw = raw or bytearray(1)
        try:
            decode(bytes(raw))
        except ProtocolError:
            refused += 1
    assert refused > 250_000
    with contextlib.suppress(ProtocolError):
        frames.unpack_map(msgpack.packb({"deep": 1}))
