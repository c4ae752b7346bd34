"""Which sockets belong to an address: ZeroMQ's, or those of the operating system."""

from __future__ import annotations

import contextlib
from typing import Any

import zmq

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.drivers.zeromq.addresses import by_unix_sockets
from reservoir_hw.drivers.zeromq.frames import LARGEST_CONTROL
from reservoir_hw.drivers.zeromq.links import Dealer, Listening, Router
from reservoir_hw.drivers.zeromq.security import KeyPair, admit
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


def routers(held: contextlib.ExitStack, data: str, control: str, how: Listening) -> list[Router]:
    """A server's ends at its two addresses, or `ConfigurationError`. They are closed with `held`.

    The control socket takes frames of its own size, and waits for nobody.
    """
    unix = by_unix_sockets([data, control])
    if unix and how.allowed is not None:
        raise ConfigurationError(f"{data}: {_NO_KEYS}")
    context: zmq.Context[Any] | None = None
    if not unix:
        context = zmq.Context()
        held.callback(context.destroy, linger=LINGER_MS)
        held.enter_context(admit(context, how.allowed))
    made: list[Router] = []
    for address, so in ((data, how), (control, how._replace(max_frame_bytes=LARGEST_CONTROL, patience_s=0.0))):
        try:
            router = UnixRouter(address, so) if context is None else ZmqRouter(context, address, so)
        except ConfigurationError as error:
            if not made:
                raise
            raise ConfigurationError(
                f"{error}; this is the control socket of {data}: choose another port, or name control"
            ) from error
        made.append(router)
        held.callback(router.close)
    return made
