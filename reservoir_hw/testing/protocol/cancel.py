"""Requests that nobody waits for any more."""

from __future__ import annotations

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client, Reply
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.order import lost
from reservoir_hw.testing.protocol.outcomes import Broken, NotOffered
from reservoir_hw.testing.protocol.rules import Rules

RULES = Rules("cancel")

RUNS = 8
WORK_S = 0.8
ALL = "All requests up to and including `request` that are not done yet are answered with error 15."


def _cancel(client: Client, request: int) -> None:
    client.told("cancel", session=client.session, request=request)


@RULES.rule(
    "a request that is still on its way when it is cancelled gets error 15",
    page="This includes requests that are still on their way.",
)
def _(device: Device) -> None:
    with device.session() as client:
        client.reset()
        _cancel(client, client.sent + 1)
        error = client.failed(client.send_run(device.u()), codec.E_CANCELLED)
        if error["state_lost"] is not True:
            raise Broken(f"state_lost is {error['state_lost']!r}")
        lost(client, device)


@RULES.rule("requests that wait when they are cancelled get error 15", page=ALL)
def _(device: Device) -> None:
    count = min(device.welcome["credits"], RUNS)
    if count < 2:
        raise NotOffered("the device gives one credit: no request waits")
    runs = [device.long_run(WORK_S / count)] * (count if device.is_chunked else (count + 1) // 2)
    with device.session() as client:
        client.reset()
        requests = device.pipeline(client, runs)
        _cancel(client, client.sent)
        replies = [client.reply(request) for request in requests]
        cancelled = [reply.error is not None for reply in replies]
        if not any(cancelled):
            raise NotOffered(f"the device had answered {len(requests)} requests before the cancel reached it")
        for reply in replies[cancelled.index(True) :]:
            if _code(reply) != codec.E_CANCELLED:
                raise Broken(f"error 15 is due, code {_code(reply)} came", reply.frames)
        lost(client, device)


@RULES.rule("a request after the last one that is cancelled is not cancelled", page=ALL)
def _(device: Device) -> None:
    with device.session() as client:
        client.reset()
        _cancel(client, client.sent)
        client.run(device.u())
        _cancel(client, client.sent + 1)
        client.refused(codec.RESET, codec.E_CANCELLED, batch=1)
        client.from_rest(device.u())


@RULES.rule("cancel of what is done changes nothing", page=ALL)
def _(device: Device) -> None:
    device.must_be_held()
    with device.session() as client:
        u = device.u()
        client.from_rest(u)
        for request in (0, 1, client.sent):
            _cancel(client, request)
        client.run(u, step=u.shape[1])


def _code(reply: Reply) -> int:
    return 0 if reply.error is None else reply.error["code"]
