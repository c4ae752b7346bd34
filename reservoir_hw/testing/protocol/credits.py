"""Several requests under way, and a device that works meanwhile."""

from __future__ import annotations

import time

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.device import SHORTEST_S, Device, close
from reservoir_hw.testing.protocol.outcomes import Broken, NotOffered
from reservoir_hw.testing.protocol.rules import Rules

RULES = Rules("credits")

MOST = 1024
FIRST_S = 0.05
WORK_S = 0.4


@RULES.rule(
    "as many RUN requests as there are credits are answered, in order",
    page="The device has room for this number of requests",
)
def _(device: Device) -> None:
    first = device.long_run(FIRST_S)
    count = (
        min(device.welcome["credits"], MOST) if device.is_chunked else (min(device.welcome["credits"], MOST) + 1) // 2
    )
    runs = [first, *(device.u(steps=device.chunk_steps, seed=number) for number in range(1, count))]
    with device.session() as client:
        client.reset()
        # Those behind it wait, as the first one takes a moment.
        requests = device.pipeline(client, runs)
        replies = [client.done(request) for request in requests]
        if device.spec.get("deterministic") and device.is_chunked and device.is_held:
            states = [codec.numbers(reply.header, reply.payload) for reply in replies]
            whole = client.from_rest(np.concatenate(runs, axis=1))
            close(whole, np.concatenate(states, axis=1), "a run as a whole, and in chunks that waited")


@RULES.rule(
    "a working device answers on the control socket, and says with what it is busy",
    page="Another thread answers it at once, also while the device is working.",
)
def _(device: Device) -> None:
    u = device.long_run(WORK_S)
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
