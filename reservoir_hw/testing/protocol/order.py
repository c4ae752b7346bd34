"""Numbers of requests and steps, and what belongs to whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client, repeat
from reservoir_hw.testing.protocol.codec import Header
from reservoir_hw.testing.protocol.device import Device, lost
from reservoir_hw.testing.protocol.ledger import Broken
from reservoir_hw.testing.protocol.rules import Rules

RULES = Rules("order")

NOTED_S = 1.0

STEP = "The step of a RUN must be where the last RUN ended, and its batch that of the last ATTACH, RESET or RESTORE."
COPY = "A lower one than the one that is due, or 0, is a copy: it is dropped and counted, without an answer."
LOST = "If it is, RUN and SNAPSHOT are refused with error 11 until RESET, RESTORE or UPLOAD."


@RULES.rule("a request before ATTACH gets error 3, and is not counted", page="Requests before ATTACH are not counted.")
def _(device: Device) -> None:
    with device.let_in() as client:
        client.refused(codec.RESET, codec.E_NO_SESSION, batch=1)
        client.sent = 0
        client.attach()
        client.run(device.u())


@RULES.rule(
    "ATTACH and RUN without hello get error 3 from a free device",
    page="The session holds the device, and the message came over the connection of its ATTACH, or is an ATTACH. "
    "Otherwise error 3",
)
def _(device: Device) -> None:
    for session in (0, 1):
        with device.client() as client:
            client.session, client.declaration = session, device.declaration
            for send in (lambda c: c.send(c.head(codec.ATTACH)), lambda c: c.send_run(device.u())):
                client.failed(send(client), codec.E_NO_SESSION)
                # Not counted.
                client.sent = 0
            if client.ping()["valid"]:
                raise Broken(f"a free device says that session {session} is valid")
    with device.session() as client:
        client.run(device.u())


@RULES.in_session("ATTACH as a later request gets error 6", page="**ATTACH** must be request 1 of a session")
def _(_: Device, client: Client) -> None:
    client.refused(codec.ATTACH, codec.E_SEQUENCE)


@RULES.in_session(
    "a request of another session gets error 3, and changes nothing", page="no session: none, expired, or another's"
)
def _(device: Device, client: Client) -> None:
    device.must_keep_state(client, lambda _: _foreign(client), "requests of another session")


def _foreign(client: Client) -> None:
    own = client.session
    for session in (own ^ 1, 0):
        client.session = session
        request = client.send(client.head(codec.RESET, batch=1))
        client.session = own
        client.failed(request, codec.E_NO_SESSION)
        client.sent -= 1


@RULES.rule(
    "a session is bound to the connection of its ATTACH",
    page="It binds the session to the connection from which it came",
)
def _(device: Device) -> None:
    with device.session() as client, device.client() as thief:
        thief.session, thief.declaration = client.session, client.declaration

        def steal(_step: int) -> None:
            thief.sent = client.sent
            thief.refused(codec.RESET, codec.E_NO_SESSION, batch=1)

        device.must_keep_state(client, steal, "a request that came over another connection")


@RULES.in_session("a gap between requests is error 6, and the state is lost", page="A higher one is error 6.")
def _(device: Device, client: Client) -> None:
    client.reset()
    client.sent += 1
    client.failed(client.send_run(device.u()), codec.E_SEQUENCE)
    lost(client, device)


def _copied(device: Device, client: Client, *, back: int) -> None:
    u = device.u()
    half = u.shape[1] // 2
    client.reset()
    first, second = u[:, :half], u[:, half:]
    request = client.head_of_run(first)
    states = client.run(first)
    if back:
        client.reset()
        states = client.run(first)
    client.send(request, first.tobytes())
    if not device.is_held:
        client.reset()
        client.run(u)
        return
    states = np.concatenate([states, client.run(second, step=half)], axis=1)
    device.must_agree(client.from_rest(u), states, "a run, and the same with a copy of a request in between")


@RULES.in_session("request 0 is a copy, too", page=COPY)
def _(device: Device, client: Client) -> None:
    device.send(client.data, codec.pack_data(Header(codec.RESET, client.session, 0, batch=1)))
    client.from_rest(device.u())


for _title, _back in (("the last request", 0), ("an older request", 2)):
    RULES.add_in_session(f"a copy of {_title} is neither done nor answered", COPY, _copied, back=_back)


@RULES.in_session("a RUN that begins later than due is error 6, and the state is lost", page=STEP)
def _(device: Device, client: Client) -> None:
    client.reset()
    client.failed(client.send_run(device.u(), step=1), codec.E_SEQUENCE)
    lost(client, device)


@RULES.in_session("a RUN that begins earlier than due is error 6, and the state is lost", page=STEP)
def _(device: Device, client: Client) -> None:
    device.must_have("held")
    u = device.u()
    client.from_rest(u)
    client.failed(client.send_run(u, step=u.shape[1] - 1), codec.E_SEQUENCE)
    lost(client, device)


@RULES.in_session("after a lost state RUN gets error 11 until RESET", page=LOST)
def _(device: Device, client: Client) -> None:
    client.failed(client.send_run(device.u(), step=1), codec.E_SEQUENCE)
    for _ in range(2):
        client.failed(client.send_run(device.u()), codec.E_STATE_LOST, loses=True)
    client.from_rest(device.u())


@RULES.in_session("after a lost state SNAPSHOT gets error 11", page=LOST)
def _(device: Device, client: Client) -> None:
    client.failed(client.send_run(device.u(), step=1), codec.E_SEQUENCE)
    due = codec.E_STATE_LOST if device.spec.get("snapshot") else codec.E_NOT_SUPPORTED
    client.refused(codec.SNAPSHOT, due, codec.E_STATE_LOST)


@RULES.in_session(
    "a refused RUN with more chunks behind it loses the state",
    page='A refused RUN with "more chunks follow" always loses the state',
)
def _(device: Device, client: Client) -> None:
    device.must_have("chunked")
    u = client.zeros("inputs", steps=3, wider=1)
    client.failed(client.send_run(u, flags=codec.MORE), codec.E_SHAPE, loses=True)
    lost(client, device)


@RULES.in_session(
    "every request is counted, whatever its answer is",
    page="Every request whose header could be trusted is counted, whatever its answer is.",
)
def _(device: Device, client: Client) -> None:
    for number, ask in enumerate(
        (
            lambda: client.refused(0x7F, codec.E_NOT_SUPPORTED),
            lambda: client.refused(codec.RESET, codec.E_SHAPE, batch=0),
            lambda: client.failed(client.send_run(device.u(), step=1), codec.E_SEQUENCE),
            lambda: client.failed(client.send_run(device.u()), codec.E_STATE_LOST),
            lambda: client.reset(),
        ),
        start=2,
    ):
        ask()
        _finished(client, number)


@RULES.rule(
    "a pong tells the last request that was taken up, and the last that was answered",
    page="`received` (number of the last request that was taken up; requests that wait in the queue do not count), "
    "`finished` (number of the last request that was answered)",
)
def _(device: Device) -> None:
    with device.let_in() as client:
        _finished(client, 0)
        client.attach()
        _finished(client, 1)
        client.reset()
        client.run(device.u())
        _finished(client, 3)


def _finished(client: Client, number: int) -> None:
    pong: dict[str, Any] = {}

    def noted() -> bool:
        nonlocal pong
        pong = client.ping()
        return pong["busy"] is None and pong["finished"] >= number

    # An answer may arrive a little before the device has noted that it is done.
    repeat(NOTED_S, 0.002, noted)
    if (pong["valid"], pong["received"], pong["finished"], pong["busy"]) != (True, number, number, None):
        raise Broken(f"after request {number} the pong says {pong}")


# ---- Which error a request gets of which several things are wrong.


PRECEDENCE = Rules("which error comes first")


def _damaged_run(device: Device, client: Client) -> Header:
    """Send a RUN whose payload is another one than its checksum says."""
    u = device.u()
    header = client.head_of_run(u)
    front, payload = codec.pack_data(header, u.tobytes())
    client.send_raw([front, payload[:-1] + bytes([payload[-1] ^ 1])])
    client.sent = max(client.sent, header.request)
    return header


def _lose(device: Device, client: Client) -> None:
    client.failed(client.send_run(device.u(), step=1), codec.E_SEQUENCE)


def _other_session(device: Device, client: Client) -> None:
    own = client.session
    client.session = own ^ 1
    request = _damaged_run(device, client)
    client.session = own
    client.failed(request, codec.E_NO_SESSION)
    client.sent -= 1


def _copy(device: Device, client: Client) -> None:
    client.from_rest(device.u())
    client.sent -= 1
    _damaged_run(device, client)
    # It is neither answered nor does it lose the state.
    client.reset()


def _gap(device: Device, client: Client) -> None:
    client.sent += 1
    client.failed(_damaged_run(device, client), codec.E_SEQUENCE)


def _cancelled_and_damaged(device: Device, client: Client) -> None:
    client.told("cancel", session=client.session, request=client.sent + 1)
    client.failed(_damaged_run(device, client), codec.E_CHECKSUM)


def _cancelled_and_unknown(device: Device, client: Client) -> None:
    client.told("cancel", session=client.session, request=client.sent + 1)
    client.refused(0x7F, codec.E_CANCELLED)


def _unknown_with_fields(device: Device, client: Client) -> None:
    client.refused(0x7F, codec.E_NOT_SUPPORTED, step=3, time=1, scale=2.0)


def _field_after_loss(device: Device, client: Client) -> None:
    u = device.u()
    _lose(device, client)
    header = client.head_of_run(u)
    header.time = 1
    client.failed(client.send(header, u.tobytes()), codec.E_MALFORMED)


def _step_after_loss(device: Device, client: Client) -> None:
    _lose(device, client)
    client.failed(client.send_run(device.u(), step=5), codec.E_STATE_LOST)


def _step_and_shape(device: Device, client: Client) -> None:
    client.failed(client.send_run(client.zeros("inputs", steps=3, wider=1), step=5), codec.E_SEQUENCE)


def _and_goes_on(device: Device, client: Client, *, look: Callable[[Device, Client], None]) -> None:
    look(device, client)
    client.from_rest(device.u())


for _title, _page, _look in (
    ("another session, and a damaged payload: error 3", "Otherwise error 3, and it is not counted.", _other_session),
    ("a copy with a damaged payload: dropped", "is a copy: it is dropped and counted, without an answer.", _copy),
    ("a gap, and a damaged payload: error 6", "A higher one is error 6.", _gap),
    ("a damaged payload, and cancelled: error 5", "The checksum of the payload: error 5.", _cancelled_and_damaged),
    ("cancelled, and no operation: error 15", "Whether the request was cancelled: error 15.", _cancelled_and_unknown),
    ("no operation, and odd fields: error 10", "Whether there is such an operation: error 10.", _unknown_with_fields),
    (
        "an odd field, and the state lost: error 4",
        "Fields that the operation does not name, and a payload where none is named: error 4.",
        _field_after_loss,
    ),
    (
        "the state lost, and a wrong step: error 11",
        "RUN and SNAPSHOT look first whether the state is lost (error 11), and RUN then at its step (error 6).",
        _step_after_loss,
    ),
    (
        "a wrong step, and a wrong shape: error 6",
        "RUN and SNAPSHOT look first whether the state is lost (error 11), and RUN then at its step (error 6).",
        _step_and_shape,
    ),
):
    PRECEDENCE.add_in_session(_title, _page, _and_goes_on, look=_look)
