"""Serial ports by name, and which of them mean one device. It needs no pyserial."""

from __future__ import annotations

import ipaddress
import os
import re

_ASRL = re.compile(r"ASRL(?P<port>.+?)(::INSTR)?", re.IGNORECASE)
# /dev/ttyACM0, COM5, socket://host:port, and whatever other URLs pyserial knows.
_PORT = re.compile(r"[./]|COM\d+$|socket://.+:\d+$|(?!(?:tcp|ipc|unix|socket)://)\w+://")


def is_port(address: str) -> bool:
    """Whether it is a serial port as pyserial names it: /dev/ttyACM0, COM5, socket://host:port."""
    return _PORT.match(address) is not None


def port_of(address: str) -> str | None:
    """The serial port of an address: its own, or that of ASRL/dev/ttyUSB0::INSTR and ASRL3::INSTR; else None."""
    if is_port(address):
        return address
    if (named := _ASRL.fullmatch(address.strip())) is None:
        return None
    return f"COM{named['port']}" if named["port"].isdigit() else named["port"]


def resource_of_port(port: str) -> str:
    """The name under which a port is locked: links such as those in /dev/serial/by-id mean what they point to."""
    if "://" in port:
        return f"serial {port.lower()}"
    return f"serial {os.path.realpath(port) if '/' in port else port.upper()}"


def is_this_host(host: str) -> bool:
    """Whether a host, in small letters, is the one that this runs on, by its name or by its address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
