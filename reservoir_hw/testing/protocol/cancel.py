"""Requests that nobody waits for any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import dropwhile

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client, Reply
from reservoir_hw.testing.protocol.codec import Header
from reservoir_hw.testing.protocol.device import Device, lost
from reservoir_hw.testing.protocol.outcomes import Broken, NotOffered
from reservoir_hw.testing.protocol.rules import Rules

RULES = Rules("cancel")

RUNS = 8
WORK_S = 0.8
ATTEMPTS = 3
AT_HAND = 2
"""Requests that may be done after the device was told: the one at hand, and one whose reply was on its way."""
ALL = "All requests up to and including `request` that are not done yet are answered with error 15."


def _cancel(client: Client, request: int) -> None:
    client.told("cancel", session=client.session, request=request)


@RULES.in_session(
    "a request that is still on its way when it is cancelled gets error 15",
    page="This includes requests that are still on their way.",
)
def _(device: Device, client: Client) -> None:
    client.reset()
    _cancel(client, client.sent + 1)
    error = client.failed(client.send_run(device.u()), codec.E_CANCELLED)
    if error["state_lost"] is not True:
        raise Broken(f"state_lost is {error['state_lost']!r}")
    lost(client, device)


def _several(device: Device) -> list[np.ndarray]:
    """Runs that take a moment, as many as may wait."""
    count = min(device.welcome["credits"], RUNS)
    if count < 2:
        raise NotOffered("the device gives one credit: no request waits")
    return [device.long_run(WORK_S / count)] * (count if device.is_chunked else (count + 1) // 2)


def _waited(client: Client, requests: list[Header], code: int) -> None:
    """The requests that wait now must get an error, but for the one at hand."""
    replies: list[Reply] = []
    early = 0
    for request in requests:
        if early == len(replies) and client.data.waits(0):
            early += 1
        replies.append(client.reply(request))
    codes = [0 if reply.error is None else reply.error["code"] for reply in replies]
    if codes[early:].count(0) > AT_HAND:
        raise Broken(f"{codes[early:].count(0)} requests that waited were done all the same", replies[-1].frames)
    # Behind the first that was not done, none is. That one may have been stopped in its middle.
    refused = list(dropwhile(lambda came: came == 0, codes))
    if not refused:
        raise NotOffered(f"the device had answered {len(codes)} requests before it was told")
    if refused[0] not in (code, codec.E_CANCELLED) or set(refused[1:]) - {code}:
        raise Broken(f"error {code} is due, and the codes are {codes}", replies[-1].frames)


@contextmanager
def _refused_waiting(device: Device, tell: Callable[[Client], object], code: int) -> Iterator[Client]:
    """The session whose waiting requests got an error. A busy host may be told too late, so it is tried again."""
    runs = _several(device)
    for attempt in range(1, ATTEMPTS + 1):
        with device.session() as client:
            client.reset()
            requests = device.pipeline(client, runs)
            tell(client)
            try:
                _waited(client, requests, code)
            except Broken:
                if attempt == ATTEMPTS:
                    raise
            else:
                yield client
                return


@RULES.rule("requests that wait when they are cancelled get error 15", page=ALL)
def _(device: Device) -> None:
    with _refused_waiting(device, lambda client: _cancel(client, client.sent), codec.E_CANCELLED) as client:
        lost(client, device)


@RULES.rule(
    "requests that wait when their session ends get error 3",
    page="none that waits is begun any more, and each gets error 3.",
)
def _(device: Device) -> None:
    with _refused_waiting(device, Client.goodbye, codec.E_NO_SESSION):
        pass


@RULES.in_session("a request after the last one that is cancelled is not cancelled", page=ALL)
def _(device: Device, client: Client) -> None:
    client.reset()
    _cancel(client, client.sent)
    client.run(device.u())
    _cancel(client, client.sent + 1)
    client.refused(codec.RESET, codec.E_CANCELLED, batch=1)
    client.from_rest(device.u())


@RULES.in_session("cancel of what is done changes nothing", page=ALL)
def _(device: Device, client: Client) -> None:
    device.must_be_held()
    u = device.u()
    client.from_rest(u)
    for request in (0, 1, client.sent):
        _cancel(client, request)
    client.run(u, step=u.shape[1])
