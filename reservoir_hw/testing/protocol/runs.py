"""The same run in different messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import dropwhile

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client, Reply
from reservoir_hw.testing.protocol.codec import Header
from reservoir_hw.testing.protocol.device import SHORTEST_S, Device, lost
from reservoir_hw.testing.protocol.ledger import Broken, NotOffered
from reservoir_hw.testing.protocol.rules import HELD, Rules

RULES = Rules("runs")

LATE_S = 0.3
PAUSE_S = 0.3
WITHIN = 0.6
"""Part of a lease in which a silent client does not lose the device."""
SILENT_S = 0.2
MANY = 1 << 16
MANY_S = 1.0


@RULES.in_session("a run in chunks is the run as a whole", page="whether a run may come in several RUN messages.")
def _(device: Device, client: Client) -> None:
    device.must_have("chunked", "deterministic")
    if device.is_held:
        u = device.u()
        parts = np.split(u, [1, u.shape[1] // 2], axis=1)
    else:
        u = device.u(steps=3 * device.chunk_steps)
        parts = np.array_split(u, min(3, u.shape[1], device.welcome["credits"]), axis=1)
    whole = client.from_rest(u)
    client.reset()
    states = [client.states(request) for request in device.pipeline(client, parts)]
    device.must_agree(whole, np.concatenate(states, axis=1), "a run as a whole, and in chunks")


WHOLE = "Then it drives them as one run, without a gap, and answers each, in their order, with the states of its steps."


@RULES.in_session("a whole run in more messages than credits is the run in one", page=WHOLE)
def _(device: Device, client: Client) -> None:
    device.must_have("whole_run_bytes", "deterministic")
    u = device.u(steps=2 * device.welcome["credits"] + 1)
    whole = client.from_rest(u)
    client.reset()
    states = np.concatenate([client.states(request) for request in _one_by_one(client, u)], axis=1)
    device.must_agree(whole, states, f"a run in one message, and in {u.shape[1]}")


@RULES.in_session(
    "no message of a whole run is answered before the last has come",
    page="It answers none of them before it has them all.",
)
def _(device: Device, client: Client) -> None:
    device.must_have("whole_run_bytes")
    u = device.u(steps=2)
    client.reset()
    first = client.send_run(u[:, :1], flags=codec.MORE)
    if client.data.waits(SILENT_S):
        raise Broken("the first message of a whole run was answered before the second was sent")
    last = client.send_run(u[:, 1:], step=1)
    client.states(first)
    client.states(last)


@RULES.in_session(
    "a whole run that is cancelled is not driven",
    page="The lease, and `cancel`, hold meanwhile as between two requests",
)
def _(device: Device, client: Client) -> None:
    device.must_have("whole_run_bytes")
    u = device.u(steps=2)
    client.reset()
    first = client.send_run(u[:, :1], flags=codec.MORE)
    client.told("cancel", session=client.session, request=first.request)
    client.failed(first, codec.E_CANCELLED)
    client.from_rest(u)


def _one_by_one(client: Client, u: np.ndarray) -> list[Header]:
    """A message for each step of one run."""
    steps = u.shape[1]
    return [client.send_run(u[:, t : t + 1], step=t, flags=codec.MORE if t + 1 < steps else 0) for t in range(steps)]


@RULES.in_session(
    "a run step by step is the run as a whole", page="A single step of a closed loop is a RUN of one step."
)
def _(device: Device, client: Client) -> None:
    device.must_have("deterministic", "held")
    u = device.u()
    whole = client.from_rest(u)
    client.reset()
    steps = [client.run(u[:, t : t + 1], step=t) for t in range(u.shape[1])]
    device.must_agree(whole, np.concatenate(steps, axis=1), "a run as a whole, and step by step")


@RULES.in_session("a pause between two RUNs changes nothing", page=HELD)
def _(device: Device, client: Client) -> None:
    device.must_have("held")
    pause_s = min(PAUSE_S, WITHIN * device.lease_s)
    device.must_keep_state(client, lambda _: time.sleep(pause_s), f"a pause of {pause_s:g} s")


@RULES.rule(
    "a run goes on beyond step 2^16",
    page="The step of a RUN must be where the last RUN ended",
)
def _(device: Device) -> None:
    device.must_have("held")
    seconds = MANY * device.step_s
    if seconds > MANY_S:
        raise NotOffered(f"the device needs {seconds:.1f} s for so many steps")
    with device.session() as client:
        client.reset()
        u = device.u(steps=MANY // 4)
        for step in range(0, MANY + 1, u.shape[1]):
            client.run(u, step=step)


@RULES.in_session(
    "each sequence of a batch answers as it does alone, in C order",
    page="first all of the first sequence, step by step, then the second, and so on.",
)
def _(device: Device, client: Client) -> None:
    device.must_have("deterministic")
    batch = device.batch(3)
    if batch == 1:
        raise NotOffered("the device declares max_batch: 1")
    u = device.u(batch)
    together = client.from_rest(u)
    for number in range(batch):
        alone, what = client.from_rest(u[number : number + 1]), f"sequence {number} alone, and in a batch of {batch}"
        device.must_agree(alone, together[number : number + 1], what)


@RULES.in_session(
    "row t of the states comes after row t of the inputs",
    page="row t of the states is the response after row t of the inputs was applied for one full period.",
)
def _(device: Device, client: Client) -> None:
    device.must_have("deterministic")
    u = device.u()
    other = u.copy()
    half = u.shape[1] // 2
    other[:, half:] = device.u(seed=2)[:, half:]
    first, second = client.from_rest(u), client.from_rest(other)
    device.must_agree(first[:, :half], second[:, :half], f"two runs whose inputs are the same for {half} steps")


@RULES.in_session(
    "a chunk that comes too late for a free running device is error 12",
    page="If the next chunk is not there when it is due, the device answers with error 12 and the step, and counts an "
    "underrun.",
)
def _(device: Device, client: Client) -> None:
    period_s = device.spec.get("step_period_s")
    if device.is_held or not period_s:
        raise NotOffered("the device declares no clock that it keeps while it is not driven")
    device.must_have("chunked")
    u = device.u()
    client.reset()
    requests = [client.send_run(u, flags=codec.MORE)]
    time.sleep(u.shape[1] * period_s + LATE_S)
    requests.append(client.send_run(u, step=u.shape[1]))
    replies = [client.reply(request) for request in requests]
    codes = _codes(replies)
    if codes not in ([0, codec.E_DISCONTINUITY], [codec.E_DISCONTINUITY, codec.E_STATE_LOST]):
        raise Broken(f"two chunks, {LATE_S:g} s too far apart, were answered with codes {codes}", replies[-1].frames)


def _codes(replies: list[Reply]) -> list[int]:
    """Those of the errors, 0 for what was done."""
    return [0 if reply.error is None else reply.error["code"] for reply in replies]


# ---- Several requests under way, and a device that works meanwhile.


CREDITS = Rules("credits")

MOST = 1024
FIRST_S = 0.05
LOOKED_AT_S = 0.4


def _runs_within(device: Device, requests: int) -> int:
    """How many runs so many requests of a pipeline are."""
    return requests if device.is_chunked else (requests + 1) // 2


@CREDITS.rule(
    "as many RUN requests as there are credits are answered, in order",
    page="The device has room for this number of requests",
)
def _(device: Device) -> None:
    first = device.long_run(FIRST_S)
    count = _runs_within(device, min(device.welcome["credits"], MOST))
    runs = [first, *(device.u(steps=device.chunk_steps, seed=number) for number in range(1, count))]
    with device.session() as client:
        client.reset()
        # Those behind it wait, as the first one takes a moment.
        requests = device.pipeline(client, runs)
        replies = [client.done(request) for request in requests]
        if device.spec.get("deterministic") and device.is_chunked and device.is_held:
            states = [codec.numbers(reply.header, reply.payload) for reply in replies]
            whole = client.from_rest(np.concatenate(runs, axis=1))
            device.must_agree(whole, np.concatenate(states, axis=1), "a run as a whole, and in chunks that waited")


@CREDITS.rule(
    "a working device answers on the control socket, and says with what it is busy",
    page="Another thread answers it at once, also while the device is working.",
)
def _(device: Device) -> None:
    u = device.long_run(LOOKED_AT_S)
    device.must_take(u)
    with device.session() as client:
        client.reset()
        request, sent = client.send_run(u), time.monotonic()
        said_so = False
        while not client.data.waits(0):
            said_so |= client.is_busy_with(request)
        took = time.monotonic() - sent
        client.states(request)
        if said_so:
            return
        if took < SHORTEST_S:
            raise NotOffered(f"the device was done after {1000 * took:.0f} ms")
        raise Broken(f"for {took:.2f} s the device worked at request {request.request}, and no pong said so")


# ---- Requests that nobody waits for any more.


CANCEL = Rules("cancel")

WAITING = 8
WORK_S = 0.8
ATTEMPTS = 3
AT_HAND = 2
"""Requests that may be done after the device was told: the one at hand, and one whose reply was on its way."""
ALL = "All requests up to and including `request` that are not done yet are answered with error 15."


def _cancel(client: Client, request: int) -> None:
    client.told("cancel", session=client.session, request=request)


@CANCEL.in_session(
    "a request that is still on its way when it is cancelled gets error 15",
    page="This includes requests that are still on their way.",
)
def _(device: Device, client: Client) -> None:
    client.reset()
    _cancel(client, client.sent + 1)
    client.failed(client.send_run(device.u()), codec.E_CANCELLED, loses=True)
    lost(client, device)


def _several(device: Device) -> list[np.ndarray]:
    """Runs that take a moment, as many as may wait."""
    count = min(device.welcome["credits"], WAITING)
    if count < 2:
        raise NotOffered("the device gives one credit: no request waits")
    return [device.long_run(WORK_S / count)] * _runs_within(device, count)


def _waited(client: Client, requests: list[Header], code: int) -> None:
    """The requests that wait now must get an error, but for the one at hand."""
    replies: list[Reply] = []
    early = 0
    for request in requests:
        if early == len(replies) and client.data.waits(0):
            early += 1
        replies.append(client.reply(request))
    codes = _codes(replies)
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


@CANCEL.rule("requests that wait when they are cancelled get error 15", page=ALL)
def _(device: Device) -> None:
    with _refused_waiting(device, lambda client: _cancel(client, client.sent), codec.E_CANCELLED) as client:
        lost(client, device)


@CANCEL.rule(
    "requests that wait when their session ends get error 3",
    page="none that waits is begun any more, and each gets error 3.",
)
def _(device: Device) -> None:
    with _refused_waiting(device, Client.goodbye, codec.E_NO_SESSION):
        pass


@CANCEL.in_session("a request after the last one that is cancelled is not cancelled", page=ALL)
def _(device: Device, client: Client) -> None:
    client.reset()
    _cancel(client, client.sent)
    client.run(device.u())
    _cancel(client, client.sent + 1)
    client.refused(codec.RESET, codec.E_CANCELLED, batch=1)
    client.from_rest(device.u())


@CANCEL.in_session("cancel of what is done changes nothing", page=ALL)
def _(device: Device, client: Client) -> None:
    device.must_have("held")
    u = device.u()
    client.from_rest(u)
    for request in (0, 1, client.sent):
        _cancel(client, request)
    client.run(u, step=u.shape[1])
