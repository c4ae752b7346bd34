"""Unix sockets: packets, the places of payloads, the ring in shared memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client
from reservoir_hw.testing.protocol.codec import Header
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.ledger import Broken, NotOffered
from reservoir_hw.testing.protocol.pipes import INLINE, LARGEST_PACKET, MEMFD, SEALS, SLOT, Packets, memfd, prefix
from reservoir_hw.testing.protocol.rules import Rules

RULES = Rules("Unix sockets")

WANTED = 1 << 18
"""Bytes of a slot."""
LARGE = 1 << 17
"""Bytes of states that do not go inline, if the device has so many in `LARGE_S` seconds."""
LARGE_S = 0.5
PREFIX = (
    "A device treats a packet whose first 16 bytes are not as this table says like one whose header cannot be trusted"
)
CANNOT = "If the header is good, but the payload cannot be had, the request is counted and gets an error"
TERMS = "ATTACH gets error 17 if the descriptor is missing or was not agreed on"
ENDS = "the session ends as by `goodbye`."
SOON_S = 0.5


def _packets(client: Client) -> Packets:
    if not isinstance(client.data, Packets):
        raise NotOffered("the device is not at unix://")
    return client.data


def _send(client: Client, header: Header, payload: bytes, front: bytes, descriptors: Sequence[int] = ()) -> Header:
    """A request in a packet with these first 16 bytes; the payload is inline unless they name another place."""
    packed = codec.pack_data(header, payload)[0]
    inline = payload if front[8] == INLINE else b""
    _packets(client).send_packet(front, packed, inline, descriptors=descriptors)
    client.sent = max(client.sent, header.request)
    return header


def _refused(client: Client, u: np.ndarray, code: int, front: bytes, descriptors: Sequence[int] = ()) -> None:
    """A RUN in such a packet gets this error, and the next one is done."""
    client.failed(_send(client, client.head_of_run(u), u.tobytes(), front, descriptors), code)
    client.from_rest(u)


def _untrusted(client: Client, header: Header, payload: bytes, front: bytes, descriptors: Sequence[int] = ()) -> None:
    """Such a packet gets error 4 with request 0, and is not counted."""
    _packets(client).send_packet(front, codec.pack_data(header, payload)[0], payload, descriptors=descriptors)
    client.must_be_untrusted()


@RULES.in_session("the sockets have mode 0600", page="The files have mode 0600")
def _(device: Device, client: Client) -> None:
    _packets(client)
    for address in (device.address, device.control_address):
        path = address.removeprefix("unix://")
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode != 0o600:
            raise Broken(f"{path} has mode {mode:o}")


@RULES.in_session("who asks for no terms gets no ring, and checksums", page="Missing or 0: no ring")
def _(_: Device, client: Client) -> None:
    _packets(client)
    terms = client.welcome.get("checksums", True), client.welcome.get("slot_bytes", 0)
    if terms != (True, 0):
        raise Broken(f"checksums and slot_bytes of the welcome are {terms}")


def _bad_prefix(device: Device, client: Client, *, spoil: Callable[[bytes], bytes]) -> None:
    u = device.u()
    client.reset()
    _untrusted(client, client.head_of_run(u), u.tobytes(), spoil(prefix(u.nbytes, INLINE)))
    client.run(u)


for _title, _spoil in {
    "a wrong checksum of the first bytes": lambda front: front[:15] + bytes([front[15] ^ 1]),
    "another length, checksum wrong": lambda front: bytes([front[0] ^ 1]) + front[1:],
    "byte 9 not 0": lambda front: codec.sealed(front[:9] + b"\1" + front[10:12]),
    "place 3": lambda front: codec.sealed(front[:8] + b"\3" + front[9:12]),
}.items():
    RULES.add_in_session(f"{_title}: error 4 with request 0, not counted", PREFIX, _bad_prefix, spoil=_spoil)


@RULES.in_session(
    "a descriptor that nobody asked for: error 4 with request 0, not counted",
    page="A packet with another number of file descriptors than its place asks for is one, too.",
)
def _(device: Device, client: Client) -> None:
    u = device.u()
    client.reset()
    with _segment(4096) as segment:
        _untrusted(client, client.head_of_run(u), u.tobytes(), prefix(u.nbytes, INLINE), [segment])
    header = codec.pack_data(client.head_of_run(u), u.tobytes())[0]
    _packets(client).send_packet(prefix(u.nbytes, MEMFD), header)
    client.must_be_untrusted()
    client.run(u)


@RULES.in_session(
    "a packet of more than 65,536 bytes: error 4 with request 0, not counted",
    page="A longer packet arrives cut (`MSG_TRUNC`), and counts as malformed.",
)
def _(device: Device, client: Client) -> None:
    u = device.u()
    client.reset()
    _untrusted(client, client.head_of_run(u), bytes(LARGEST_PACKET), prefix(LARGEST_PACKET, INLINE))
    client.run(u)


@contextlib.contextmanager
def _segment(size: int, content: bytes = b"", *, seals: int = SEALS) -> Iterator[int]:
    descriptor = memfd(size, content, seals=seals)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@RULES.in_session("an inline payload of another length than said: error 4", page=CANNOT)
def _(device: Device, client: Client) -> None:
    u = device.u()
    for more in (1, -1):
        _refused(client, u, codec.E_MALFORMED, prefix(u.nbytes + more, INLINE))


@RULES.in_session("a payload in a memfd of its own is a payload", page="*Memfd* is for all that does not fit elsewhere")
def _(device: Device, client: Client) -> None:
    u = device.u()
    inline = client.from_rest(u)
    client.reset()
    with _segment(4096, u.tobytes()) as segment:
        header = _send(client, client.head_of_run(u), u.tobytes(), prefix(u.nbytes, MEMFD), [segment])
        device.must_agree(inline, client.states(header), "the same RUN inline, and in a memfd", exact=True)


@RULES.in_session("a memfd that ends too early: error 4", page=CANNOT)
def _(device: Device, client: Client) -> None:
    u = device.u()
    with _segment(1, b"x") as segment:
        _refused(client, u, codec.E_MALFORMED, prefix(u.nbytes, MEMFD), [segment])


@RULES.in_session(
    "bytes behind the header of a payload that lies elsewhere: error 4",
    page="or if the packet goes on behind the header although the payload lies elsewhere.",
)
def _(device: Device, client: Client) -> None:
    u = device.u()
    header = client.head_of_run(u)
    front, packed = prefix(u.nbytes, MEMFD), codec.pack_data(header, u.tobytes())[0]
    with _segment(4096, u.tobytes()) as segment:
        _packets(client).send_packet(front, packed, b"x", descriptors=[segment])
        client.sent += 1
        client.failed(header, codec.E_MALFORMED)
        client.from_rest(u)


@RULES.in_session(
    "a payload of more than max_frame_bytes: error 9", page="9 if the length is more than `max_frame_bytes`"
)
def _(device: Device, client: Client) -> None:
    size = device.welcome["max_frame_bytes"] + 1
    with _segment(size) as segment:
        _refused(client, device.u(), codec.E_TOO_LARGE, prefix(size, MEMFD), [segment])


@RULES.in_session(
    "a slot where there is no ring: error 4",
    page="4 if a slot is named that does not exist or is shorter than the length",
)
def _(device: Device, client: Client) -> None:
    u = device.u()
    _refused(client, u, codec.E_MALFORMED, prefix(u.nbytes, SLOT))


# ---- terms ------------------------------------------------------------------------------------------


def _ring_bytes(client: Client) -> int:
    """Bytes of the segment that was agreed on."""
    slot_bytes = client.welcome.get("slot_bytes", 0)
    if slot_bytes == 0:
        raise NotOffered("the device agrees to no ring")
    if type(slot_bytes) is not int or slot_bytes % 4096 or not 0 < slot_bytes <= client.terms["slot_bytes"]:
        raise Broken(f"slot_bytes of the welcome is {slot_bytes!r}")
    return 2 * client.welcome["credits"] * slot_bytes


def _attach(client: Client, descriptors: Sequence[int]) -> Header:
    return _send(client, client.head(codec.ATTACH), b"", prefix(0, INLINE), descriptors)


@RULES.rule(
    "payloads in the slots of a ring are payloads, round and round",
    page="Request n has slot i = (n − 1) mod `credits`.",
)
def _(device: Device) -> None:
    runs = [device.u(), device.long_run(LARGE_S, at_most=2 * LARGE)]
    with device.session() as client:
        before = [client.from_rest(u) for u in runs]
    with _ring_session(device) as (client, data, ring):
        for number in range(data.credits + 1):
            u = runs[number % 2]
            if u.nbytes > data.slot_bytes:
                continue
            client.reset()
            header = client.head_of_run(u)
            at = (header.request - 1) % data.credits * data.slot_bytes
            ring[at : at + u.nbytes] = u.tobytes()
            states = client.states(_send(client, header, u.tobytes(), prefix(u.nbytes, SLOT)))
            what = f"the same RUN without a ring, and in a slot (request {header.request})"
            device.must_agree(before[number % 2], states, what, exact=True)
        if data.slot_bytes < client.welcome["max_frame_bytes"]:
            client.reset()
            header, front = client.head_of_run(runs[0]), prefix(data.slot_bytes + 1, SLOT)
            client.failed(_send(client, header, runs[0].tobytes(), front), codec.E_MALFORMED)


@contextlib.contextmanager
def _ring_session(device: Device) -> Iterator[tuple[Client, Packets, mmap.mmap]]:
    """A client that has the device, and a ring."""
    with device.let_in(slot_bytes=WANTED) as client:
        size, data = _ring_bytes(client), _packets(client)
        data.slot_bytes, data.credits = client.welcome["slot_bytes"], client.welcome["credits"]
        with _segment(size) as segment:
            data.ring = mmap.mmap(segment, size)
            reply = client.done(_attach(client, [segment]))
        client.declared(reply)
        yield client, data, data.ring


@RULES.rule(
    "an error never lies in a slot",
    page="**Errors** never use a slot: the request that one answers may have a wrong number",
)
def _(device: Device) -> None:
    with _ring_session(device) as (client, data, _):
        u = device.u()
        client.from_rest(u)
        foreign = replace(client.head_of_run(u), session=client.session ^ 1)
        client.failed(_send(client, foreign, u.tobytes(), prefix(u.nbytes, INLINE)), codec.E_NO_SESSION)
        client.sent -= 1
        _must_not_be_in_a_slot(device, data)
        client.failed(_send(client, client.head_of_run(u), u.tobytes(), prefix(u.nbytes, INLINE)), codec.E_SEQUENCE)
        _must_not_be_in_a_slot(device, data)
        header, payload = codec.pack_data(client.head_of_run(u), u.tobytes())
        data.send_packet(prefix(len(payload), INLINE), header[:79] + bytes([header[79] ^ 1]), payload)
        client.must_be_untrusted()
        _must_not_be_in_a_slot(device, data)
        client.from_rest(u)


def _must_not_be_in_a_slot(device: Device, data: Packets) -> None:
    if data.place == SLOT:
        raise Broken("the ERROR lies in a slot", device.last)


def _bad_ring(device: Device, *, extra: int, seals: int) -> None:
    with (
        device.let_in(slot_bytes=WANTED) as client,
        _segment(_ring_bytes(client) + extra, seals=seals) as segment,
    ):
        client.failed(_attach(client, [segment]), codec.E_CONFIGURATION)


for _title, _extra, _seals in (
    ("a larger segment", 4096, SEALS),
    ("a smaller segment", -4096, SEALS),
    ("a segment that may shrink", 0, 0x4),
    ("a segment that may grow", 0, 0x2),
):
    RULES.add(f"ATTACH with {_title}: error 17", TERMS, _bad_ring, extra=_extra, seals=_seals)


@RULES.rule("terms of another type: error 4", page="where one has another type, gets error 4.")
def _(device: Device) -> None:
    with device.client() as client:
        _packets(client)
        hello = {"versions": [1], "client": "check", "nonce": bytes(16)}
        for terms in ({"checksums": "no"}, {"slot_bytes": "4096"}):
            client.turned_down("hello", codec.E_MALFORMED, **hello, **terms)
    with device.session():
        """Nobody has it."""


@RULES.rule("ATTACH without the segment that was agreed on: error 17", page=TERMS)
def _(device: Device) -> None:
    with device.let_in(slot_bytes=WANTED) as client:
        _ring_bytes(client)
        client.failed(_attach(client, []), codec.E_CONFIGURATION)


@RULES.rule("ATTACH with a segment that was not agreed on: error 17", page=TERMS)
def _(device: Device) -> None:
    with device.let_in() as client, _segment(4096) as segment:
        client.failed(_attach(client, [segment]), codec.E_CONFIGURATION)


@RULES.rule(
    "without checksums they are 0 in both directions",
    page="Without checksums, the field at offset 72 of every header on the data connection of the session is 0, in "
    "both directions, and nobody looks at it.",
)
def _(device: Device) -> None:
    u = device.u()
    with device.session() as client:
        before = client.from_rest(u)
    with device.let_in(checksums=False) as client:
        if client.welcome.get("checksums", True):
            raise NotOffered("the device insists on checksums")
        client.attach()
        for crc in (0, 1):
            client.reset()
            header = client.head_of_run(u)
            front = codec.sealed(codec.pack_data(header)[0][:72] + crc.to_bytes(4, "little"))
            _packets(client).send_packet(prefix(u.nbytes, INLINE), front, u.tobytes())
            client.sent += 1
            device.must_agree(before, client.states(header), "the same RUN with checksums, and without", exact=True)


def _ends(device: Device, *, control: bool) -> None:
    with device.client() as client, device.client("the next one") as other:
        _packets(client)
        device.welcomed(client)
        client.attach()
        began = time.monotonic()
        (client.control if control else client.data).close()
        device.welcomed(other, SOON_S if device.lease_s > 2 * SOON_S else device.lease_s)
        took = time.monotonic() - began
        other.leave()
        if took > device.lease_s * 0.9:
            raise Broken(f"the device was free after {took:.2f} s, when the lease of {device.lease_s:g} s ended")


for _title, _control in (("control", True), ("data", False)):
    RULES.add(f"the end of the {_title} connection ends the session", ENDS, _ends, control=_control)
