"""Frames that are damaged, too large, too many, or that have fields which they must not have."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client, name_of, repeat
from reservoir_hw.testing.protocol.device import Device, lost
from reservoir_hw.testing.protocol.ledger import Broken, NotOffered
from reservoir_hw.testing.protocol.rules import Rules

CONTROL = Rules("damaged control messages")
DATA = Rules("damaged data messages")
FIELDS = Rules("odd fields")

DROPPED = (
    "A message of several frames, a frame that does not fit this table, and msgpack with anything behind the map are "
    "dropped and counted."
)
TOO_LONG = "So is a frame of more than 2^20 bytes, unless ZeroMQ has closed the connection because of it."
UNTRUSTED = "A request whose header cannot be trusted is not counted. Its error has session 0 and request 0"
FRAMES = "The same is sent for a message with another number of frames: error 4, request 0."
UNNAMED = "A request where they are not, or with a payload where none is named, gets error 4."
ENCODING = "A request whose dtype or scale is not the declared one gets error 4."
LARGEST_CONTROL = 1 << 20
LARGEST_FRAME = 1 << 30
LARGE_BYTES = 4 << 20
QUIET_S = 0.3
FUZZED = 200


# ---- the control socket -----------------------------------------------------------------------------


def _framed(body: bytes, *, start: bytes = b"RHWC\x01\0\0\0") -> bytes:
    return start + struct.pack("<I", codec.crc32c(body)) + body


QUESTION = codec.to_msgpack({"op": "status", "id": 7})
DROP: dict[str, list[bytes]] = {
    "an empty frame": [b""],
    "a frame of 11 bytes": [_framed(b"")[:11]],
    "a header without a map": [_framed(b"")],
    "a wrong checksum": [_framed(QUESTION)[:-1] + b"\x08"],
    "a wrong magic": [_framed(QUESTION, start=b"RHWD\x01\0\0\0")],
    "version 2 in its header": [_framed(QUESTION, start=b"RHWC\x02\0\0\0")],
    "bytes 5 to 7 that are not 0": [_framed(QUESTION, start=b"RHWC\x01\0\x01\0")],
    "what is no msgpack": [_framed(b"\xc1\xc1")],
    "half a map": [_framed(QUESTION[:-1])],
    "a byte behind the map": [_framed(QUESTION + b"\0")],
    "a list instead of a map": [_framed(codec.to_msgpack([1, 2, 3]))],
    "keys that are no text": [_framed(codec.to_msgpack({"op": "status", "id": 7, 3: 4}))],
    "two frames": [_framed(QUESTION), b""],
}


def _dropped(device: Device, *, frames: list[bytes]) -> None:
    if device.is_unix and (len(frames) > 1 or not frames[0]):
        raise NotOffered("there are no such packets")
    with device.client() as client:
        device.send(client.control, frames)
        number = 1000
        device.send(client.control, [codec.pack_control({"op": "status", "id": number})])
        came = device.receive(client.control, 5.0)
        if came is None:
            raise Broken("after it a good question was not answered", frames)
        if client.read_map(came)["id"] != number:
            raise Broken("it was answered", came)


for _title, _frames in DROP.items():
    CONTROL.add(f"{_title}: dropped", DROPPED, _dropped, frames=_frames)


@CONTROL.rule("a map without id: dropped", page="A map without `op` or `id` is dropped.")
def _(device: Device) -> None:
    for content in ({"op": "status"}, {"id": 7}):
        _dropped(device, frames=[codec.pack_control(content)])


@CONTROL.rule("more than 2^20 bytes: dropped", page=TOO_LONG)
def _(device: Device) -> None:
    _must_be_zeromq(device)
    frame = codec.pack_control({"op": "status", "id": 7, "x": bytes(LARGEST_CONTROL)})
    with device.client() as client, device.session() as other:
        device.send(client.control, [frame])
        came = device.receive(client.control, QUIET_S)
        if came is not None:
            raise Broken(f"{len(frame)} bytes were answered", came)
        if not other.ping()["valid"]:
            raise Broken("it has ended the session of another client")


def _must_be_zeromq(device: Device) -> None:
    if device.is_unix:
        raise NotOffered("a packet of a Unix socket is not so long")


# ---- the data socket --------------------------------------------------------------------------------


def _poked(at: int, value: int) -> Callable[[list[bytes]], list[bytes]]:
    """Another byte in the header, whose checksum is right."""
    return lambda frames: [codec.sealed(frames[0][:at] + bytes([value]) + frames[0][at + 1 : 76]), *frames[1:]]


def _flipped(at: int) -> Callable[[list[bytes]], list[bytes]]:
    """A bit of the header turned on its way."""
    return lambda frames: [frames[0][:at] + bytes([frames[0][at] ^ 1]) + frames[0][at + 1 :], *frames[1:]]


SPOIL: dict[str, tuple[str, Callable[[list[bytes]], list[bytes]]]] = {
    "a wrong checksum of the header": (UNTRUSTED, _flipped(79)),
    "a bit of the step turned": (UNTRUSTED, _flipped(24)),
    "a bit of the payload's checksum turned": (UNTRUSTED, _flipped(72)),
    "a wrong magic": (UNTRUSTED, _poked(3, ord("C"))),
    "version 2": (UNTRUSTED, _poked(4, 2)),
    "byte 45 not 0": (UNTRUSTED, _poked(45, 1)),
    "byte 47 not 0": (UNTRUSTED, _poked(47, 255)),
    "a header of 79 bytes": (UNTRUSTED, lambda frames: [frames[0][:79], frames[1]]),
    "a header of 81 bytes": (UNTRUSTED, lambda frames: [frames[0] + b"\0", frames[1]]),
    "an empty header": (UNTRUSTED, lambda frames: [b"", frames[1]]),
    "one frame": (FRAMES, lambda frames: frames[:1]),
    "three frames": (FRAMES, lambda frames: [*frames, b""]),
}


def _untrusted(device: Device, client: Client, *, spoil: Callable[[list[bytes]], list[bytes]]) -> None:
    u = device.u()

    def damaged(step: int) -> None:
        # It is neither counted nor done.
        client.untrusted(spoil(codec.pack_data(client.head_of_run(u, step=step), u.tobytes())))

    device.must_keep_state(client, damaged, "a message that cannot be trusted")


for _title, (_page, _spoil) in SPOIL.items():
    DATA.add_in_session(f"{_title}: error 4 with request 0, not counted", _page, _untrusted, spoil=_spoil)


@DATA.in_session(f"{FUZZED} messages at random: error 4 with request 0, and the session goes on", page=UNTRUSTED)
def _(device: Device, client: Client) -> None:
    chance = random.Random(5)
    u = device.u()
    client.reset()
    good = codec.pack_data(client.head_of_run(u), u.tobytes())
    for _ in range(FUZZED):
        header = bytearray(good[0])
        for _ in range(chance.randint(1, 8)):
            header[chance.randrange(80)] ^= 1 << chance.randrange(8)
        kind = chance.randrange(3)
        if kind == 0 and bytes(header) != good[0]:
            client.untrusted([bytes(header), good[1]])
        elif kind == 1:
            client.untrusted([chance.randbytes(chance.randrange(200)), chance.randbytes(chance.randrange(200))])
        else:
            client.untrusted([chance.randbytes(80) for _ in range(chance.choice((1, 3, 4, 7)))])
    client.run(u)


def _bad_payload(
    device: Device, client: Client, *, code: int, payload: Callable[[bytes], bytes], large: bool = False
) -> None:
    u = _large(device) if large else device.u()
    client.reset()
    header, good = client.head_of_run(u), u.tobytes()
    bad = payload(good)
    client.send_raw([codec.pack_data(header, good if code == codec.E_CHECKSUM else bad)[0], bad])
    client.sent += 1
    client.failed(header, code, loses=True)
    lost(client, device)


def _last_byte_changed(good: bytes) -> bytes:
    return good[:-1] + bytes([good[-1] ^ 0x80])


def _large(device: Device) -> np.ndarray:
    """Inputs that fill a frame, or are a few MiB: their states need not fit, as nothing is driven."""
    number = np.dtype(codec.NUMBERS[device.declaration["inputs"][0]])
    size = min(device.welcome["max_frame_bytes"], LARGE_BYTES)
    inputs = device.spec["inputs"]
    return np.zeros((1, max(1, size // (inputs * number.itemsize)), inputs), number)


for _title, _payload, _is_large in (
    ("a bit of the payload turned", lambda good: bytes([good[0] ^ 1]) + good[1:], False),
    ("the last byte of the payload changed", _last_byte_changed, False),
    ("the payload cut", lambda good: good[:-1], False),
    ("an empty payload", lambda good: b"", False),
    ("the last byte of a large payload changed", _last_byte_changed, True),
):
    DATA.add_in_session(
        f"{_title}: error 5, and the state is lost",
        "checksum: the payload was damaged on its way",
        _bad_payload,
        code=codec.E_CHECKSUM,
        payload=_payload,
        large=_is_large,
    )
for _title, _payload in {
    "one byte too few": lambda good: good[:-1],
    "one byte too many": lambda good: good + b"\0",
    "no payload": lambda good: b"",
}.items():
    DATA.add_in_session(
        f"RUN with {_title}, checksum right: error 4, and the state is lost",
        "Its length must be exactly that.",
        _bad_payload,
        code=codec.E_MALFORMED,
        payload=_payload,
    )


@DATA.rule(
    "a frame larger than max_frame_bytes is not taken, and its session does not know the next connection",
    page="The client's socket then connects again, but the session does not know the new connection: every request "
    "gets error 3, and only a new `hello` helps.",
)
def _(device: Device) -> None:
    _must_be_zeromq(device)
    largest = device.welcome["max_frame_bytes"]
    if largest > LARGEST_FRAME:
        raise NotOffered(f"a frame of {largest >> 20} MiB would have to be sent")
    with device.session() as client:
        header = codec.pack_data(client.head(codec.RESET, batch=1))[0]
        # Not copied: no memory is taken for what is never read.
        device.send(client.data, [header, memoryview(np.zeros(largest + 1, np.uint8))])  # type: ignore[list-item]
        device.last = [header]

        def turned_away() -> bool:
            device.send(client.data, codec.pack_data(client.head(codec.RESET, batch=1)))
            came = device.receive(client.data, 0.5)
            if came is None:
                return False
            header, payload = client.read_data(came)
            if header.operation != codec.ERROR or client.error_in(payload, came)["code"] != codec.E_NO_SESSION:
                raise Broken(f"a frame of {largest + 1} bytes was taken, or its connection is still known", came)
            return True

        if not repeat(10.0, 0.0, turned_away):
            raise Broken("after it the connection is dead")
    with device.session() as client:
        client.from_rest(device.u())


# ---- fields that an operation does not name -----------------------------------------------------------


ODD: dict[str, Any] = {
    **dict.fromkeys(("step", "batch", "steps", "width", "dtype", "time"), 1),
    "flags": 4,
    "scale": 0.5,
    "period": 1.0,
}
NAMED: dict[int, set[str]] = {
    codec.ATTACH: set(),
    codec.RESET: {"batch"},
    codec.RUN: {"step", "batch", "steps", "width", "dtype", "scale"},
    codec.SNAPSHOT: set(),
    codec.RESTORE: {"batch", "step"},
    codec.TRANSITION: {"batch", "steps", "width", "dtype", "scale"},
    codec.UPLOAD: set(),
    codec.READOUT: set(),
}


def _odd_fields(device: Device, *, operation: int) -> None:
    if operation in codec.SWITCHES:
        device.must_have(codec.SWITCHES[operation])
    for field in [name for name in ODD if name not in NAMED[operation]]:
        with device.let_in() if operation == codec.ATTACH else device.session() as client:
            fields, payload = client.request(operation)
            _malformed(client, field, operation, payload, **{**fields, field: ODD[field]})


def _malformed(client: Client, what: str, operation: int, payload: bytes, **fields: Any) -> None:
    try:
        client.refused(operation, codec.E_MALFORMED, payload=payload, **fields)
    except Broken as broken:
        raise Broken(f"{name_of(operation)} with {what}: {broken}", broken.frames, page=broken.page) from broken


for _operation in NAMED:
    _title = f"{name_of(_operation)} with a field that it does not name gets error 4"
    FIELDS.add(_title, UNNAMED, _odd_fields, operation=_operation)


@FIELDS.rule("ATTACH, RESET and SNAPSHOT with a payload get error 4", page=UNNAMED)
def _(device: Device) -> None:
    with device.let_in() as client:
        _malformed(client, "a payload", codec.ATTACH, b"x")
    with device.session() as client:
        _malformed(client, "a payload", codec.RESET, b"x", batch=1)
        client.from_rest(device.u())
        if device.spec.get("snapshot"):
            _malformed(client, "a payload", codec.SNAPSHOT, msgpack.packb({}) or b"")


@FIELDS.rule("unknown flags of RUN get error 4", page="Other bits are 0, else error 4.")
def _(device: Device) -> None:
    for flags in (4, 1 << 15, 0xFFFC):
        with device.session() as client:
            client.failed(client.send_run(device.u(), flags=flags), codec.E_MALFORMED)
            lost(client, device)


def _other_encoding(device: Device, client: Client, *, operation: int) -> None:
    if operation in codec.SWITCHES:
        device.must_have(codec.SWITCHES[operation])
    fields, payload = client.request(operation)
    declared, right = fields["dtype"], fields["scale"]
    count = len(payload) // np.dtype(codec.NUMBERS[declared]).itemsize
    others = [(declared, scale) for scale in (2 * right, math.nan, 0.0, -right)]
    others += [(dtype, right) for dtype in (*codec.NUMBERS, codec.NONE, 6, 255) if dtype != declared]
    for dtype, scale in others:
        number = np.dtype(codec.NUMBERS.get(dtype, "u1"))
        other = {**fields, "dtype": dtype, "scale": scale}
        client.reset()
        _malformed(client, f"dtype {dtype} and scale {scale:g}", operation, np.zeros(count, number).tobytes(), **other)


for _operation in (codec.RUN, codec.TRANSITION):
    _title = f"{name_of(_operation)} with another dtype or scale gets error 4"
    FIELDS.add_in_session(_title, ENCODING, _other_encoding, operation=_operation)
