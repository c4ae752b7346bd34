"""A client that takes nothing that the page does not allow, and sends whatever it is told."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import zmq

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.codec import Header
from reservoir_hw.testing.protocol.ledger import Broken, Hangs, NotThePage
from reservoir_hw.testing.protocol.line import Line

ANSWERS = {"hello": "welcome", "ping": "pong", "status": "status", "cancel": "ok", "goodbye": "ok", "release": "ok"}
OPERATIONS = ("", "ATTACH", "RESET", "RUN", "SNAPSHOT", "RESTORE", "TRANSITION", "UPLOAD", "READOUT", "SET", "GET")
NAMED: dict[int, set[str]] = {
    codec.RESET: {"batch"},
    codec.RUN: {"flags", "step", "batch", "steps", "width", "dtype", "scale", "time", "period"},
    codec.RESTORE: {"batch", "step"},
    codec.TRANSITION: {"batch", "steps", "width", "dtype", "scale"},
    codec.READOUT: {"width"},
    codec.ERROR ^ codec.REPLY: {"step"},
}
"""Fields of a reply that its operation names."""
REPEATED: dict[int, tuple[str, ...]] = {
    codec.RESET: ("batch",),
    codec.RUN: ("flags", "step", "batch", "steps"),
    codec.RESTORE: ("batch", "step"),
    codec.TRANSITION: ("batch", "steps"),
}
FIELDS = ("flags", "step", "batch", "steps", "width", "dtype", "time", "period")
ERROR_KEYS: dict[str, type | tuple[type, ...]] = {
    "code": int,
    "text": str,
    "step": int,
    "state_lost": bool,
    "steps_done": int,
    "states": (bytes, type(None)),
}

ANSWER_S = 5.0
"""A question on the control socket is answered at once."""
LOOK_S = 0.2
IDLE_LOOKS = 5
"""A device that says so often that it is idle has lost the request."""
ONE_STEP = "a declaration of which one step does not go into a frame"
LONGEST_S = 60.0
"""A request of the check, besides the steps as they are declared."""


class Reply(NamedTuple):
    """What came for a request: an ERROR has a map."""

    header: Header
    payload: bytes
    error: dict[str, Any] | None
    frames: list[bytes]


class Client:
    """One client, from one thread, with at most one question on the control socket at a time.

    Every message that comes goes through the ledger of the line. Raises `Broken` where nothing can be made of one.
    """

    def __init__(self, line: Line, name: str) -> None:
        self._line, self.name = line, name
        self.nonce = secrets.token_bytes(16)
        with contextlib.ExitStack() as undone:
            self.control = undone.enter_context(contextlib.closing(line.connected(data=False)))
            self.data = line.connected(data=True)
            undone.pop_all()
        self.terms: dict[str, Any] = {}
        """More fields of hello."""
        self.welcome: dict[str, Any] = {}
        self.session = 0
        self.sent = 0
        """Number of the last request."""
        self.declaration: dict[str, Any] = {}
        self._asked = 0
        self._time = 0
        self._outputs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Go without a word."""
        self.control.close()
        self.data.close()

    # ---- control --------------------------------------------------------------------------------

    def ask(self, op: str, *, number: int | None = None, **fields: Any) -> dict[str, Any]:
        """A question and its answer, which may be an error."""
        self._asked += 1
        number = self._asked if number is None else number
        frame = codec.pack_control({"op": op, "id": number, **fields})
        self._line.send(self.control, [frame])
        frames = self._line.receive(self.control, ANSWER_S)
        if frames is None:
            raise Broken(f"no answer to {op} within {ANSWER_S:g} s", [frame])
        ledger = self._line.ledger
        answer = self.read_map(frames)
        said = type(answer["id"]) is int and answer["id"] == number
        ledger.must("control id", said, f"{op} with id {number} was answered with id {answer['id']!r}", frames)
        if answer["op"] == "error":
            fits = type(answer.get("code")) is int and isinstance(answer.get("text"), str)
            ledger.must("control op", fits, f"the error for {op} has no code and text: {answer}", frames)
        else:
            due = ANSWERS.get(op)
            ledger.must("control op", answer["op"] == due, f"{op} was answered with {answer['op']!r}", frames)
        return answer

    def read_map(self, frames: list[bytes]) -> dict[str, Any]:
        """The map of a control message."""
        must = self._line.ledger.must
        must("control frame", len(frames) == 1, f"a control message of {len(frames)} frames", frames)
        try:
            return codec.unpack_control(frames[0])
        except NotThePage as error:
            must("control frame", False, str(error), frames)
            raise

    def told(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer to a question that must not be an error."""
        answer = self.ask(op, **fields)
        if answer["op"] == "error":
            raise Broken(f"{op} was answered with error {answer['code']}: {answer['text']}")
        return answer

    def turned_down(self, op: str, code: int, **fields: Any) -> str:
        """The text of the error that a question must get."""
        answer = self.ask(op, **fields)
        if answer["op"] != "error":
            raise Broken(f"{op} was answered with {answer['op']}, error {code} is due")
        if answer["code"] != code:
            raise Broken(f"{op} got error {answer['code']} ({answer['text']}), error {code} is due")
        return answer["text"]

    def hello(self, versions: Sequence[int] = (1,)) -> dict[str, Any]:
        """Ask for the device; a welcome is remembered."""
        answer = self.ask("hello", versions=list(versions), client=self.name, nonce=self.nonce, **self.terms)
        if answer["op"] == "welcome":
            counts = [answer.get(name) for name in ("session", "credits", "max_frame_bytes")]
            if not all(type(count) is int and 0 < count < 1 << 64 for count in counts):
                raise Broken(f"the welcome lacks session, credits or max_frame_bytes: {answer}")
            if answer["session"] != self.session:
                self.session, self.sent, self._time = answer["session"], 0, 0
            self.welcome = answer
        return answer

    def ping(self) -> dict[str, Any]:
        """The pong."""
        pong = self.told("ping", session=self.session)
        numbers = all(type(pong.get(name)) is int for name in ("received", "finished"))
        if not isinstance(pong.get("valid"), bool) or not numbers or "busy" not in pong:
            raise Broken(f"the pong lacks valid, received, finished or busy: {pong}")
        return pong

    def is_busy_with(self, request: Header) -> bool:
        """Whether a pong says that the device works at this request."""
        busy = self.ping()["busy"]
        if not isinstance(busy, dict) or busy.get("request") != request.request:
            return False
        if not isinstance(busy.get("operation"), str) or not isinstance(busy.get("seconds"), int | float):
            raise Broken(f"busy has no operation (text) or seconds: {busy}")
        return True

    # ---- data -----------------------------------------------------------------------------------

    def head(self, operation: int, **fields: Any) -> Header:
        """The header of the next request."""
        return Header(operation, self.session, self.sent + 1, **fields)

    def send(self, header: Header, payload: bytes = b"") -> Header:
        """Send a request; it counts."""
        self._line.send(self.data, codec.pack_data(header, payload))
        self.sent = max(self.sent, header.request)
        return header

    def send_raw(self, frames: list[bytes]) -> None:
        """Send any frames, which do not count."""
        self._line.send(self.data, frames)

    def next_message(self, awaited: str, longest_s: float = LONGEST_S) -> list[bytes]:
        """The frames of the next message. While there is none, the device is asked whether it is working."""
        sent, idle, until = self._line.last, 0, time.monotonic() + longest_s
        while idle < IDLE_LOOKS:
            frames = self._line.receive(self.data, LOOK_S)
            if frames is not None:
                return frames
            idle += 1
            if self.session and self.ping()["busy"] is not None:
                idle = 0
                if time.monotonic() > until:
                    raise Hangs(f"the device is busy for {longest_s:.0f} s, and gives no answer to {awaited}", sent)
        raise Broken(f"no answer to {awaited}", sent)

    def reply(self, request: Header) -> Reply:
        """What comes for a request, which is the next that is due."""
        name = name_of(request.operation)
        frames = self.next_message(f"{name}, request {request.request}", LONGEST_S + self._declared_s(request))
        header, payload = self.read_data(frames)
        look, must = self._line.ledger.look, self._line.ledger.must
        what = f"the reply to {name}, request {request.request}"
        must("request", header.request == request.request, f"{what}, has request {header.request}", frames)
        due = codec.ERROR if header.operation == codec.ERROR else request.operation | codec.REPLY
        must("operation", header.operation == due, f"{what}, has operation {header.operation:#04x}", frames)
        look("session", header.session == request.session, f"{what}, has session {header.session}", frames)
        self._look_at_fields(request, header, frames, what)
        if header.operation == codec.ERROR:
            error = self.error_in(payload, frames)
            lost = error["code"] not in codec.LOSES_STATE or error["state_lost"] or not header.request
            look("error lost", lost, f"error {error['code']} with state_lost false", frames)
            return Reply(header, payload, error, frames)
        if request.operation in (codec.RUN, codec.TRANSITION):
            self._look_at_array(request, header, payload, frames, what)
        elif request.operation in (codec.RESET, codec.RESTORE, codec.READOUT):
            look("length", not payload, f"{what}, has a payload of {len(payload)} bytes", frames)
        return Reply(header, payload, None, frames)

    def read_data(self, frames: list[bytes]) -> tuple[Header, bytes]:
        """A data message with the right form and checksums."""
        ledger = self._line.ledger
        fits = len(frames) == 2 and len(frames[0]) == 80
        ledger.must("data frames", fits, f"a data message of frames with {[*map(len, frames)]} bytes", frames)
        try:
            header, crc = codec.unpack_header(frames[0])
        except NotThePage as error:
            ledger.must("header", False, str(error), frames)
            raise
        ledger.look("header", True, "", frames)
        due = codec.crc32c(frames[1]) if self.welcome.get("checksums", True) else 0
        ledger.must("payload", crc == due, "the checksum of the payload is wrong", frames)
        largest = self.welcome.get("max_frame_bytes", math.inf)
        ledger.look("frame size", max(map(len, frames)) <= largest, f"a frame of {len(frames[1])} bytes", frames)
        return header, frames[1]

    def _declared_s(self, request: Header) -> float:
        """Seconds that the device declares for a request."""
        spec = codec.fitting(self.declaration.get("spec", {}))
        period_s, reset_s = spec.get("step_period_s") or 0.0, spec.get("reset_time_s") or 0.0
        return 3 * (request.batch * request.steps * period_s + reset_s)

    def _look_at_fields(self, request: Header, header: Header, frames: list[bytes], what: str) -> None:
        look = self._line.ledger.look
        operation = header.operation & ~codec.REPLY
        named = NAMED.get(operation, set())
        extra = {name: getattr(header, name) for name in FIELDS if name not in named and getattr(header, name) != 0}
        if "scale" not in named and header.scale != 1:
            extra["scale"] = header.scale
        look("unused", not extra, f"{what}, has {extra}", frames)
        if header.operation == codec.ERROR:
            repeated = (header.session, header.request, header.step) == (request.session, request.request, request.step)
            look("error header", repeated, f"the ERROR for step {request.step} has step {header.step}", frames)
        for name in REPEATED.get(operation, ()):
            same = getattr(header, name) == getattr(request, name)
            look("repeated", same, f"{what}, has {name} {getattr(header, name)}, not {getattr(request, name)}", frames)

    def _look_at_array(self, request: Header, header: Header, payload: bytes, frames: list[bytes], what: str) -> None:
        look, must = self._line.ledger.look, self._line.ledger.must
        outputs = request.operation == codec.RUN and request.flags & codec.OUTPUTS
        width = self._outputs if outputs else self.nodes
        must("width", header.width == width, f"{what}, is {header.width} wide; {width} are due", frames)
        due = (codec.F4, 1.0) if outputs else tuple(self.declaration["states"])
        came = (header.dtype, header.scale)
        must("encoding", came == due, f"{what}, has dtype and scale {came}; {due} are due", frames)
        size = header.batch * header.steps * header.width * np.dtype(codec.NUMBERS[header.dtype]).itemsize
        must("length", len(payload) == size, f"{what}, has {len(payload)} bytes, not {size}", frames)
        numbers = codec.numbers(header, payload)
        if self.declaration.get("finite") and numbers.dtype.kind == "f" and not outputs:
            look("finite", bool((abs(numbers) < 9e37).all()), f"{what}, has numbers that are not finite", frames)
        if request.operation == codec.RUN:
            known = header.time == 0 or header.time >= self._time
            sensible = known and math.isfinite(header.period) and header.period >= 0
            text = f"{what}, has time {header.time} after {self._time} and period {header.period:g}"
            look("time", sensible, text, frames)
            self._time = header.time or self._time

    def error_in(self, payload: bytes, frames: list[bytes]) -> dict[str, Any]:
        """The map of an ERROR."""
        ledger = self._line.ledger
        error = self.map_in(payload, frames)
        wrong = [
            key
            for key, kind in ERROR_KEYS.items()
            if key not in error or not isinstance(error[key], kind) or (kind is int and error[key] is True)
        ]
        ledger.look("error map", not wrong, f"{', '.join(wrong)} of an ERROR: {error}", frames)
        if type(error.get("code")) is not int:
            raise Broken(f"an ERROR without a code: {error}", frames)
        ledger.look("error code", 1 <= error["code"] <= 20, f"there is no code {error['code']}", frames)
        return {"text": "", "step": 0, "state_lost": True, "steps_done": 0, "states": None, **error}

    def map_in(self, payload: bytes, frames: list[bytes]) -> dict[str, Any]:
        """A msgpack map with text keys."""
        content = codec.from_msgpack(payload)
        if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
            raise Broken("the payload is not a msgpack map with text keys", frames)
        return content

    # ---- requests and what must come of them ------------------------------------------------------

    def done(self, request: Header) -> Reply:
        """The reply to a request that must not be refused."""
        reply = self.reply(request)
        if reply.error is not None:
            code, text = reply.error["code"], reply.error["text"]
            raise Broken(f"{name_of(request.operation)} was answered with error {code}: {text}", reply.frames)
        return reply

    def call(self, operation: int, payload: bytes = b"", **fields: Any) -> Reply:
        """A request that must be done, and its reply."""
        return self.done(self.send(self.head(operation, **fields), payload))

    def failed(self, request: Header, *codes: int, loses: bool | None = None) -> dict[str, Any]:
        """The error, one of these codes, that a request must be answered with; `loses`: what `state_lost` must say."""
        reply = self.reply(request)
        due = " or ".join(map(str, codes))
        name = name_of(request.operation)
        if reply.error is None:
            raise Broken(f"{name} was done, error {due} is due", reply.frames)
        if reply.error["code"] not in codes:
            got = f"error {reply.error['code']} ({reply.error['text']})"
            raise Broken(f"{name} was answered with {got}, error {due} is due", reply.frames)
        if loses is not None and reply.error["state_lost"] is not loses:
            raise Broken(f"state_lost is {reply.error['state_lost']!r} after error {reply.error['code']}", reply.frames)
        return reply.error

    def refused(self, operation: int, *codes: int, payload: bytes = b"", **fields: Any) -> dict[str, Any]:
        """A request that must get an error, one of these codes; the error."""
        return self.failed(self.send(self.head(operation, **fields), payload), *codes)

    def untrusted(self, frames: list[bytes]) -> None:
        """Send what cannot be trusted: it must get error 4 with session 0 and request 0."""
        self.send_raw(frames)
        self.must_be_untrusted()

    def must_be_untrusted(self) -> None:
        """What was sent last must get error 4 with session 0 and request 0."""
        came = self.next_message("a message that cannot be trusted")
        header, payload = self.read_data(came)
        if header.operation != codec.ERROR or (header.session, header.request) != (0, 0):
            numbers = f"session {header.session}, request {header.request}"
            raise Broken(f"operation {header.operation:#04x} came, {numbers}; an ERROR with 0 and 0 is due", came)
        if (code := self.error_in(payload, came)["code"]) != codec.E_MALFORMED:
            raise Broken(f"error {code} came, error 4 is due", came)

    def asked(self, operation: int, payload: bytes) -> dict[str, Any]:
        """The map that a request must be answered with."""
        reply = self.call(operation, payload)
        return self.map_in(reply.payload, reply.frames)

    def attach(self) -> dict[str, Any]:
        """Take the device; its declaration, which names at least the widths and encodings."""
        return self.declared(self.call(codec.ATTACH))

    def declared(self, reply: Reply) -> dict[str, Any]:
        """Remember the declaration in a reply, without which nothing could be driven."""
        frames = reply.frames
        declaration = self.map_in(reply.payload, frames)
        spec = declaration.get("spec")
        encodings = [declaration.get(name) for name in ("inputs", "states")]
        if not isinstance(spec, dict) or not all(_is_encoding(one) for one in encodings):
            raise Broken(f"the declaration lacks spec, inputs or states: {declaration}", frames)
        if not all(type(spec.get(name)) is int and spec[name] > 0 for name in ("inputs", "nodes")):
            raise Broken(f"the spec lacks inputs or nodes: {spec}", frames)
        largest = self.welcome["max_frame_bytes"]
        for name, width in (("inputs", spec["inputs"]), ("states", spec["nodes"])):
            size = width * np.dtype(codec.NUMBERS[declaration[name][0]]).itemsize
            if size > largest:
                raise Broken(f"a step of {name} has {size} bytes, a frame at most {largest}", frames, page=ONE_STEP)
        self.declaration = declaration
        return declaration

    @property
    def spec(self) -> Mapping[str, Any]:
        """The declared spec."""
        return codec.fitting(self.declaration["spec"])

    @property
    def inputs(self) -> int:
        """Numbers in a step of a RUN."""
        return self.spec["inputs"]

    @property
    def nodes(self) -> int:
        """Numbers in a step of its reply."""
        return self.spec["nodes"]

    def reset(self, batch: int = 1) -> None:
        """To rest."""
        self.call(codec.RESET, batch=batch)

    def fields_of(self, numbers: np.ndarray, encoding: str) -> dict[str, Any]:
        """What a header says of numbers (batch, steps, width) as they travel; the encoding is "inputs" or "states"."""
        dtype, scale = self.declaration[encoding]
        return {**dict(zip(("batch", "steps", "width"), numbers.shape, strict=True)), "dtype": dtype, "scale": scale}

    def zeros(self, encoding: str, *, steps: int = 1, wider: int = 0) -> np.ndarray:
        """Numbers (1, steps, width) for RUN ("inputs") or TRANSITION ("states"), or for a few channels more or less."""
        width = self.inputs + (self.nodes if encoding == "states" else 0) + wider
        return np.zeros((1, steps, width), codec.NUMBERS[self.declaration[encoding][0]])

    def request(self, operation: int) -> tuple[dict[str, Any], bytes]:
        """Fields and payload of a request of the right form."""
        if operation in (codec.RUN, codec.TRANSITION):
            encoding, steps = ("inputs", 2) if operation == codec.RUN else ("states", 1)
            numbers = self.zeros(encoding, steps=steps)
            return self.fields_of(numbers, encoding), numbers.tobytes()
        if operation == codec.RESTORE:
            nothing = codec.pack_named({"x": np.zeros((1, 1), "f4")})
            return {"batch": 1}, self.call(codec.SNAPSHOT).payload if self.spec.get("snapshot") else nothing
        if operation == codec.UPLOAD:
            return {}, codec.pack_named({"nobody's": np.zeros((1, 3), "f4")})
        if operation == codec.READOUT:
            one, weights = np.ones(1, "f4"), np.ones((1, self.nodes), "f4")
            return {}, codec.pack_named({"weights": weights, "scale": one, "bias": one})
        return {"batch": 1} if operation == codec.RESET else {}, b""

    def head_of_run(self, u: np.ndarray, *, step: int = 0, flags: int = 0) -> Header:
        """The header of a RUN with numbers (batch, steps, inputs) as they travel."""
        return self.head(codec.RUN, step=step, flags=flags, **self.fields_of(u, "inputs"))

    def send_run(self, u: np.ndarray, *, step: int = 0, flags: int = 0) -> Header:
        """Send a RUN."""
        return self.send(self.head_of_run(u, step=step, flags=flags), u.tobytes())

    def states(self, request: Header) -> np.ndarray:
        """Numbers (batch, steps, nodes) that answer a RUN, as they travel."""
        reply = self.done(request)
        return codec.numbers(reply.header, reply.payload)

    def run(self, u: np.ndarray, *, step: int = 0, flags: int = 0) -> np.ndarray:
        """A RUN and its states."""
        return self.states(self.send_run(u, step=step, flags=flags))

    def from_rest(self, u: np.ndarray) -> np.ndarray:
        """RESET, and the states of a RUN."""
        self.reset(len(u))
        return self.run(u)

    def load_readout(self, arrays: Mapping[str, np.ndarray]) -> None:
        """READOUT; later replies have so many outputs."""
        reply = self.call(codec.READOUT, codec.pack_named(arrays))
        outputs = len(arrays["weights"])
        if reply.header.width != outputs:
            raise Broken(f"READOUT of {outputs} outputs was answered with width {reply.header.width}", reply.frames)
        self._outputs = outputs

    def goodbye(self) -> None:
        """Give the device back."""
        self.told("goodbye", session=self.session)

    def leave(self) -> None:
        """Give the device back if it can still be asked."""
        with contextlib.suppress(Broken, zmq.ZMQError):
            if self.session:
                self.ask("goodbye", session=self.session)


def name_of(operation: int) -> str:
    """For people."""
    return OPERATIONS[operation] if 0 < operation < len(OPERATIONS) else f"operation {operation:#04x}"


def _is_encoding(entry: Any) -> bool:
    match entry:
        case [dtype, scale]:
            return type(dtype) is int and dtype in codec.NUMBERS and codec.is_number(scale) and scale > 0
    return False


def repeat(seconds: float, pause: float, look: Callable[[], bool]) -> bool:
    """Whether something becomes true within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if look():
            return True
        time.sleep(pause)
    return look()
