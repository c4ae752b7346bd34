"""Write docs/protocol/golden/: the messages of docs/protocol.md as bytes, and what they say as JSON.

python tools/golden_frames.py
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.codec import Header

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "protocol" / "golden"

SESSION = 0x0001020304050607
LARGE_SESSION = 0xF102030405060708
NONCE = bytes(range(16))
INPUT_SCALE, STATE_SCALE = 2.0**-14, 2.0**-12
LARGEST_EXACT = 1 << 53
"""Whole numbers above it are texts in the JSON: JavaScript has no others."""

NODES = 3
SPEC = {
    "inputs": 2,
    "nodes": NODES,
    "dtype": "float32",
    "identity": {"vendor": "a bench", "model": "leaky", "serial": "7", "firmware": "1.2", "simulated": False},
    "input_range": [-1.0, 1.0],
    "state_range": None,
    "max_batch": 3,
    "continuity": "held",
    "step_period_s": 0.001,
    "snapshot": True,
    "settable": True,
    "programmable": True,
    "deterministic": True,
}
DECLARATION = {
    "spec": SPEC,
    "inputs": [codec.I2, INPUT_SCALE],
    "states": [codec.I2, STATE_SCALE],
    "chunked": True,
    "readout": True,
    "finite": True,
    "settings": {"laser_mA": 12.5, "mode": "fast"},
    "tolerances": {"laser_mA": 0.1},
}

SNAPSHOT = {"x": np.array([[0.25, -0.5, 0.125]], "f8")}
EVERY_DTYPE = {
    name: np.array([[1, 0], [1, 1]], "?" if name == "b1" else f"<{name}")
    for name in ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
}
WEIGHTS = {"weights": np.array([[1, -2, 3], [0, 127, -128]], "i1"), "scale": np.array([0.5, 0.25], "f4")}
READOUT = {**WEIGHTS, "bias": np.array([0.0, -1.0], "f4")}


@dataclass(frozen=True)
class Message:
    """A message of the page: its frames, and what they say."""

    name: str
    about: str
    sender: Literal["client", "device"]
    socket: Literal["control", "data", "unix data"]
    frames: list[bytes]
    says: dict[str, Any]

    def description(self) -> dict[str, Any]:
        """What stands in the JSON file."""
        return {
            "about": self.about,
            "from": self.sender,
            "socket": self.socket,
            "frames": [len(frame) for frame in self.frames],
            **self.says,
        }


def plain(value: Any) -> Any:
    """As JSON has it: bytes as `{"hex": ...}`, whole numbers above 2^53 and numbers that are none as text."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST_EXACT:
        return str(value)
    return value


def control(name: str, about: str, sender: Literal["client", "device"], **fields: Any) -> Message:
    """A control message."""
    return Message(name, about, sender, "control", [codec.pack_control(fields)], {"map": plain(fields)})


def data(name: str, about: str, header: Header, payload: bytes = b"", **says: Any) -> Message:
    """A data message; a reply comes from the device."""
    frames = codec.pack_data(header, payload)
    sender = "device" if header.operation & codec.REPLY else "client"
    return Message(name, about, sender, "data", frames, {"header": header_fields(header, frames), **says})


def header_fields(header: Header, frames: list[bytes]) -> dict[str, Any]:
    """All fields of a header, in the order in which they lie in it."""
    payload_crc, header_crc = struct.unpack("<II", frames[0][72:])
    fields = asdict(header)
    order = ("version", "operation", "flags", "session", "request", "step", "batch", "steps", "width", "dtype", "scale")
    named = {name: plain(fields[name]) for name in (*order, "time", "period")}
    return {**named, "payload_crc": payload_crc, "header_crc": header_crc}


def numbers(name: str, about: str, header: Header, values: Any) -> Message:
    """A data message with an array: `values` are the numbers in the payload, before the scale."""
    array = np.array(values, codec.NUMBERS[header.dtype])
    batch, steps, width = array.shape
    header = replace(header, batch=batch, steps=steps, width=width)
    return data(name, about, header, array.tobytes(), numbers=array.tolist(), values=(array * header.scale).tolist())


def mapped(name: str, about: str, header: Header, content: dict[str, Any]) -> Message:
    """A data message with a msgpack map."""
    return data(name, about, header, codec.to_msgpack(content), map=plain(content))


def named(name: str, about: str, header: Header, arrays: dict[str, np.ndarray]) -> Message:
    """A data message with named arrays."""
    told = {key: [array.dtype.str[1:], list(array.shape), array.tolist()] for key, array in arrays.items()}
    return data(name, about, header, codec.pack_named(arrays), arrays=told)


INLINE, SLOT, MEMFD = range(3)
CREDITS, SLOT_BYTES = 4, 1 << 16


def packet(name: str, about: str, of: Message, place: int) -> Message:
    """The packet of a Unix socket that carries a data message, in a session without checksums of payloads."""
    header, payload = of.frames
    front = struct.pack("<QB3x", len(payload), place)
    front += struct.pack("<I", codec.crc32c(front))
    body = header[:72] + bytes(4)
    body += struct.pack("<I", codec.crc32c(body))
    says = {"front": {"length": len(payload), "place": place, "crc": struct.unpack("<I", front[12:])[0]}}
    if place == SLOT:
        slot = (of.says["header"]["request"] - 1) % CREDITS + (CREDITS if of.sender == "device" else 0)
        says["slot"] = {"credits": CREDITS, "slot_bytes": SLOT_BYTES, "at": slot * SLOT_BYTES}
    if place != INLINE:
        says["elsewhere"] = plain(payload)
    crcs = dict(zip(("payload_crc", "header_crc"), struct.unpack("<II", body[72:]), strict=True))
    frames = [front + body + (payload if place == INLINE else b"")]
    return Message(name, about, of.sender, "unix data", frames, {**says, **of.says, "header": of.says["header"] | crcs})


def unix_messages() -> Iterator[Message]:
    """What is said at a unix address alone."""
    by_name = {message.name: message for message in (*control_messages(), *data_messages())}
    hello, welcome = (dict(codec.unpack_control(by_name[name].frames[0])) for name in ("hello", "welcome"))
    terms = {"checksums": False, "slot_bytes": SLOT_BYTES}
    yield control("unix-hello", "A client wants a ring, and no checksums of payloads.", "client", **hello, **terms)
    yield control("unix-welcome", "It gets them.", "device", **welcome, **terms)
    run, reply = by_name["run-float32"], by_name["run-float32-reply"]
    yield packet("unix-run-inline", "One step, its payload in the packet.", run, INLINE)
    yield packet("unix-run-slot", "The same, its payload in the ring.", run, SLOT)
    yield packet("unix-run-reply-slot", "Its states, in the ring.", reply, SLOT)
    yield packet("unix-run-memfd", "The same RUN, its payload in a memfd that comes with the packet.", run, MEMFD)


def head(operation: int, request: int, **fields: Any) -> Header:
    """The header of a message of the session."""
    return Header(operation, SESSION, request, **fields)


def control_messages() -> Iterator[Message]:
    """The control socket."""
    yield control(
        *("hello", "A client asks for the device.", "client"),
        op="hello",
        id=1,
        versions=[1],
        client="ada on bench7",
        nonce=NONCE,
    )
    welcome = {"version": 1, "session": SESSION, "lease_s": 3.0, "credits": 4, "max_frame_bytes": 1 << 20}
    told = {"server": "a board", "device": "a bench leaky 7"}
    yield control(*("welcome", "The client has the device.", "device"), **{"op": "welcome", "id": 1, **welcome, **told})
    yield control(
        "welcome-large-session",
        "A device should not give such a session, but a client takes it. lease_s is a whole number here.",
        "device",
        **{"op": "welcome", "id": 2, **welcome, "session": LARGE_SESSION, "lease_s": 3},
    )
    yield control(
        *("busy", "Another client has the device.", "device"),
        op="error",
        id=1,
        code=codec.E_BUSY,
        text="ada on bench7 has this device",
    )
    yield control(
        *("no-common-version", "The answer to a hello of version 2 alone.", "device"),
        op="error",
        id=1,
        code=codec.E_VERSION,
        text="this device speaks version 1",
    )
    yield control(*("ping", "A client is still there.", "client"), op="ping", id=5, session=SESSION)
    pong = {"op": "pong", "id": 5, "valid": True, "received": 3, "finished": 3, "busy": None}
    yield control(*("pong", "The device is idle.", "device"), **pong)
    busy = {"request": 4, "operation": "RUN", "seconds": 0.25}
    yield control(*("pong-busy", "The device works at request 4.", "device"), **{**pong, "received": 4, "busy": busy})
    yield control(
        *("pong-invalid", "The session does not hold the device.", "device"),
        **{**pong, "valid": False, "received": 0, "finished": 0},
    )
    yield control(*("status", "Anybody asks.", "client"), op="status", id=6)
    status = {"device": "a bench leaky 7", "holder": None, "uptime_s": 12.5, "counters": {"resets": 2}, "problem": None}
    yield control(*("status-reply", "The device is free.", "device"), op="status", id=6, status=status)
    yield control(
        *("cancel", "Requests up to 7 are not wanted any more.", "client"),
        op="cancel",
        id=7,
        session=SESSION,
        request=7,
    )
    yield control(*("goodbye", "The client leaves.", "client"), op="goodbye", id=8, session=SESSION)
    yield control(*("ok", "The answer to cancel, goodbye and release.", "device"), op="ok", id=8)
    yield control(*("release", "A person has looked after the device.", "client"), op="release", id=9)
    yield control(*("negative-id", "An id is any integer; the reply repeats it.", "client"), op="status", id=-129)


def data_messages() -> Iterator[Message]:
    """The data socket."""
    attach, reply = head(codec.ATTACH, 1), codec.REPLY
    yield data("attach", "The first request of a session.", attach)
    yield mapped("attach-reply", "The declaration.", replace(attach, operation=codec.ATTACH | reply), DECLARATION)
    reset = head(codec.RESET, 2, batch=3)
    yield data("reset", "To rest, for three sequences.", reset)
    yield data("reset-reply", "They are at rest.", replace(reset, operation=codec.RESET | reply))

    counts = {"dtype": codec.I2, "scale": INPUT_SCALE}
    run = head(codec.RUN, 3, step=0, **counts)
    yield numbers("run-batch-1", "One sequence, two steps, int16.", run, [[[8192, -16384], [16384, 1]]])
    answered = {"dtype": codec.I2, "scale": STATE_SCALE, "time": 5_000_000_000, "period": 0.001}
    states = replace(run, operation=codec.RUN | reply, **answered)
    yield numbers("run-batch-1-reply", "Its states.", states, [[[1, -2, 3], [4096, -4096, 32767]]])
    three = [[[100 * b + 10 * t + i for i in range(2)] for t in range(2)] for b in range(3)]
    yield numbers("run-batch-3", "Three sequences, two steps, int16; more chunks follow.", replace(run, flags=1), three)
    wide = [[[1000 * b + 100 * t + n for n in range(NODES)] for t in range(2)] for b in range(3)]
    yield numbers("run-batch-3-reply", "Their states; the flags are repeated.", replace(states, flags=1), wide)
    floats = Header(codec.RUN, SESSION, 4, step=2, dtype=codec.F4)
    yield numbers("run-float32", "One step, float32; step 2 is due.", floats, [[[0.5, -1.0]]])
    now = replace(floats, operation=codec.RUN | reply, time=1_700_000_000 * 10**9, period=0.001)
    yield numbers("run-float32-reply", "Its states; the time does not fit into 53 bits.", now, [[[0.25, 0.5, -0.75]]])
    yield numbers("run-float32-batch-3", "Three sequences, one step.", floats, [[[0.5, -1.0]], [[0, 1]], [[0.25, 0]]])
    for name, dtype, scale in (("float64", codec.F8, 1.0), ("int32", codec.I4, 2.0**-20), ("int8", codec.I1, 2.0**-7)):
        header = replace(floats, dtype=dtype, scale=scale)
        yield numbers(f"run-{name}", f"One step, {name}.", header, [[[1, -2]]])
    outputs = Header(codec.RUN, SESSION, 5, step=3, flags=codec.OUTPUTS, **counts)
    yield numbers("run-outputs", "One step, answered with outputs of the readout.", outputs, [[[8192, -16384]]])
    answer = replace(outputs, operation=codec.RUN | reply, dtype=codec.F4, scale=1.0)
    yield numbers("run-outputs-reply", "Two outputs.", answer, [[[0.125, -0.5]]])

    snapshot = head(codec.SNAPSHOT, 6)
    yield data("snapshot", "The state, please.", snapshot)
    yield named(
        "snapshot-reply", "The state of one sequence.", replace(snapshot, operation=codec.SNAPSHOT | reply), SNAPSHOT
    )
    restore = head(codec.RESTORE, 7, batch=1, step=2)
    yield named("restore", "Back to this state, which is that after two steps.", restore, SNAPSHOT)
    yield data("restore-reply", "It is there.", replace(restore, operation=codec.RESTORE | reply))
    transition = head(codec.TRANSITION, 8, dtype=codec.I2, scale=STATE_SCALE)
    yield numbers(
        "transition",
        "From two states, an input and a state each, as states are declared.",
        transition,
        [[[2048, -4096, 1, 2, 3]], [[0, 0, -1, -2, -3]]],
    )
    yield numbers(
        "transition-reply",
        "The states one step later.",
        replace(transition, operation=codec.TRANSITION | reply),
        [[[10, 20, 30]], [[-1, -2, -3]]],
    )
    upload = head(codec.UPLOAD, 9)
    yield named("upload", "Named arrays of every dtype, each (2, 2).", upload, EVERY_DTYPE)
    yield named("upload-empty-array", "An array may have no numbers, or no axes.", upload, {
        "none": np.zeros((0, 4), "f4"), "one": np.array(0.5, "f8"),
    })  # fmt: skip
    yield mapped("upload-reply", "The new declaration.", replace(upload, operation=codec.UPLOAD | reply), DECLARATION)
    readout = head(codec.READOUT, 10)
    yield named("readout", "Two outputs, int8 weights.", readout, READOUT)
    yield data("readout-reply", "It is loaded.", replace(readout, operation=codec.READOUT | reply, width=2))

    error = {"code": codec.E_FAULT, "text": "the laser is off", "step": 120, "state_lost": True, "steps_done": 2}
    done = np.array([[[1, -2, 3], [4, -5, 6]]], "<i2")
    yield mapped(
        "error-with-states",
        "A RUN that began at step 118 failed after two steps; states as int16.",
        head(codec.ERROR, 11, step=118),
        {**error, "states": done.tobytes()},
    )
    cancelled = {"code": codec.E_CANCELLED, "text": "cancelled", "step": 0, "state_lost": True, "steps_done": 0}
    yield mapped("error-cancelled", "A RUN that was cancelled.", head(codec.ERROR, 12), {**cancelled, "states": None})
    untrusted = {"code": codec.E_MALFORMED, "text": "checksum of the header", "step": 0, "state_lost": False}
    yield mapped(
        "error-request-0",
        "The answer to a header that could not be trusted.",
        Header(codec.ERROR),
        {**untrusted, "steps_done": 0, "states": None},
    )


def hostile_messages() -> Iterator[Message]:
    """What must not be taken."""
    by_name = {message.name: message for message in (*control_messages(), *data_messages())}
    ping, run, attach = (by_name[name] for name in ("ping", "run-batch-1", "attach"))

    def spoiled(name: str, about: str, must: str, of: Message, frames: list[bytes]) -> Message:
        says = {"spoiled": of.name, "must": must}
        return Message(name, about, of.sender, of.socket, frames, says)

    def sealed(front: bytes) -> bytes:
        return front + struct.pack("<I", codec.crc32c(front))

    untrusted = "error 4 with session 0 and request 0; the request is not counted, and the state is kept"
    header, payload = run.frames
    yield spoiled(
        "bad-header-crc",
        "A bit of the header was turned.",
        untrusted,
        run,
        [header[:24] + b"\x01" + header[25:], payload],
    )
    yield spoiled(
        "bad-payload-crc",
        "A bit of the payload was turned.",
        "error 5; the request is counted, and the state is lost",
        run,
        [header, bytes([payload[0] ^ 1]) + payload[1:]],
    )
    body = header[:76]
    yield spoiled("bad-magic", "RHWX.", untrusted, run, [sealed(b"RHWX" + body[4:]), payload])
    yield spoiled("bad-version", "Version 2.", untrusted, run, [sealed(body[:4] + b"\x02" + body[5:]), payload])
    yield spoiled("bad-zeros", "Byte 45 is not 0.", untrusted, run, [sealed(body[:45] + b"\x01" + body[46:]), payload])
    yield spoiled("short-header", "79 bytes.", untrusted, run, [header[:79], payload])
    yield spoiled("one-frame", "No payload, not even an empty one.", untrusted, attach, attach.frames[:1])
    yield spoiled("three-frames", "One frame too many.", untrusted, run, [header, payload, b""])
    unknown = data("unknown-operation", "Operation 0x09.", head(0x09, 3))
    yield replace(unknown, says={**unknown.says, "must": "error 10; the state is kept"})
    unnamed = data("unnamed-field", "RESET has no step.", head(codec.RESET, 3, batch=1, step=5))
    yield replace(unnamed, says={**unnamed.says, "must": "error 4; the state is lost"})
    (frame,) = ping.frames
    dropped = "dropped without an answer"
    yield spoiled("control-bad-crc", "A bit of the map was turned.", dropped, ping, [frame[:-1] + b"\x09"])
    yield spoiled("control-bad-version", "Version 2.", dropped, ping, [frame[:4] + b"\x02" + frame[5:]])
    no_id = {"op": "status"}
    yield spoiled("control-without-id", "A map without id.", dropped, by_name["status"], [codec.pack_control(no_id)])
    no_op = {"id": 7}
    yield spoiled("control-without-op", "A map without op.", dropped, by_name["status"], [codec.pack_control(no_op)])
    odd = control("control-unknown-op", "An op that is not listed.", "client", op="dance", id=3)
    yield replace(odd, says={**odd.says, "must": "error 4"})


def messages() -> list[Message]:
    """All messages."""
    return [*control_messages(), *data_messages(), *unix_messages(), *hostile_messages()]


def lines_of(description: dict[str, Any]) -> str:
    """JSON with one key on a line."""
    lines = (f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in description.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Write all files anew."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in (*FOLDER.glob("*.bin"), *FOLDER.glob("*.json")):
        path.unlink()
    for message in messages():
        (FOLDER / f"{message.name}.bin").write_bytes(b"".join(message.frames))
        (FOLDER / f"{message.name}.json").write_text(lines_of(message.description()), encoding="utf-8")


if __name__ == "__main__":
    main()
