"""How long a client has the device, and what the next one finds."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from reservoir_hw.testing.protocol import codec, mortal_client
from reservoir_hw.testing.protocol.client import Client, repeat
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.ledger import Broken, NotOffered
from reservoir_hw.testing.protocol.rules import Rules

RULES = Rules("lease")

SAFE = "When the lease ends, by `goodbye` or by silence, the device goes to its safe state and the session is void."
WITHIN = 0.7
"""Part of a lease after which it must still hold. Two of them are more than one lease."""
LATE = 1.5
"""Leases after which a session must have ended, as seen from here: the device may notice it late."""
LATE_S = 2.0
"""How late the end of a session may be noticed that ends for another reason."""
WORK_S = 0.4
LEASES = 4.3
"""Leases that this group takes."""
LONGEST_S = 120.0


def seconds_of(device: Device) -> float:
    """How long this group takes."""
    return LEASES * device.lease_s


def _wait(device: Device, leases: float) -> None:
    if device.lease_s > LONGEST_S:
        raise NotOffered(f"a lease has {device.lease_s:g} s: nobody waits for its end (serve with a shorter one)")
    time.sleep(leases * device.lease_s)


@RULES.rule("after goodbye the next client finds the device at rest", page=SAFE)
def _(device: Device) -> None:
    device.must_have("deterministic")
    with device.session() as client:
        states = client.run(device.u())
        client.run(device.u(seed=2), step=states.shape[1]) if device.is_held else client.from_rest(device.u(seed=2))
    _at_rest(device, states)


def _at_rest(device: Device, states: np.ndarray) -> None:
    """The next client must get these states for the same inputs."""
    with device.session() as client:
        again = client.run(device.u())
        device.must_agree(states, again, "a RUN after ATTACH, before and after another client", exact=True)


@RULES.in_session(
    "messages on either socket hold the device",
    page="The client holds it as long as a message of the session arrives, on either socket, at least every `lease_s` "
    "seconds.",
)
def _(device: Device, client: Client) -> None:
    _wait(device, WITHIN)
    _holds(client, "after hello")
    _wait(device, WITHIN)
    client.reset()
    _wait(device, WITHIN)
    _holds(client, "after a request")


def _holds(client: Client, when: str) -> None:
    if not client.ping()["valid"]:
        raise Broken(f"the session ended within {WITHIN:g} of its lease {when}")


@RULES.rule("after silence of lease_s the session is void, and the device free and at rest", page=SAFE)
def _(device: Device) -> None:
    _wait(device, 0)
    # A busy machine may be late once.
    if not any(_ends_in_time(device) for _ in range(2)):
        raise Broken(f"{LATE:g} leases after the last message of its session, twice, the device was still held")


def _ends_in_time(device: Device) -> bool:
    """Whether a session has ended by silence. A hello that is sent later than `LATE` leases must not be refused."""
    with device.session() as client, device.client("the next one") as other, device.client("a stranger") as stranger:
        states = client.run(device.u())
        client.from_rest(device.u(seed=2))
        last = time.monotonic()
        stranger.session = client.session ^ 1
        while True:
            asked = (time.monotonic() - last) / device.lease_s
            answer = other.hello()
            if answer["op"] == "welcome":
                break
            if asked > LATE:
                return False
            # Whoever does not have the session cannot keep it alive.
            stranger.told("status")
            stranger.ping()
            time.sleep(device.lease_s / 20)
        other.leave()
        if asked < WITHIN:
            raise Broken("another client was let in while the lease held")
        if client.ping()["valid"]:
            raise Broken("the session of the silent client is still valid")
        client.refused(codec.RESET, codec.E_NO_SESSION, batch=1)
        client.session = 0
    _at_rest(device, states)
    return True


@RULES.rule(
    "a session ends when an answer cannot be delivered",
    page="A session also ends when an answer cannot be delivered because its client is not connected any more.",
)
def _(device: Device) -> None:
    u = device.long_run(WORK_S)
    seconds = device.must_take(u)
    with device.client() as client:
        device.welcomed(client)
        client.attach()
        request = client.send_run(u)
        while not client.is_busy_with(request):
            if client.data.waits(0):
                client.leave()
                raise NotOffered("the device was done before its client could go")
        client.data.close()
        if not repeat(seconds + LATE_S, device.lease_s / 10, lambda: not client.ping()["valid"]):
            client.leave()
            raise Broken(f"a session without a data connection is valid {LATE_S:g} s after its RUN was done")


@RULES.rule("after kill -9 of a client the device is free and at rest within its lease", page=SAFE)
def _(device: Device) -> None:
    _wait(device, 0)
    with device.session() as client:
        states = client.run(device.u())
    command = [sys.executable, "-m", mortal_client.__name__, device.address, device.control_address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if process.stdout.readline() != mortal_client.ATTACHED:
                raise Broken(f"a client in a process of its own could not attach: {process.stderr.read()[-500:]}")
            with device.client() as other:
                if other.hello()["op"] == "welcome":
                    other.leave()
                    raise Broken("another client was let in while the first one pinged")
        finally:
            process.kill()
    with device.client() as other:
        device.welcomed(other, 1.5 * device.lease_s + LATE_S)
        other.leave()
    _at_rest(device, states)
