"""Where a device listens, and who may."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from reservoir_hw.errors import ConfigurationError


def control_address(data: str) -> str:
    """The control socket that belongs to a data socket: the next port, or the path with `.control` behind it."""
    scheme, _, rest = checked_address(data).partition("://")
    if scheme == "ipc":
        return f"{data}.control"
    host, _, port = rest.rpartition(":")
    return f"tcp://{host}:{int(port) + 1}"


def checked_address(address: str) -> str:
    """The address, if it is `tcp://host:port` or `ipc://path`; else `ConfigurationError`."""
    scheme, separator, rest = address.partition("://")
    if separator and scheme == "ipc" and rest:
        # The operating system's limit; ZeroMQ would cut the path.
        if len(rest.encode()) + len(".control") > 107:
            raise ConfigurationError(f"{address}: the path of an ipc address must be shorter than 100 bytes")
        return address
    if separator and scheme == "tcp":
        host, _, port = rest.rpartition(":")
        if host and port.isdigit() and 0 < int(port) < 65535:
            return address
    raise ConfigurationError(f"{address!r} is not tcp://host:port (port 1 to 65534) or ipc://path")


def is_local(address: str) -> bool:
    """Whether only this host can connect to what is bound there."""
    if address.startswith("ipc://"):
        return True
    host = (urlsplit(address).hostname or "").lower()
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def somebody_listens(address: str) -> bool:
    """Whether an ipc address is being served. ZeroMQ would take its path away from the other server without a word."""
    path = address.removeprefix("ipc://")
    if path == address or path.startswith("@"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
