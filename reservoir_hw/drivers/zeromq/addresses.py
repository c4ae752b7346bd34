"""Where a device listens, and who may."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.drivers.ports import is_this_host

LAST_PORT = 65535
# What stands behind them is a path of this host.
_PATHS = ("ipc", "unix")


def control_address(data: str) -> str:
    """The control socket that belongs to a data socket: the next port, or the path with `.control` behind it."""
    scheme, _, rest = checked_address(data).partition("://")
    if scheme in _PATHS:
        return f"{data}.control"
    host, _, port = rest.rpartition(":")
    if int(port) == LAST_PORT:
        raise ConfigurationError(
            f"{data}: there is no port behind it for the control socket; choose 1 to {LAST_PORT - 1}, or name control"
        )
    return f"tcp://{host}:{int(port) + 1}"


def layer_address(data: str, layer: int) -> str:
    """Where the device of a layer listens, if that of layer 0 does at `data`: two ports on, or `.1`, `.2` behind."""
    scheme, _, rest = checked_address(data).partition("://")
    if layer == 0:
        return data
    if scheme in _PATHS:
        return checked_address(f"{data}.{layer}")
    host, _, port = rest.rpartition(":")
    return checked_address(f"tcp://{host}:{int(port) + 2 * layer}")


def checked_address(address: str) -> str:
    """The address, if one can listen there: `tcp://host:port`, `ipc://path` or `unix://path`.

    Raises `ConfigurationError` if not.
    """
    scheme, separator, rest = address.partition("://")
    if separator and scheme in _PATHS and rest:
        if not rest.isprintable():
            raise ConfigurationError(f"{address!r}: the path in an address is printable text")
        if rest == "*":
            raise ConfigurationError(f"{address}: ZeroMQ would invent a path that nobody knows; name one")
        # The operating system's limit; ZeroMQ would cut the path.
        if len(rest.encode()) + len(".control") > 107:
            raise ConfigurationError(f"{address}: the path in an address must be shorter than 100 bytes")
        if scheme == "unix" and sys.platform != "linux":
            raise ConfigurationError(f"{address}: unix addresses need Linux; use ipc://path or tcp://127.0.0.1:port")
        return address
    if separator and scheme == "tcp":
        host, _, port = rest.rpartition(":")
        # ZeroMQ itself would take `local;remote`, and listen at what this program has not looked at.
        if _is_host(host) and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) <= LAST_PORT:
            return address
    raise ConfigurationError(f"{address!r} is not tcp://host:port (port 1 to {LAST_PORT}), ipc://path or unix://path")


def address_to_connect(address: str) -> str:
    """The address, if one can connect to it; else `ConfigurationError`."""
    if checked_address(address).startswith("tcp://*:"):
        raise ConfigurationError(f"{address}: * is where a server listens; name the host that it runs on")
    return address


def _is_host(text: str) -> bool:
    if not text.startswith("["):
        return re.fullmatch(r"\*|[\w-][\w.-]*", text, re.ASCII) is not None
    try:
        ipaddress.IPv6Address(text[1:].removesuffix("]"))
    except ValueError:
        return False
    return text.endswith("]")


def is_local(address: str) -> bool:
    """Whether only this host can connect to what is bound there."""
    return address.partition("://")[0] in _PATHS or is_this_host((urlsplit(address).hostname or "").lower())


def check_free(address: str) -> None:
    """Raise `ConfigurationError` if the path of an address is being served, or is no socket.

    ZeroMQ would take the path away from another server, and remove a file, without a word.
    """
    scheme, _, path = address.partition("://")
    if scheme not in _PATHS or (scheme == "ipc" and path.startswith("@")):
        return
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ConfigurationError(f"cannot listen at {address}: there is something that is no socket; name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError:
            # One that does not want us, or speaks another way.
            pass
    raise ConfigurationError(f"cannot listen at {address}: another server listens there")


def by_unix_sockets(addresses: Sequence[str]) -> bool:
    """Whether these addresses of one device are Unix sockets; `ConfigurationError` if some are, and some are not."""
    unix = [address.startswith("unix://") for address in addresses]
    if any(unix) and not all(unix):
        raise ConfigurationError(f"{' and '.join(addresses)}: data and control are both unix addresses, or none is")
    return all(unix)
