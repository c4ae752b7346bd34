"""The same run in different messages."""

from __future__ import annotations

import time

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client
from reservoir_hw.testing.protocol.device import Device, close
from reservoir_hw.testing.protocol.outcomes import Broken, NotOffered
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
    device.must_be_chunked()
    device.must_be_deterministic()
    if device.is_held:
        u = device.u()
        parts = np.split(u, [1, u.shape[1] // 2], axis=1)
    else:
        u = device.u(steps=3 * device.chunk_steps)
        parts = np.array_split(u, min(3, u.shape[1], device.welcome["credits"]), axis=1)
    whole = client.from_rest(u)
    client.reset()
    states = [client.states(request) for request in device.pipeline(client, parts)]
    close(whole, np.concatenate(states, axis=1), "a run as a whole, and in chunks")


WHOLE = "Then it drives them as one run, without a gap, and answers each, in their order, with the states of its steps."


@RULES.in_session("a whole run in more messages than credits is the run in one", page=WHOLE)
def _(device: Device, client: Client) -> None:
    device.must_collect()
    device.must_be_deterministic()
    u = device.u(steps=2 * device.welcome["credits"] + 1)
    whole = client.from_rest(u)
    client.reset()
    states = np.concatenate([client.states(request) for request in _one_by_one(client, u)], axis=1)
    close(whole, states, f"a run in one message, and in {u.shape[1]}")


@RULES.in_session(
    "no message of a whole run is answered before the last has come",
    page="It answers none of them before it has them all.",
)
def _(device: Device, client: Client) -> None:
    device.must_collect()
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
    device.must_collect()
    u = device.u(steps=2)
    client.reset()
    first = client.send_run(u[:, :1], flags=codec.MORE)
    client.told("cancel", session=client.session, request=first.request)
    client.failed(first, codec.E_CANCELLED)
    client.from_rest(u)


def _one_by_one(client: Client, u: np.ndarray) -> list[codec.Header]:
    """A message for each step of one run."""
    steps = u.shape[1]
    return [client.send_run(u[:, t : t + 1], step=t, flags=codec.MORE if t + 1 < steps else 0) for t in range(steps)]


@RULES.in_session(
    "a run step by step is the run as a whole", page="A single step of a closed loop is a RUN of one step."
)
def _(device: Device, client: Client) -> None:
    device.must_be_deterministic()
    device.must_be_held()
    u = device.u()
    whole = client.from_rest(u)
    client.reset()
    steps = [client.run(u[:, t : t + 1], step=t) for t in range(u.shape[1])]
    close(whole, np.concatenate(steps, axis=1), "a run as a whole, and step by step")


@RULES.rule("a pause between two RUNs changes nothing", page=HELD)
def _(device: Device) -> None:
    device.must_be_held()
    pause_s = min(PAUSE_S, WITHIN * device.lease_s)
    with device.session() as client:
        device.must_keep_state(client, lambda _: time.sleep(pause_s), f"a pause of {pause_s:g} s")


@RULES.rule(
    "a run goes on beyond step 2^16",
    page="The step of a RUN must be where the last RUN ended",
)
def _(device: Device) -> None:
    device.must_be_held()
    seconds = MANY * device.step_s
    if seconds > MANY_S:
        raise NotOffered(f"the device needs {seconds:.1f} s for so many steps")
    with device.session() as client:
        client.reset()
        step = 0
        while step <= MANY:
            u = device.u(steps=MANY // 4)
            client.run(u, step=step)
            step += u.shape[1]


@RULES.rule(
    "each sequence of a batch answers as it does alone, in C order",
    page="first all of the first sequence, step by step, then the second, and so on.",
)
def _(device: Device) -> None:
    device.must_be_deterministic()
    batch = device.batch(3)
    if batch == 1:
        raise NotOffered("the device declares max_batch: 1")
    with device.session() as client:
        u = device.u(batch)
        together = client.from_rest(u)
        for number in range(batch):
            alone = client.from_rest(u[number : number + 1])
            close(alone, together[number : number + 1], f"sequence {number} alone, and in a batch of {batch}")


@RULES.in_session(
    "row t of the states comes after row t of the inputs",
    page="row t of the states is the response after row t of the inputs was applied for one full period.",
)
def _(device: Device, client: Client) -> None:
    device.must_be_deterministic()
    u = device.u()
    other = u.copy()
    half = u.shape[1] // 2
    other[:, half:] = device.u(seed=2)[:, half:]
    first, second = client.from_rest(u), client.from_rest(other)
    close(first[:, :half], second[:, :half], f"two runs whose inputs are the same for {half} steps")


@RULES.rule(
    "a chunk that comes too late for a free running device is error 12",
    page="If the next chunk is not there when it is due, the device answers with error 12 and the step, and counts an "
    "underrun.",
)
def _(device: Device) -> None:
    period_s = device.spec.get("step_period_s")
    if device.is_held or not period_s:
        raise NotOffered("the device declares no clock that it keeps while it is not driven")
    device.must_be_chunked()
    with device.session() as client:
        u = device.u()
        client.reset()
        requests = [client.send_run(u, flags=codec.MORE)]
        time.sleep(u.shape[1] * period_s + LATE_S)
        requests.append(client.send_run(u, step=u.shape[1]))
        replies = [client.reply(request) for request in requests]
        codes = [0 if reply.error is None else reply.error["code"] for reply in replies]
        if codes not in ([0, codec.E_DISCONTINUITY], [codec.E_DISCONTINUITY, codec.E_STATE_LOST]):
            raise Broken(
                f"two chunks, {LATE_S:g} s too far apart, were answered with codes {codes}", replies[-1].frames
            )
