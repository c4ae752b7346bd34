"""VISA addresses, and which of them mean one instrument."""

from __future__ import annotations

import ipaddress
import re

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.drivers.ports import port_of, resource_of_port

_TCPIP = re.compile(r"TCPIP(?P<board>\d*)::(?P<host>[^:\[\]]+|\[[^\]]+\])::(?P<rest>.+)", re.IGNORECASE)


def resource_of(address: str) -> str:
    """The name under which the instrument at `address` is locked.

    An instrument has one host, however many ports and protocols it listens on, so `TCPIP::h::5025::SOCKET` and
    `TCPIP0::H::hislip0::INSTR` are one resource. On this host, and behind a gateway to GPIB, there may be several: the
    address itself counts. A serial port is one resource under all its names. Raises `ConfigurationError` for what is no
    address.
    """
    address = address.strip()
    port = port_of(address)
    if port is not None:
        return resource_of_port(port)
    if "::" not in address:
        raise ConfigurationError(
            f"{address!r} is no VISA address; examples are TCPIP::192.168.1.5::5025::SOCKET, "
            "TCPIP::192.168.1.5::hislip0::INSTR and USB0::0x2A8D::0x1602::MY1::INSTR"
        )
    match = _TCPIP.fullmatch(address)
    if match is None:
        return f"visa {address.upper()}"
    host = match["host"].lower().strip("[]")
    if _is_this_host(host) or match["rest"].lower().startswith("gpib"):
        return f"visa {host} {match['rest'].lower()}"
    return f"visa {host}"


def is_raw_socket(address: str) -> bool:
    """Whether it is a plain TCP connection, without messages."""
    return address.upper().endswith("::SOCKET")


def _is_this_host(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
