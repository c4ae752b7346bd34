"""Devices that break one rule of the page each: the Python device of the page with one method changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
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


def device(kind: type[PageDevice], address: str, **options: Any) -> PageDevice:
    """Everything that the page's device can do."""
    declared = {"lease_s": LEASE_S, "max_frame_bytes": 1 << 21, "has": ("snapshot", "settable"), "readout": True}
    return kind(address, **{**declared, **options})


Change = Callable[..., Any]
"""Stands for a method. It gets the device, the method as it was, and its arguments."""


def fault(
    name: str, breaks: str, of: type[PageDevice] = PageDevice, /, *, shown_by: str = TRAFFIC,
    options: dict[str, Any] | None = None, **changes: Change,
) -> Fault:  # fmt: skip
    """The fault of a device with these methods changed."""

    def standing_for(method: str, change: Change) -> Change:
        return lambda self, *arguments: change(self, partial(getattr(of, method), self), *arguments)

    kind = type(name, (of,), {method: standing_for(method, change) for method, change in changes.items()})
    return Fault(name, breaks, lambda address: device(kind, address, **(options or {})), shown_by)


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


# ---- how a method is changed ---------------------------------------------------------------------------

Effect = Callable[[Any], None]


def always(answer: Any = None) -> Change:
    return lambda d, was, *arguments: answer


def first(effect: Effect) -> Change:
    def change(d: Any, was: Change, *arguments: Any) -> Any:
        effect(d)
        return was(*arguments)

    return change


def then(effect: Effect) -> Change:
    def change(d: Any, was: Change, *arguments: Any) -> Any:
        answer = was(*arguments)
        effect(d)
        return answer

    return change


def when_refused(effect: Callable[..., None]) -> Change:
    """The effect gets the arguments, too."""

    def change(d: Any, was: Change, *arguments: Any) -> Any:
        try:
            return was(*arguments)
        except (Refusal, wire.NotThePage):
            effect(d, *arguments)
            raise

    return change


def keeping(name: str, missing: Any = None) -> Change:
    """An attribute is afterwards what it was before."""

    def change(d: Any, was: Change, *arguments: Any) -> Any:
        before = getattr(d, name, missing)
        answer = was(*arguments)
        setattr(d, name, before)
        return answer

    return change


def where(condition: Callable[..., Any], changed: Change) -> Change:
    """Only for some arguments."""
    return lambda d, was, *arguments: changed(d, was, *arguments) if condition(d, *arguments) else was(*arguments)


def sets(name: str, value: Callable[[Any], Any]) -> Effect:
    return lambda d: setattr(d, name, value(d))


def scaled(factor: float) -> Effect:
    return sets("_x", lambda d: d._x * factor)


def to_rest(d: Any, *_: Any) -> None:
    d._x = d._x * 0


holds = sets("_until", lambda d: time.monotonic() + d.lease_s)


def mending(change: Callable[[bytes], bytes]) -> Change:
    """Reads a header after it has mended what is wrong with it."""

    def mended(front: bytes) -> bytes:
        front = change(front)
        return front[:76] + wire.crc32c(front[:76]).to_bytes(4, "little")

    return lambda d, was, frames: was([mended(frames[0]), *frames[1:]])


def states_of(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Of RUN, (batch, steps, nodes); outputs are left as they are."""

    def changed(d: Any, was: Change, header: Header, answer: Header, payload: bytes) -> bytes:
        states = was(header, answer, payload)
        if header.flags & wire.OUTPUTS:
            return states
        return change(np.frombuffer(states, "<i2").reshape(header.batch, header.steps, NODES)).tobytes()

    return changed


def refusing(code: int, text: str) -> Change:
    def change(d: Any, was: Change, *arguments: Any) -> Any:
        raise Refusal(code, text)

    return change


# ---- changes of one fault each -------------------------------------------------------------------------


def with_checksum(d: Any, was: Change, frames: list[bytes]) -> Any:
    (frame,) = frames
    return was([frame[:8] + wire.crc32c(frame[12:]).to_bytes(4, "little") + frame[12:]])


def flags_are_dropped(d: Any, was: Change, header: Header, answer: Header, payload: bytes) -> Any:
    states = was(replace(header, flags=header.flags & 3), answer, payload)
    answer.flags = header.flags
    return states


def damage_is_answered(d: Any, was: Change, sender: bytes, frames: list[bytes]) -> Replies:
    try:
        d._read_question(frames)
    except (ValueError, wire.NotThePage):
        return [[wire.pack_control({"op": "error", "code": wire.E_MALFORMED, "text": "a bad frame"})]]
    return was(sender, frames)


def status_without_checksum(d: Any, was: Change, *arguments: Any) -> Replies:
    return [[f[:8] + bytes(4) + f[12:] if b"uptime_s" in f else f] for (f,) in was(*arguments)]


def messages_change_places(d: Any, was: Change, sender: bytes, frames: list[bytes]) -> Replies:
    """Two of one run."""
    replies = was(sender, frames)
    kept = getattr(d, "_kept", [])
    header, _ = wire.unpack_data(replies[0]) if replies else (Header(0), b"")
    if is_run(header) and header.flags & wire.MORE and not kept:
        d._kept = replies
        return []
    d._kept = []
    return [*replies, *kept]


def copy_is_done(d: Any, was: Change, header: Header) -> bool:
    copied = was(header)
    if copied and header.operation == wire.RUN:
        d._x = d._x / 2
    return copied


def counts_one_more(d: Any, was: Change, header: Header, answer: Header, payload: bytes) -> Any:
    states = was(header, answer, payload)
    d._step += header.steps > 0 and header.step > 0
    return states


def tells_its_end(d: Any, was: Change, header: Header, answer: Header, payload: bytes) -> Any:
    states = was(header, answer, payload)
    answer.step = d._step
    return states


def is_not_counted(d: Any, was: Change, refusal: Refusal) -> Any:
    if refusal.fields["code"] == wire.E_SHAPE:
        d._received -= 1
    return was(refusal)


def is_mine_and_lasts(d: Any, was: Change, session: object) -> bool:
    mine = session == d._session
    if mine:
        d._until = time.monotonic() + d.lease_s
    return mine


def begins_the_run(d: Any, u: np.ndarray) -> None:
    _, d._x = integrate(d._x, u[:, :1].clip(-1, 1))


def long_runs_at_once(d: Any, was: Change, header: Header, answer: Header, payload: bytes) -> Any:
    """With zeros, and 16 bits for the step."""
    if header.steps < 100:
        return was(header, answer, payload)
    d._check_step(header)
    d._step = (d._step + header.steps) & 0xFFFF
    answer.batch, answer.steps, answer.width, answer.step = header.batch, header.steps, NODES, header.step
    answer.flags, answer.dtype, answer.scale = header.flags, wire.I2, d.declaration["states"][1]
    return bytes(2 * header.batch * header.steps * NODES)


def state_survives_reset(d: Any, was: Change, *arguments: Any) -> bytes:
    kept = d._x
    was(*arguments)
    if len(kept) == len(d._x):
        d._x = kept
    return b""


def own_state(d: Any, was: Change, header: Header, answer: Header, payload: bytes) -> Any:
    rows = np.array(wire.numbers(header, payload))
    rows[:, :, 2:] = 0
    return was(header, answer, rows.tobytes())


def decays(d: Any, was: Change, *arguments: Any) -> Any:
    if time.monotonic() > getattr(d, "driven", np.inf) + 0.2:
        d._x = d._x * 0.5
    states = was(*arguments)
    d.driven = time.monotonic()
    return states


def ends_early(d: Any, was: Change) -> None:
    kept = getattr(d, "_until", 0.0)
    d._until = kept - 0.5 * d.lease_s
    was()
    d._until = kept


def lasts_twice(d: Any, was: Change, session: object) -> bool:
    mine = was(session)
    if mine:
        d._until += d.lease_s
    return mine


def safe_state_but_the_state(d: Any, was: Change) -> None:
    if not hasattr(d, "_x"):
        d._rest(1)
    d._step, d._lost, d._x = 0, False, d._x[:1]


def given_away(d: Any, was: Change, nonce: bytes) -> Any:
    if nonce != d._nonce:
        d._session = d._new_session()
        d._welcome = {**d._welcome, "session": d._session}
    return d._welcome


def silent_while_busy(d: Any, was: Change, session: int) -> Any:
    while d._busy is not None:
        d._lock.release()
        time.sleep(0.001)
        d._lock.acquire()
    return was(session)


def clinging(d: Any, was: Change, session: int) -> dict[str, Any]:
    d._must_be_mine(session)
    return {"op": "ok"}


def goes_back(d: Any, was: Change, header: Header, answer: Header, payload: bytes) -> Any:
    states = was(header, answer, payload)
    answer.time = 10**12 - header.step
    return states


def is_cancelled(d: Any, refusal: Refusal) -> bool:
    return refusal.fields["code"] == wire.E_CANCELLED


def is_another(d: Any, nonce: bytes) -> bool:
    return nonce != d._nonce


def turned(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


PAYLOAD = "a bit of the payload turned: error 5, and the state is lost"
HEADER = "a wrong checksum of the header: error 4 with request 0, not counted"
COPY = "a copy of the last request is neither done nor answered"
RANGE = "an input outside input_range gets error 8"
HELD = {"lease_s": 0.4}
IN_USE = "another client gets error 2, and hears who has the device"
UNFIT = "a READOUT that is refused leaves the one before"
HOLDS = "messages on either socket hold the device"
OUTPUTS = "outputs of a readout with float32 weights"
WAITING = "requests that wait when they are cancelled get error 15"
STATUS = "status tells device, holder, uptime and counters, also without a session"
LATE = "a RUN that begins later than due is error 6, and the state is lost"

DAMAGE = [
    fault("a wrong payload checksum is accepted", PAYLOAD, _payload_fits=always(True)),
    fault("the checksum of a large payload is not looked at",
          "the last byte of a large payload changed: error 5, and the state is lost",
          _payload_fits=where(lambda d, payload, crc: len(payload) > 1 << 16, always(True))),
    fault("a wrong header checksum is accepted", "a bit of the step turned: error 4 with request 0, not counted",
          _read_header=mending(lambda front: front)),
    fault("another version of the header is accepted", "version 2: error 4 with request 0, not counted",
          _read_header=mending(lambda front: front[:4] + b"\x01" + front[5:])),
    fault("unused bytes of the header are not looked at", "byte 47 not 0: error 4 with request 0, not counted",
          _read_header=mending(lambda front: front[:45] + bytes(3) + front[48:])),
    fault("a third frame is accepted", "three frames: error 4 with request 0, not counted",
          _read_header=lambda d, was, frames: was(frames[:2])),
    fault("a damaged control message is answered", "a wrong checksum: dropped", _read_question=with_checksum),
    fault("a second frame of a control message is accepted", "two frames: dropped",
          _read_question=lambda d, was, frames: was(frames[:1])),
    fault("max_frame_bytes is not held",
          "a frame larger than max_frame_bytes is not taken, and its session does not know the next connection",
          _bind=lambda d, was, address, largest: was(address, 4 * largest)),
    fault("fields that an operation does not name are accepted",
          "RESET with a field that it does not name gets error 4", _check_fields=always()),
    fault("unknown flags are accepted", "unknown flags of RUN get error 4", _run=flags_are_dropped),
    fault("another scale is accepted", "RUN with another dtype or scale gets error 4",
          _values=lambda d, was, header, *more: was(replace(header, scale=d.declaration[more[1]][1]), *more)),
    fault("an input outside the range is accepted", RANGE, _check_range=always()),
    fault("only the first sequence is held against the range", RANGE, _check_range=lambda d, was, u: was(u[:1])),
    fault("only the first step is held against the range", RANGE, _check_range=lambda d, was, u: was(u[:, :1])),
    fault("inputs near the ends of the range are refused", "the ends of input_range are taken",
          _check_range=lambda d, was, u: was(u / 0.9)),
    fault("an answer to a damaged control message has no id", "a wrong checksum: dropped", _control=damage_is_answered),
    fault("the checksum of a status is wrong",
          "a control message is one frame of the right form, with the right checksum", shown_by=STATUS,
          _control=status_without_checksum),
]  # fmt: skip

ORDER = [
    fault("answers come in another order", CREDITS, _data=messages_change_places),
    fault("a gap between requests is accepted", GAP, _refuse_gap=always()),
    fault("a copy of a request is done again", COPY, _check_step=always(),
          _is_copy=lambda d, was, header: header.request < d._received),
    fault("a copy is done again, without an answer", COPY, _is_copy=copy_is_done),
    fault("a step that is not due is accepted", LATE, _check_step=always()),
    fault("the count of steps is off by one", STEP_BY_STEP, _run=counts_one_more),
    fault("the step of a reply is that of its end", REPEATS, _run=tells_its_end),
    fault("a header that cannot be trusted is counted", HEADER,
          _read_header=when_refused(lambda d, frames: setattr(d, "_received", d._received + 1))),
    fault("a refused request is not counted", "every request is counted, whatever its answer is",
          _error_map=is_not_counted),
    fault("ATTACH is done as a later request, too", "ATTACH as a later request gets error 6",
          _attach=lambda d, was, header, *more: was(replace(header, request=1), *more)),
    fault("any connection may drive the session", "a session is bound to the connection of its ATTACH",
          _data=lambda d, was, sender, frames: was(b"anybody", frames)),
    fault("session 0 has a device that is free", "ATTACH and RUN without hello get error 3 from a free device",
          options={"lease_s": 9.0}, _is_mine=is_mine_and_lasts),
    fault("request 0 is refused instead of dropped", "request 0 is a copy, too",
          _is_copy=lambda d, was, header: 0 < header.request <= d._received),
    fault("the payload is looked at before the number of a request", "a gap, and a damaged payload: error 6",
          _refuse_gap=refusing(wire.E_CHECKSUM, "the payload was damaged on its way")),
    fault("a cancelled request is not looked at any further", "a damaged payload, and cancelled: error 5",
          _payload_fits=where(lambda d, payload, crc: d._received <= d._cancelled, always(True))),
    fault("the shape is looked at before the step", "a wrong step, and a wrong shape: error 6",
          _check_step=where(lambda d, header: header.width != 2, refusing(wire.E_SHAPE, "the width"))),
    fault("an error has the step of its request", "an error where nothing was driven has the step that is due",
          _error_map=lambda d, was, refusal: was(Refusal(**{"step": 0, **refusal.fields}))),
    fault("a RUN that is refused because of its range changes the state", REFUSALS,
          _check_range=when_refused(lambda d, u: setattr(d, "_x", d._x + 0.25))),
    fault("a RUN that is refused because of its range is begun", REFUSALS, _check_range=when_refused(begins_the_run)),
    fault("a RESET to too many sequences brings to rest", REFUSALS, _check_batch=when_refused(to_rest)),
    fault("a request of another session brings to rest",
          "a request of another session gets error 3, and changes nothing",
          _data=where(lambda d, sender, frames: wire.unpack_header(frames[0])[0].session != d._session,
                      first(to_rest))),
    fault("a damaged header brings to rest", HEADER, _read_header=when_refused(to_rest)),
    fault("the count of steps has 16 bits", MANY_STEPS, _run=long_runs_at_once),
    fault("the step of RESTORE has 32 bits", "after RESTORE to large steps RUN goes on from there",
          _restore=then(sets("_step", lambda d: d._step & 0xFFFFFFFF))),
]  # fmt: skip

STATES = [
    fault("RESET does not bring to rest", TRAFFIC, _reset=state_survives_reset),
    fault("an error does not lose the state", PAYLOAD, _loses_state=always(False)),
    fault("state_lost is told wrong", "state_lost is true for the codes that lose the state", shown_by=GAP,
          _error_map=lambda d, was, refusal: was(refusal).replace(b"state_lost\xc3", b"state_lost\xc2")),
    fault("RUN goes on after the state was lost", "after a lost state RUN gets error 11 until RESET",
          _must_have_state=always()),
    fault("each chunk begins at rest", CHUNKS,
          _run=where(lambda d, header, *_: header.flags & wire.MORE or header.step, first(to_rest))),
    fault("the last step of each message is forgotten", STEP_BY_STEP,
          _run=where(lambda d, header, *_: header.steps == 1, keeping("_x"))),
    fault("sequences are mixed up", "each sequence of a batch answers as it does alone, in C order",
          _run=states_of(lambda states: states.swapaxes(0, 1))),
    fault("states come a step early", "row t of the states comes after row t of the inputs",
          _run=states_of(lambda states: np.roll(states, -1, axis=1))),
    fault("states are not the same twice", "deterministic: the same inputs after RESET give the same states",
          _run=first(sets("_x", lambda d: d._x + np.random.default_rng().normal(0, 0.1, d._x.shape)))),
    fault("RESTORE forgets the step", "RESTORE brings a state back, with the step in its header",
          _restore=then(sets("_step", lambda d: 0))),
    fault("RESTORE restores nothing", "RESTORE brings a state back, with the step in its header",
          _restore=keeping("_x")),
    fault("SNAPSHOT disturbs the state", "SNAPSHOT answers with named arrays, and changes nothing",
          _snapshot=then(to_rest)),
    fault("TRANSITION changes the state", "TRANSITION leaves the state and the step alone", _transition=then(to_rest)),
    fault("TRANSITION begins from the device's own state", "TRANSITION gives the states that RUN gives",
          _transition=own_state),
    fault("the bias of a readout is forgotten", OUTPUTS,
          _outputs=lambda d, was, states: was(states) - d._readout["bias"]),
    fault("a readout stays for the next client", "a readout ends with the session", _free=keeping("_readout", {})),
]  # fmt: skip

DECLARATIONS = [
    fault("one node more is declared than there is", WIDTH, declaring(nodes=NODES + 1)),
    fault("another dtype of states is declared", ENCODING, options={"states": [wire.F4, 1.0]}),
    fault("another scale of states is declared", ENCODING, options={"states": [wire.I2, 1.0]}),
    fault("more sequences are declared than can be driven", "max_batch sequences are driven at once",
          declaring(max_batch=8)),
    fault("fewer sequences are declared than can be driven", "more than max_batch sequences get error 9",
          declaring(max_batch=2)),
    fault("a snapshot is declared to be missing", "snapshot: false refuses SNAPSHOT and RESTORE with error 10",
          declaring(snapshot=False)),
    fault("the spec has no identity", "the spec has widths and an identity", declaring(identity=None)),
    fault("max_batch is a text", "what else the spec says is of the right type", declaring(max_batch="3")),
    fault("chunks are declared, and refused", CHUNKS,
          _run=where(lambda d, header, *_: header.flags & wire.MORE, refusing(wire.E_NOT_SUPPORTED, "as a whole"))),
]  # fmt: skip

LEFT_ALONE = [
    fault("a ping moves the state", "ping and status leave the state of the holder alone", _pong=first(scaled(0.9))),
    fault("the state decays while nobody drives", "a pause between two RUNs changes nothing", _run=decays),
    fault("the same hello again brings to rest", "the same hello again leaves the state of the holder alone",
          _hello_while_held=then(to_rest)),
    fault("a hello that is refused brings to rest", "a hello that is refused leaves the state of the holder alone",
          _hello=where(lambda d, versions, client, nonce: d._session and nonce != d._nonce, first(to_rest))),
    fault("anybody may cancel", NOT_THEIRS,
          _cancel=lambda d, was, session, request: (
              setattr(d, "_cancelled", max(d._cancelled, request)), was(session, request))[1]),
    fault("anybody's goodbye brings to rest", NOT_THEIRS, _goodbye=first(to_rest)),
    fault("an unknown op brings to rest", "control messages that cannot be done leave the state of the holder alone",
          _answers=where(lambda d, question: question["op"] == "dance", first(to_rest))),
    fault("a RESTORE that is refused brings to rest", REFUSALS, _restore=when_refused(to_rest)),
    fault("a TRANSITION that is refused brings to rest", REFUSALS, _transition=when_refused(to_rest)),
    fault("a READOUT that is refused brings to rest", REFUSALS, _load_readout=when_refused(to_rest)),
    fault("a READOUT that is refused unloads the one before", UNFIT,
          _load_readout=when_refused(lambda d, *_: setattr(d, "_readout", {}))),
    fault("a READOUT that is refused is half loaded", UNFIT,
          _load_readout=when_refused(
              lambda d, *_: setattr(d, "_readout", {name: -array for name, array in d._readout.items()}))),
    fault("READOUT brings to rest", "READOUT leaves the state alone", _load_readout=first(to_rest)),
    fault("a RUN with outputs leaves the state where it was", "after a RUN with outputs RUN goes on from there",
          _run=where(lambda d, header, *_: header.flags & wire.OUTPUTS, keeping("_x"))),
    fault("all sequences have the outputs of the first one", OUTPUTS,
          _outputs=lambda d, was, states: np.repeat(was(states)[:1], len(states), axis=0)),
]  # fmt: skip

SESSIONS = [
    fault("requests beyond the second one that waits are lost", CREDITS, _room=always(2)),
    fault("a cancelled request is answered with code 0", ON_ITS_WAY,
          _error_map=where(is_cancelled, lambda d, was, refusal: was(Refusal(0, "cancelled")))),
    fault("cancel is ignored", ON_ITS_WAY, _cancel=lambda d, was, session, request: was(session, 0)),
    fault("cancel never ends", "a request after the last one that is cancelled is not cancelled",
          _cancel=lambda d, was, session, request: was(session, request + 10)),
    # Only the first one is.
    fault("waiting requests are not cancelled", WAITING,
          _error_map=where(is_cancelled, first(sets("_cancelled", lambda d: 0)))),
    fault("a lease never ends", SILENCE, options=HELD, _expire=always()),
    fault("a lease lasts twice as long", SILENCE, options=HELD, _is_mine=lasts_twice),
    fault("anybody's status holds the device", SILENCE, options=HELD, _status=first(holds)),
    fault("anybody's hello holds the device", SILENCE, options=HELD, _hello_while_held=first(holds)),
    fault("a lease ends early", HOLDS, _expire=ends_early),
    fault("pings alone hold the device", HOLDS, _data=keeping("_until", 0.0)),
    fault("goodbye ends no session", "after goodbye the session is void, and the device free", _goodbye=clinging),
    fault("what waits is done after goodbye", "requests that wait when their session ends get error 3",
          _goodbye=clinging),
    fault("what waits is done although it was cancelled", WAITING, _is_copy=first(sets("_cancelled", lambda d: 0)),
          _cancel=lambda d, was, session, request: was(session, request if request > d._received + 1 else 0)),
    fault("a client whose connection is gone keeps the device", "a session ends when an answer cannot be delivered",
          _send=keeping("_session")),
    fault("the safe state is skipped", "after goodbye the next client finds the device at rest",
          _to_safe_state=safe_state_but_the_state),
    fault("a busy device is given away twice", IN_USE, _hello_while_held=given_away),
    fault("another nonce gets the same session", "another nonce of the same client gets error 2",
          _hello_while_held=lambda d, was, nonce: was(d._nonce)),
    fault("the same hello again is busy", "the same hello again gets the same welcome",
          _hello_while_held=lambda d, was, nonce: was(bytes(16))),
    fault("a busy device does not say who has it", IN_USE,
          _hello_while_held=where(is_another, refusing(wire.E_BUSY, "busy"))),
    fault("a session does not fit into 53 bits", "a session lies below 2^53",
          _new_session=lambda d, was: was() | 1 << 60),
    fault("any version is taken", "no version in common: error 1, which says which versions there are",
          _hello=lambda d, was, versions, client, nonce: was([1], client, nonce)),
    fault("a short nonce is taken", "a nonce has 16 bytes, else error 4",
          _hello=lambda d, was, versions, client, nonce: was(versions, client, nonce.ljust(16)[:16])),
    fault("every session is valid", "ping of another session is not valid",
          _pong=lambda d, was, session: was(d._session)),
    fault("a device that works does not answer", BUSY, _pong=silent_while_busy),
]  # fmt: skip

SENT = [
    fault("the checksum of a payload is wrong", "a payload has the right checksum",
          sending(lambda frames: [frames[0], turned(frames[1])] if frames[1] else frames)),
    fault("the checksum of a header is wrong", "a header has the right checksum, version and zeros",
          sending(lambda frames: [turned(frames[0]), frames[1]])),
    fault("unused fields of a reply are not 0", "fields that an operation does not name are 0, and the scale is 1",
          with_header(lambda header: header if is_run(header) else replace(header, width=4))),
    fault("the flags are not repeated", REPEATS, with_header(lambda header: on_run(header, flags=0)), shown_by=CHUNKS),
    fault("the session is not repeated", "a reply repeats the session",
          with_header(lambda header: replace(header, session=0))),
    fault("the request is not repeated", "a reply repeats the request, in order",
          with_header(lambda header: on_run(header, request=header.request + 1))),
    fault("an ERROR does not repeat the step", "the header of an ERROR repeats session, request and step",
          with_header(lambda header: on_error(header, step=0)), shown_by=LATE),
    fault("the states are longer than the header says", "an array payload has exactly batch × steps × width numbers",
          with_header(lambda header: on_run(header, steps=header.steps - 1))),
    fault("a reply comes without its payload", "a data message is a header of 80 bytes and a payload",
          sending(lambda frames: frames if frames[1] else frames[:1])),
    fault("a reply has the code of its request", "a reply has the code of its request + 0x80, or is an ERROR",
          with_header(lambda header: on_run(header, operation=wire.RUN))),
    fault("another id in an answer", "an answer repeats the id of its question",
          answering(lambda message: {**message, "id": message["id"] + 1})),
    fault("cancel is answered with a pong",
          "an answer is the one that the table names, or an error with code and text",
          answering(lambda message: {**message, "op": "pong"} if message["op"] == "ok" else message),
          shown_by="cancel of what is done changes nothing"),
    fault("the status names no holder", STATUS, _status=lambda d, was: {**was(), "holder": None}),
    fault("the welcome lacks its lease", "welcome has all fields",
          answering(lambda message: {key: value for key, value in message.items() if key != "lease_s"})),
    fault("an ERROR lacks keys", "the map of an ERROR has all six keys, of the right types",
          shown_by="RESET to no sequence gets error 7",
          _error_map=lambda d, was, refusal: wire.to_msgpack({key: refusal.fields[key] for key in ("code", "text")})),
    fault("the time goes back", "time and period of a reply to RUN are 0 or make sense, and the time does not go back",
          shown_by=CHUNKS, _run=goes_back),
]  # fmt: skip

FAULTS = [*DAMAGE, *ORDER, *STATES, *DECLARATIONS, *LEFT_ALONE, *SESSIONS, *SENT]
