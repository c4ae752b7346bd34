"""Which sockets belong to an address: ZeroMQ's, or those of the operating system."""

from __future__ import annotations

import contextlib
from typing import Any

import zmq

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.drivers.zeromq.addresses import by_unix_sockets
from reservoir_hw.drivers.zeromq.frames import LARGEST_CONTROL
from reservoir_hw.drivers.zeromq.links import Dealer, Router
from reservoir_hw.drivers.zeromq.security import Allowed, KeyPair, admit
from reservoir_hw.drivers.zeromq.sockets import LINGER_MS, ZmqDealer, ZmqRouter
from reservoir_hw.drivers.zeromq.unix_sockets import UnixDealer, UnixRouter

_NO_KEYS = "keys are for tcp and ipc; at a unix address the system looks who it is, and lets the same user in"


def dealers(
    held: contextlib.ExitStack,
    addresses: list[str],
    timeout_s: float,
    *,
    server_key: bytes | None = None,
    keys: KeyPair | None = None,
) -> list[Dealer]:
    """A client's ends for these addresses of one device, not yet connected. They are closed with `held`."""
    if by_unix_sockets(addresses):
        if server_key is not None:
            raise ConfigurationError(f"{addresses[0]}: {_NO_KEYS}")
        return [held.enter_context(contextlib.closing(UnixDealer(address, timeout_s))) for address in addresses]
    context: zmq.Context[Any] = zmq.Context()
    held.callback(context.destroy, linger=0)
    return [ZmqDealer(context, address, timeout_s, server_key, keys) for address in addresses]


def routers(
    held: contextlib.ExitStack,
    data: str,
    control: str,
    *,
    max_frame_bytes: int,
    allowed: Allowed | None,
    room: int,
    idle_s: float,
    patience_s: float,
) -> list[Router]:
    """A server's ends at its two addresses, or `ConfigurationError`. They are closed with `held`.

    `receive` waits `idle_s`, `send` on the data socket `patience_s` for a client that takes nothing. `room` messages
    of a client may wait.
    """
    unix = by_unix_sockets([data, control])
    if unix and allowed is not None:
        raise ConfigurationError(f"{data}: {_NO_KEYS}")
    context: zmq.Context[Any] | None = None
    if not unix:
        context = zmq.Context()
        held.callback(context.destroy, linger=LINGER_MS)
        held.enter_context(admit(context, allowed))
    made: list[Router] = []
    for address, largest, patience in ((data, max_frame_bytes, patience_s), (control, LARGEST_CONTROL, 0.0)):
        try:
            if context is None:
                router: Router = UnixRouter(address, largest, idle_s=idle_s, patience_s=patience)
            else:
                router = ZmqRouter(
                    context, address, largest, allowed=allowed, room=room, idle_s=idle_s, patience_s=patience
                )
        except ConfigurationError as error:
            if not made:
                raise
            raise ConfigurationError(
                f"{error}; this is the control socket of {data}: choose another port, or name control"
            ) from error
        made.append(router)
        held.callback(router.close)
    return made
