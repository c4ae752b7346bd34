"""The same run in different messages."""

from __future__ import annotations

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client
from reservoir_hw.testing.protocol.device import Device, close
from reservoir_hw.testing.protocol.outcomes import NotOffered
from reservoir_hw.testing.protocol.rules import Rules

RULES = Rules("runs")


def _in_chunks(client: Client, u: np.ndarray, lengths: list[int]) -> np.ndarray:
    """The states of a run in several messages, all but the last with "more chunks follow"."""
    client.reset(len(u))
    states, step = [], 0
    for length in lengths:
        last = step + length == u.shape[1]
        chunk = u[:, step : step + length]
        states.append(client.run(chunk, step=step, flags=0 if last else codec.MORE))
        step += length
    return np.concatenate(states, axis=1)


@RULES.rule("a run in chunks is the run as a whole", page="whether a run may come in several RUN messages.")
def _(device: Device) -> None:
    device.must_be_chunked()
    device.must_be_deterministic()
    device.must_be_held()
    with device.session() as client:
        u = device.u()
        rest = u.shape[1]
        lengths = [1, 5, rest - 6] if rest > 6 else [1] * rest
        close(client.from_rest(u), _in_chunks(client, u, lengths), "a run as a whole, and in chunks")


@RULES.rule("a run step by step is the run as a whole", page="A single step of a closed loop is a RUN of one step.")
def _(device: Device) -> None:
    device.must_be_deterministic()
    device.must_be_held()
    with device.session() as client:
        u = device.u()
        whole = client.from_rest(u)
        client.reset()
        steps = [client.run(u[:, t : t + 1], step=t) for t in range(u.shape[1])]
        close(whole, np.concatenate(steps, axis=1), "a run as a whole, and step by step")


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


@RULES.rule(
    "row t of the states comes after row t of the inputs",
    page="row t of the states is the response after row t of the inputs was applied for one full period.",
)
def _(device: Device) -> None:
    device.must_be_deterministic()
    with device.session() as client:
        u = device.u()
        other = u.copy()
        half = u.shape[1] // 2
        other[:, half:] = device.u(seed=2)[:, half:]
        first, second = client.from_rest(u), client.from_rest(other)
        close(first[:, :half], second[:, :half], f"two runs whose inputs are the same for {half} steps")
