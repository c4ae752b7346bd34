"""Which error a request gets of which several things are wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client
from reservoir_hw.testing.protocol.codec import Header
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.rules import Rules

RULES = Rules("which error comes first")


def _send(device: Device, client: Client, header: Header, payload: bytes, *, damaged: bool = False) -> Header:
    """A request whose payload may be another one than its checksum says."""
    front = codec.pack_data(header, payload)[0]
    device.send(client.data, [front, payload[:-1] + bytes([payload[-1] ^ 1]) if damaged else payload])
    client.sent = max(client.sent, header.request)
    return header


def _lose(device: Device, client: Client) -> None:
    client.failed(client.send_run(device.u(), step=1), codec.E_SEQUENCE)


def _session(device: Device, client: Client) -> None:
    own, u = client.session, device.u()
    client.session = own ^ 1
    request = _send(device, client, client.head_of_run(u), u.tobytes(), damaged=True)
    client.session = own
    client.failed(request, codec.E_NO_SESSION)
    client.sent -= 1


def _copy(device: Device, client: Client) -> None:
    u = device.u()
    client.from_rest(u)
    client.sent -= 1
    _send(device, client, client.head_of_run(u), u.tobytes(), damaged=True)
    # It is neither answered nor does it lose the state.
    client.reset()


def _gap(device: Device, client: Client) -> None:
    u = device.u()
    client.sent += 1
    client.failed(_send(device, client, client.head_of_run(u), u.tobytes(), damaged=True), codec.E_SEQUENCE)


def _cancelled_and_damaged(device: Device, client: Client) -> None:
    u = device.u()
    client.told("cancel", session=client.session, request=client.sent + 1)
    client.failed(_send(device, client, client.head_of_run(u), u.tobytes(), damaged=True), codec.E_CHECKSUM)


def _cancelled_and_unknown(device: Device, client: Client) -> None:
    del device
    client.told("cancel", session=client.session, request=client.sent + 1)
    client.refused(0x7F, codec.E_CANCELLED)


def _unknown_with_fields(device: Device, client: Client) -> None:
    del device
    client.refused(0x7F, codec.E_NOT_SUPPORTED, step=3, time=1, scale=2.0)


def _field_after_loss(device: Device, client: Client) -> None:
    u = device.u()
    _lose(device, client)
    header = client.head_of_run(u)
    header.time = 1
    client.failed(_send(device, client, header, u.tobytes()), codec.E_MALFORMED)


def _step_after_loss(device: Device, client: Client) -> None:
    _lose(device, client)
    client.failed(client.send_run(device.u(), step=5), codec.E_STATE_LOST)


def _step_and_shape(device: Device, client: Client) -> None:
    u = np.zeros((1, 3, client.inputs + 1), codec.NUMBERS[device.declaration["inputs"][0]])
    client.failed(client.send_run(u, step=5), codec.E_SEQUENCE)


def _in_session(device: Device, *, look: Callable[[Device, Client], None]) -> None:
    with device.session() as client:
        look(device, client)
        client.from_rest(device.u())


for _title, _page, _look in (
    ("another session, and a damaged payload: error 3", "Otherwise error 3, and it is not counted.", _session),
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
    RULES.add(_title, _page, _in_session, look=_look)
