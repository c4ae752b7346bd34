"""Devices that break one rule of the page each: the Python device of the page with one override."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from serving.page_device import NODES, PageDevice, Refusal, Replies, integrate, is_run

from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.codec import Header

LEASE_S = 0.8
TRAFFIC = "RESET brings to rest, at step 0"
"""A rule that makes a device send messages of most kinds."""
STEP_BY_STEP = "a run step by step is the run as a whole"
CHUNKS = "a run in chunks is the run as a whole"
REPEATS = "a reply repeats flags, step, batch and steps where the table says so"
REFUSALS = "after a refusal that loses nothing the state is kept"
MANY_STEPS = "a run goes on beyond step 2^16"
GAP = "a gap between requests is error 6, and the state is lost"
SILENCE = "after silence of lease_s the session is void, and the device free and at rest"
BUSY = "a working device answers on the control socket, and says with what it is busy"
CREDITS = "as many RUN requests as there are credits are answered, in order"
ON_ITS_WAY = "a request that is still on its way when it is cancelled gets error 15"
WIDTH = "RUN is answered with as many nodes as declared, or outputs as loaded"
ENCODING = "RUN is answered in the dtype and scale that are declared"
NOT_THEIRS = "cancel and goodbye of another session leave the state of the holder alone"


@dataclass(frozen=True)
class Fault:
    """What is wrong, the rule that must be broken by it, and a rule that makes the device show it."""

    name: str
    breaks: str
    make: Callable[[str], PageDevice]
    shown_by: str = TRAFFIC


FAULTS: list[Fault] = []


def device(kind: type[PageDevice], address: str, **options: Any) -> PageDevice:
    """Everything that the page's device can do."""
    declared = {"lease_s": LEASE_S, "max_frame_bytes": 1 << 21, "has": ("snapshot", "settable"), "readout": True}
    return kind(address, **{**declared, **options})


def planted(name: str, breaks: str, *, shown_by: str = TRAFFIC, **options: Any) -> Callable[[type[PageDevice]], None]:
    def plant(kind: type[PageDevice]) -> None:
        FAULTS.append(Fault(name, breaks, lambda address: device(kind, address, **options), shown_by))

    return plant


def sending(change: Callable[[list[bytes]], list[bytes]]) -> type[PageDevice]:
    """A device whose replies are changed on their way out."""

    class Changed(PageDevice):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.reply = lambda header, payload: [change(wire.pack_data(header, payload))]

    return Changed


def with_header(change: Callable[[Header], Header]) -> type[PageDevice]:
    """A device whose replies have another header, with the right checksums."""
    return sending(lambda frames: wire.pack_data(change(wire.unpack_data(frames)[0]), frames[1]))


def on_run(header: Header, **changed: Any) -> Header:
    return replace(header, **changed) if is_run(header) else header


def on_error(header: Header, **changed: Any) -> Header:
    return replace(header, **changed) if header.operation == wire.ERROR else header


def answering(change: Callable[[dict[str, Any]], dict[str, Any]]) -> type[PageDevice]:
    """A device whose answers on the control socket are changed."""

    class Changed(PageDevice):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.answer = lambda message: [change(message)]

    return Changed


def declaring(**spec: Any) -> type[PageDevice]:
    """A device that says something else about itself."""

    class Changed(PageDevice):
        def _attach(self, header: Header, answer: Header, payload: bytes) -> bytes:
            super()._attach(header, answer, payload)
            return wire.to_msgpack({**self.declaration, "spec": {**self.declaration["spec"], **spec}})

    return Changed


# ---- damage -----------------------------------------------------------------------------------------


@planted("a wrong payload checksum is accepted", "a bit of the payload turned: error 5, and the state is lost")
class _(PageDevice):
    def _payload_fits(self, payload: bytes, crc: int) -> bool:
        return True


@planted(
    "the checksum of a large payload is not looked at",
    "the last byte of a large payload changed: error 5, and the state is lost",
)
class _(PageDevice):
    def _payload_fits(self, payload: bytes, crc: int) -> bool:
        return len(payload) > 1 << 16 or super()._payload_fits(payload, crc)


class Gullible(PageDevice):
    """Reads a header after it has mended what is wrong with it."""

    def _read_header(self, frames: list[bytes]) -> tuple[Header, int]:
        return super()._read_header([self._mended(frames[0]), *frames[1:]])

    def _mended(self, front: bytes) -> bytes:
        return front[:76] + wire.crc32c(front[:76]).to_bytes(4, "little")


planted("a wrong header checksum is accepted", "a bit of the step turned: error 4 with request 0, not counted")(
    Gullible
)


@planted("another version of the header is accepted", "version 2: error 4 with request 0, not counted")
class _(Gullible):
    def _mended(self, front: bytes) -> bytes:
        return super()._mended(front[:4] + b"\x01" + front[5:])


@planted("unused bytes of the header are not looked at", "byte 47 not 0: error 4 with request 0, not counted")
class _(Gullible):
    def _mended(self, front: bytes) -> bytes:
        return super()._mended(front[:45] + bytes(3) + front[48:])


@planted("a third frame is accepted", "three frames: error 4 with request 0, not counted")
class _(PageDevice):
    def _read_header(self, frames: list[bytes]) -> tuple[Header, int]:
        return super()._read_header(frames[:2])


@planted("a damaged control message is answered", "a wrong checksum: dropped")
class _(PageDevice):
    def _read_question(self, frames: list[bytes]) -> dict[str, Any]:
        (frame,) = frames
        body = frame[12:]
        return super()._read_question([frame[:8] + wire.crc32c(body).to_bytes(4, "little") + body])


@planted("a second frame of a control message is accepted", "two frames: dropped")
class _(PageDevice):
    def _read_question(self, frames: list[bytes]) -> dict[str, Any]:
        return super()._read_question(frames[:1])


@planted(
    "max_frame_bytes is not held",
    "a frame larger than max_frame_bytes is not taken, and its session does not know the next connection",
)
class _(PageDevice):
    def _bind(self, address: str, largest: int) -> Any:
        return super()._bind(address, 4 * largest)


@planted("fields that an operation does not name are accepted", "RESET with a field that it does not name gets error 4")
class _(PageDevice):
    def _check_fields(self, header: Header, payload: bytes) -> None:
        """Whatever they are."""


@planted("unknown flags are accepted", "unknown flags of RUN get error 4")
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        states = super()._run(replace(header, flags=header.flags & 3), answer, payload)
        answer.flags = header.flags
        return states


@planted("another scale is accepted", "RUN with another dtype or scale gets error 4")
class _(PageDevice):
    def _values(self, header: Header, payload: bytes, encoding: str) -> np.ndarray:
        return super()._values(replace(header, scale=self.declaration[encoding][1]), payload, encoding)


@planted("an input outside the range is accepted", "an input outside input_range gets error 8")
class _(PageDevice):
    def _check_range(self, u: np.ndarray) -> None:
        """Whatever it is."""


@planted("only the first sequence is held against the range", "an input outside input_range gets error 8")
class _(PageDevice):
    def _check_range(self, u: np.ndarray) -> None:
        super()._check_range(u[:1])


@planted("only the first step is held against the range", "an input outside input_range gets error 8")
class _(PageDevice):
    def _check_range(self, u: np.ndarray) -> None:
        super()._check_range(u[:, :1])


@planted("inputs near the ends of the range are refused", "the ends of input_range are taken")
class _(PageDevice):
    def _check_range(self, u: np.ndarray) -> None:
        super()._check_range(u / 0.9)


@planted("an answer to a damaged control message has no id", "a wrong checksum: dropped")
class _(PageDevice):
    def _control(self, sender: bytes, frames: list[bytes]) -> Replies:
        try:
            self._read_question(frames)
        except (ValueError, wire.NotThePage):
            return [[wire.pack_control({"op": "error", "code": wire.E_MALFORMED, "text": "a bad frame"})]]
        return super()._control(sender, frames)


@planted(
    "the checksum of a status is wrong",
    "a control message is one frame of the right form, with the right checksum",
    shown_by="status tells device, holder, uptime and counters, also without a session",
)
class _(PageDevice):
    def _control(self, sender: bytes, frames: list[bytes]) -> Replies:
        replies = super()._control(sender, frames)
        return [[frame[:8] + bytes(4) + frame[12:] if b"uptime_s" in frame else frame] for (frame,) in replies]


# ---- order ------------------------------------------------------------------------------------------


@planted(
    "answers come in another order",
    CREDITS,
)
class _(PageDevice):
    """Two messages of one run change places."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._kept: Replies = []
        super().__init__(*args, **options)

    def _data(self, sender: bytes, frames: list[bytes]) -> Replies:
        replies = super()._data(sender, frames)
        header, _ = wire.unpack_data(replies[0]) if replies else (Header(0), b"")
        if is_run(header) and header.flags & wire.MORE and not self._kept:
            self._kept = replies
            return []
        replies, self._kept = [*replies, *self._kept], []
        return replies


@planted("a gap between requests is accepted", GAP)
class _(PageDevice):
    def _refuse_gap(self, header: Header) -> None:
        """Never."""


@planted("a copy of a request is done again", "a copy of the last request is neither done nor answered")
class _(PageDevice):
    def _is_copy(self, header: Header) -> bool:
        return header.request < self._received

    def _check_step(self, header: Header) -> None:
        """A copy is behind."""


@planted("a copy is done again, without an answer", "a copy of the last request is neither done nor answered")
class _(PageDevice):
    def _is_copy(self, header: Header) -> bool:
        copied = super()._is_copy(header)
        if copied and header.operation == wire.RUN:
            self._x = self._x / 2
        return copied


@planted("a step that is not due is accepted", "a RUN that begins later than due is error 6, and the state is lost")
class _(PageDevice):
    def _check_step(self, header: Header) -> None:
        """Wherever it is."""


@planted("the count of steps is off by one", STEP_BY_STEP)
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        states = super()._run(header, answer, payload)
        self._step += header.steps > 0 and header.step > 0
        return states


@planted("the step of a reply is that of its end", REPEATS)
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        states = super()._run(header, answer, payload)
        answer.step = self._step
        return states


@planted(
    "a header that cannot be trusted is counted", "a wrong checksum of the header: error 4 with request 0, not counted"
)
class _(PageDevice):
    def _read_header(self, frames: list[bytes]) -> tuple[Header, int]:
        try:
            return super()._read_header(frames)
        except wire.NotThePage:
            self._received += 1
            raise


@planted("a refused request is not counted", "every request is counted, whatever its answer is")
class _(PageDevice):
    def _error_map(self, refusal: Refusal) -> bytes:
        if refusal.fields["code"] == wire.E_SHAPE:
            self._received -= 1
        return super()._error_map(refusal)


@planted("ATTACH is done as a later request, too", "ATTACH as a later request gets error 6")
class _(PageDevice):
    def _attach(self, header: Header, answer: Header, payload: bytes) -> bytes:
        return super()._attach(replace(header, request=1), answer, payload)


@planted("any connection may drive the session", "a session is bound to the connection of its ATTACH")
class _(PageDevice):
    def _data(self, sender: bytes, frames: list[bytes]) -> Replies:
        return super()._data(b"anybody", frames)


@planted(
    "session 0 has a device that is free", "ATTACH and RUN without hello get error 3 from a free device", lease_s=9.0
)
class _(PageDevice):
    def _is_mine(self, session: object) -> bool:
        mine = session == self._session
        if mine:
            self._until = time.monotonic() + self.lease_s
        return mine


@planted("request 0 is refused instead of dropped", "request 0 is a copy, too")
class _(PageDevice):
    def _is_copy(self, header: Header) -> bool:
        return 0 < header.request <= self._received


@planted("the payload is looked at before the number of a request", "a gap, and a damaged payload: error 6")
class _(PageDevice):
    def _refuse_gap(self, header: Header) -> None:
        raise Refusal(wire.E_CHECKSUM, "the payload was damaged on its way")


@planted("a cancelled request is not looked at any further", "a damaged payload, and cancelled: error 5")
class _(PageDevice):
    def _payload_fits(self, payload: bytes, crc: int) -> bool:
        return self._received <= self._cancelled or super()._payload_fits(payload, crc)


@planted("the shape is looked at before the step", "a wrong step, and a wrong shape: error 6")
class _(PageDevice):
    def _check_step(self, header: Header) -> None:
        if header.width != 2:
            raise Refusal(wire.E_SHAPE, "the width")
        super()._check_step(header)


@planted("an error has the step of its request", "an error where nothing was driven has the step that is due")
class _(PageDevice):
    def _error_map(self, refusal: Refusal) -> bytes:
        return super()._error_map(Refusal(**{"step": 0, **refusal.fields}))


@planted("a RUN that is refused because of its range changes the state", REFUSALS)
class _(PageDevice):
    def _check_range(self, u: np.ndarray) -> None:
        try:
            super()._check_range(u)
        except Refusal:
            self._x = self._x + 0.25
            raise


@planted("a RUN that is refused because of its range is begun", REFUSALS)
class _(PageDevice):
    def _check_range(self, u: np.ndarray) -> None:
        try:
            super()._check_range(u)
        except Refusal:
            _, self._x = integrate(self._x, u[:, :1].clip(-1, 1))
            raise


@planted("a RESET to too many sequences brings to rest", REFUSALS)
class _(PageDevice):
    def _check_batch(self, batch: int) -> None:
        try:
            super()._check_batch(batch)
        except Refusal:
            self._x = self._x * 0
            raise


@planted(
    "a request of another session brings to rest", "a request of another session gets error 3, and changes nothing"
)
class _(PageDevice):
    def _data(self, sender: bytes, frames: list[bytes]) -> Replies:
        if wire.unpack_header(frames[0])[0].session != self._session:
            self._x = self._x * 0
        return super()._data(sender, frames)


@planted("a damaged header brings to rest", "a wrong checksum of the header: error 4 with request 0, not counted")
class _(PageDevice):
    def _read_header(self, frames: list[bytes]) -> tuple[Header, int]:
        try:
            return super()._read_header(frames)
        except wire.NotThePage:
            self._x = self._x * 0
            raise


@planted("the count of steps has 16 bits", MANY_STEPS)
class _(PageDevice):
    """It answers long runs at once, with zeros."""

    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        if header.steps < 100:
            return super()._run(header, answer, payload)
        self._check_step(header)
        self._step = (self._step + header.steps) & 0xFFFF
        answer.batch, answer.steps, answer.width, answer.step = header.batch, header.steps, NODES, header.step
        answer.flags, answer.dtype, answer.scale = header.flags, wire.I2, self.declaration["states"][1]
        return bytes(2 * header.batch * header.steps * NODES)


@planted("the step of RESTORE has 32 bits", "after RESTORE to large steps RUN goes on from there")
class _(PageDevice):
    def _restore(self, header: Header, answer: Header, payload: bytes) -> bytes:
        super()._restore(header, answer, payload)
        self._step &= 0xFFFFFFFF
        return b""


# ---- states -----------------------------------------------------------------------------------------


@planted("RESET does not bring to rest", TRAFFIC)
class _(PageDevice):
    def _reset(self, header: Header, answer: Header, payload: bytes) -> bytes:
        kept = self._x
        super()._reset(header, answer, payload)
        if len(kept) == len(self._x):
            self._x = kept
        return b""


@planted("an error does not lose the state", "a bit of the payload turned: error 5, and the state is lost")
class _(PageDevice):
    def _loses_state(self, code: int) -> bool:
        return False


@planted(
    "state_lost is told wrong",
    "state_lost is true for the codes that lose the state",
    shown_by=GAP,
)
class _(PageDevice):
    def _error_map(self, refusal: Refusal) -> bytes:
        error = super()._error_map(refusal)
        return error.replace(b"state_lost\xc3", b"state_lost\xc2")


@planted("RUN goes on after the state was lost", "after a lost state RUN gets error 11 until RESET")
class _(PageDevice):
    def _must_have_state(self) -> None:
        """Or not."""


@planted("each chunk begins at rest", CHUNKS)
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        self._x = self._x * (header.flags & wire.MORE == 0 and header.step == 0)
        return super()._run(header, answer, payload)


@planted("the last step of each message is forgotten", STEP_BY_STEP)
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        before = self._x
        states = super()._run(header, answer, payload)
        if header.steps == 1:
            self._x = before
        return states


@planted("sequences are mixed up", "each sequence of a batch answers as it does alone, in C order")
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        states = np.frombuffer(super()._run(header, answer, payload), "<i2")
        if header.flags & wire.OUTPUTS:
            return states.tobytes()
        return states.reshape(header.batch, header.steps, NODES).swapaxes(0, 1).tobytes()


@planted("states come a step early", "row t of the states comes after row t of the inputs")
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        states = np.frombuffer(super()._run(header, answer, payload), "<i2")
        if header.flags & wire.OUTPUTS:
            return states.tobytes()
        return np.roll(states.reshape(header.batch, header.steps, NODES), -1, axis=1).tobytes()


@planted("states are not the same twice", "deterministic: the same inputs after RESET give the same states")
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        self._x = self._x + np.random.default_rng().normal(0, 0.1, self._x.shape)
        return super()._run(header, answer, payload)


@planted("RESTORE forgets the step", "RESTORE brings a state back, with the step in its header")
class _(PageDevice):
    def _restore(self, header: Header, answer: Header, payload: bytes) -> bytes:
        super()._restore(header, answer, payload)
        self._step = 0
        return b""


@planted("RESTORE restores nothing", "RESTORE brings a state back, with the step in its header")
class _(PageDevice):
    def _restore(self, header: Header, answer: Header, payload: bytes) -> bytes:
        before = self._x
        super()._restore(header, answer, payload)
        self._x = before
        return b""


@planted("SNAPSHOT disturbs the state", "SNAPSHOT answers with named arrays, and changes nothing")
class _(PageDevice):
    def _snapshot(self, header: Header, answer: Header, payload: bytes) -> bytes:
        arrays = super()._snapshot(header, answer, payload)
        self._x = self._x * 0
        return arrays


@planted("TRANSITION changes the state", "TRANSITION leaves the state and the step alone")
class _(PageDevice):
    def _transition(self, header: Header, answer: Header, payload: bytes) -> bytes:
        states = super()._transition(header, answer, payload)
        self._x = self._x * 0
        return states


@planted("TRANSITION begins from the device's own state", "TRANSITION gives the states that RUN gives")
class _(PageDevice):
    def _transition(self, header: Header, answer: Header, payload: bytes) -> bytes:
        rows = np.array(wire.numbers(header, payload))
        rows[:, :, 2:] = 0
        return super()._transition(header, answer, rows.tobytes())


@planted("the bias of a readout is forgotten", "outputs of a readout with float32 weights")
class _(PageDevice):
    def _outputs(self, states: np.ndarray) -> np.ndarray:
        return super()._outputs(states) - self._readout["bias"]


@planted("a readout stays for the next client", "a readout ends with the session")
class _(PageDevice):
    def _free(self) -> None:
        kept = getattr(self, "_readout", {})
        super()._free()
        self._readout = kept


# ---- declarations that lie --------------------------------------------------------------------------


planted("one node more is declared than there is", WIDTH)(declaring(nodes=NODES + 1))
planted(
    "another dtype of states is declared",
    ENCODING,
    states=[wire.F4, 1.0],
)(PageDevice)
planted(
    "another scale of states is declared",
    ENCODING,
    states=[wire.I2, 1.0],
)(PageDevice)
planted("more sequences are declared than can be driven", "max_batch sequences are driven at once")(
    declaring(max_batch=8)
)
planted("fewer sequences are declared than can be driven", "more than max_batch sequences get error 9")(
    declaring(max_batch=2)
)
planted("a snapshot is declared to be missing", "snapshot: false refuses SNAPSHOT and RESTORE with error 10")(
    declaring(snapshot=False)
)
planted("the spec has no identity", "the spec has widths and an identity")(declaring(identity=None))
planted("max_batch is a text", "what else the spec says is of the right type")(declaring(max_batch="3"))


@planted("chunks are declared, and refused", CHUNKS)
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        if header.flags & wire.MORE:
            raise Refusal(wire.E_NOT_SUPPORTED, "the whole run in one message, please")
        return super()._run(header, answer, payload)


# ---- what must leave the state alone ------------------------------------------------------------------


@planted("a ping moves the state", "ping and status leave the state of the holder alone")
class _(PageDevice):
    def _pong(self, session: int) -> dict[str, Any]:
        self._x = self._x * 0.9
        return super()._pong(session)


@planted("the state decays while nobody drives", "a pause between two RUNs changes nothing")
class _(PageDevice):
    driven = 0.0

    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        if self.driven and time.monotonic() > self.driven + 0.2:
            self._x = self._x * 0.5
        states = super()._run(header, answer, payload)
        self.driven = time.monotonic()
        return states


@planted("the same hello again brings to rest", "the same hello again leaves the state of the holder alone")
class _(PageDevice):
    def _hello_while_held(self, nonce: bytes) -> dict[str, Any]:
        welcome = super()._hello_while_held(nonce)
        self._x = self._x * 0
        return welcome


@planted("a hello that is refused brings to rest", "a hello that is refused leaves the state of the holder alone")
class _(PageDevice):
    def _hello(self, versions: list[int], client: str, nonce: bytes) -> dict[str, Any]:
        if self._session and nonce != self._nonce:
            self._x = self._x * 0
        return super()._hello(versions, client, nonce)


@planted("anybody may cancel", NOT_THEIRS)
class _(PageDevice):
    def _cancel(self, session: int, request: int) -> dict[str, Any]:
        self._cancelled = max(self._cancelled, request)
        return super()._cancel(session, request)


@planted("anybody's goodbye brings to rest", NOT_THEIRS)
class _(PageDevice):
    def _goodbye(self, session: int) -> dict[str, Any]:
        self._x = self._x * 0
        return super()._goodbye(session)


@planted("an unknown op brings to rest", "control messages that cannot be done leave the state of the holder alone")
class _(PageDevice):
    def _answers(self, question: dict[str, Any]) -> dict[str, Any]:
        if question["op"] == "dance":
            self._x = self._x * 0
        return super()._answers(question)


@planted("a RESTORE that is refused brings to rest", REFUSALS)
class _(PageDevice):
    def _restore(self, header: Header, answer: Header, payload: bytes) -> bytes:
        try:
            return super()._restore(header, answer, payload)
        except Refusal:
            self._x = self._x * 0
            raise


@planted("a TRANSITION that is refused brings to rest", REFUSALS)
class _(PageDevice):
    def _transition(self, header: Header, answer: Header, payload: bytes) -> bytes:
        try:
            return super()._transition(header, answer, payload)
        except Refusal:
            self._x = self._x * 0
            raise


class UnfitReadout(PageDevice):
    """Does something to itself before it refuses a readout."""

    def _load_readout(self, header: Header, answer: Header, payload: bytes) -> bytes:
        try:
            return super()._load_readout(header, answer, payload)
        except Refusal:
            self._spoil()
            raise

    def _spoil(self) -> None:
        raise NotImplementedError


@planted("a READOUT that is refused brings to rest", REFUSALS)
class _(UnfitReadout):
    def _spoil(self) -> None:
        self._x = self._x * 0


@planted("a READOUT that is refused unloads the one before", "a READOUT that is refused leaves the one before")
class _(UnfitReadout):
    def _spoil(self) -> None:
        self._readout = {}


@planted("a READOUT that is refused is half loaded", "a READOUT that is refused leaves the one before")
class _(UnfitReadout):
    def _spoil(self) -> None:
        self._readout = {name: -array for name, array in self._readout.items()}


@planted("READOUT brings to rest", "READOUT leaves the state alone")
class _(PageDevice):
    def _load_readout(self, header: Header, answer: Header, payload: bytes) -> bytes:
        self._x = self._x * 0
        return super()._load_readout(header, answer, payload)


@planted("a RUN with outputs leaves the state where it was", "after a RUN with outputs RUN goes on from there")
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        before = self._x
        numbers = super()._run(header, answer, payload)
        if header.flags & wire.OUTPUTS:
            self._x = before
        return numbers


@planted("all sequences have the outputs of the first one", "outputs of a readout with float32 weights")
class _(PageDevice):
    def _outputs(self, states: np.ndarray) -> np.ndarray:
        return np.repeat(super()._outputs(states)[:1], len(states), axis=0)


# ---- credits, cancel, lease ---------------------------------------------------------------------------


@planted("requests beyond the second one that waits are lost", CREDITS)
class _(PageDevice):
    def _room(self) -> int:
        return 2


@planted(
    "a cancelled request is answered with code 0",
    ON_ITS_WAY,
)
class _(PageDevice):
    def _error_map(self, refusal: Refusal) -> bytes:
        if refusal.fields["code"] == wire.E_CANCELLED:
            refusal = Refusal(0, "cancelled")
        return super()._error_map(refusal)


@planted("cancel is ignored", ON_ITS_WAY)
class _(PageDevice):
    def _cancel(self, session: int, request: int) -> dict[str, Any]:
        return super()._cancel(session, 0)


@planted("cancel never ends", "a request after the last one that is cancelled is not cancelled")
class _(PageDevice):
    def _cancel(self, session: int, request: int) -> dict[str, Any]:
        return super()._cancel(session, request + 10)


@planted("waiting requests are not cancelled", "requests that wait when they are cancelled get error 15")
class _(PageDevice):
    """Only the first one is."""

    def _error_map(self, refusal: Refusal) -> bytes:
        if refusal.fields["code"] == wire.E_CANCELLED:
            self._cancelled = 0
        return super()._error_map(refusal)


@planted("a lease never ends", SILENCE, lease_s=0.4)
class _(PageDevice):
    def _expire(self) -> None:
        """Never."""


@planted("a lease lasts twice as long", SILENCE, lease_s=0.4)
class _(PageDevice):
    def _is_mine(self, session: object) -> bool:
        mine = super()._is_mine(session)
        if mine:
            self._until += self.lease_s
        return mine


@planted("anybody's status holds the device", SILENCE, lease_s=0.4)
class _(PageDevice):
    def _status(self) -> dict[str, Any]:
        self._until = time.monotonic() + self.lease_s
        return super()._status()


@planted("anybody's hello holds the device", SILENCE, lease_s=0.4)
class _(PageDevice):
    def _hello_while_held(self, nonce: bytes) -> dict[str, Any]:
        self._until = time.monotonic() + self.lease_s
        return super()._hello_while_held(nonce)


@planted("a lease ends early", "messages on either socket hold the device")
class _(PageDevice):
    def _expire(self) -> None:
        self._until = getattr(self, "_until", 0.0)
        kept, self._until = self._until, self._until - 0.5 * self.lease_s
        super()._expire()
        self._until = kept


@planted("pings alone hold the device", "messages on either socket hold the device")
class _(PageDevice):
    def _data(self, sender: bytes, frames: list[bytes]) -> Replies:
        kept = getattr(self, "_until", 0.0)
        replies = super()._data(sender, frames)
        self._until = kept
        return replies


class Clinging(PageDevice):
    def _goodbye(self, session: int) -> dict[str, Any]:
        self._must_be_mine(session)
        return {"op": "ok"}


planted("goodbye ends no session", "after goodbye the session is void, and the device free")(Clinging)
planted("what waits is done after goodbye", "requests that wait when their session ends get error 3")(Clinging)


@planted("what waits is done although it was cancelled", "requests that wait when they are cancelled get error 15")
class _(PageDevice):
    def _cancel(self, session: int, request: int) -> dict[str, Any]:
        return super()._cancel(session, request if request > self._received + 1 else 0)

    def _is_copy(self, header: Header) -> bool:
        self._cancelled = 0
        return super()._is_copy(header)


@planted("a client whose connection is gone keeps the device", "a session ends when an answer cannot be delivered")
class _(PageDevice):
    def _send(self, socket: Any, client: bytes, message: list[bytes]) -> None:
        kept = self._session
        super()._send(socket, client, message)
        self._session = kept


@planted("the safe state is skipped", "after goodbye the next client finds the device at rest")
class _(PageDevice):
    def _to_safe_state(self) -> None:
        if not hasattr(self, "_x"):
            self._rest(1)
        self._step, self._lost, self._x = 0, False, self._x[:1]


@planted("a busy device is given away twice", "another client gets error 2, and hears who has the device")
class _(PageDevice):
    def _hello_while_held(self, nonce: bytes) -> dict[str, Any]:
        if nonce != self._nonce:
            self._session = self._new_session()
            self._welcome = {**self._welcome, "session": self._session}
        return self._welcome


@planted("another nonce gets the same session", "another nonce of the same client gets error 2")
class _(PageDevice):
    def _hello_while_held(self, nonce: bytes) -> dict[str, Any]:
        return super()._hello_while_held(self._nonce)


@planted("the same hello again is busy", "the same hello again gets the same welcome")
class _(PageDevice):
    def _hello_while_held(self, nonce: bytes) -> dict[str, Any]:
        return super()._hello_while_held(bytes(16))


@planted("a busy device does not say who has it", "another client gets error 2, and hears who has the device")
class _(PageDevice):
    def _hello_while_held(self, nonce: bytes) -> dict[str, Any]:
        if nonce != self._nonce:
            raise Refusal(wire.E_BUSY, "busy")
        return super()._hello_while_held(nonce)


@planted("a session does not fit into 53 bits", "a session lies below 2^53")
class _(PageDevice):
    def _new_session(self) -> int:
        return super()._new_session() | 1 << 60


@planted("any version is taken", "no version in common: error 1, which says which versions there are")
class _(PageDevice):
    def _hello(self, versions: list[int], client: str, nonce: bytes) -> dict[str, Any]:
        return super()._hello([1], client, nonce)


@planted("a short nonce is taken", "a nonce has 16 bytes, else error 4")
class _(PageDevice):
    def _hello(self, versions: list[int], client: str, nonce: bytes) -> dict[str, Any]:
        return super()._hello(versions, client, nonce.ljust(16)[:16])


@planted("every session is valid", "ping of another session is not valid")
class _(PageDevice):
    def _pong(self, session: int) -> dict[str, Any]:
        return super()._pong(self._session)


@planted(
    "a device that works does not answer",
    BUSY,
)
class _(PageDevice):
    def _pong(self, session: int) -> dict[str, Any]:
        while self._busy is not None:
            self._lock.release()
            time.sleep(0.001)
            self._lock.acquire()
        return super()._pong(session)


# ---- what is sent -----------------------------------------------------------------------------------


planted("the checksum of a payload is wrong", "a payload has the right checksum")(
    sending(lambda frames: [frames[0], frames[1][:-1] + bytes([frames[1][-1] ^ 1])] if frames[1] else frames)
)
planted("the checksum of a header is wrong", "a header has the right checksum, version and zeros")(
    sending(lambda frames: [frames[0][:-1] + bytes([frames[0][-1] ^ 1]), frames[1]])
)
planted("unused fields of a reply are not 0", "fields that an operation does not name are 0, and the scale is 1")(
    with_header(lambda header: header if is_run(header) else replace(header, width=4))
)
planted("the flags are not repeated", REPEATS, shown_by=CHUNKS)(with_header(lambda header: on_run(header, flags=0)))
planted("the session is not repeated", "a reply repeats the session")(
    with_header(lambda header: replace(header, session=0))
)
planted("the request is not repeated", "a reply repeats the request, in order")(
    with_header(lambda header: on_run(header, request=header.request + 1))
)
planted(
    "an ERROR does not repeat the step",
    "the header of an ERROR repeats session, request and step",
    shown_by="a RUN that begins later than due is error 6, and the state is lost",
)(with_header(lambda header: on_error(header, step=0)))
planted("the states are longer than the header says", "an array payload has exactly batch × steps × width numbers")(
    with_header(lambda header: on_run(header, steps=header.steps - 1))
)
planted("a reply comes without its payload", "a data message is a header of 80 bytes and a payload")(
    sending(lambda frames: frames if frames[1] else frames[:1])
)
planted("a reply has the code of its request", "a reply has the code of its request + 0x80, or is an ERROR")(
    with_header(lambda header: on_run(header, operation=wire.RUN))
)
planted("another id in an answer", "an answer repeats the id of its question")(
    answering(lambda message: {**message, "id": message["id"] + 1})
)
planted(
    "cancel is answered with a pong",
    "an answer is the one that the table names, or an error with code and text",
    shown_by="cancel of what is done changes nothing",
)(answering(lambda message: {**message, "op": "pong"} if message["op"] == "ok" else message))


@planted("the status names no holder", "status tells device, holder, uptime and counters, also without a session")
class _(PageDevice):
    def _status(self) -> dict[str, Any]:
        return {**super()._status(), "holder": None}


planted("the welcome lacks its lease", "welcome has all fields")(
    answering(lambda message: {key: value for key, value in message.items() if key != "lease_s"})
)


@planted(
    "an ERROR lacks keys",
    "the map of an ERROR has all six keys, of the right types",
    shown_by="RESET to no sequence gets error 7",
)
class _(PageDevice):
    def _error_map(self, refusal: Refusal) -> bytes:
        return wire.to_msgpack({"code": refusal.fields["code"], "text": refusal.fields["text"]})


@planted(
    "the time goes back",
    "time and period of a reply to RUN are 0 or make sense, and the time does not go back",
    shown_by=CHUNKS,
)
class _(PageDevice):
    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        states = super()._run(header, answer, payload)
        answer.time = 10**12 - header.step
        return states
