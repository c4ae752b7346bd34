"""What could be used from here: VISA instruments, serial ports, served devices; and how each stands in a file."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from reservoir_hw.core import registry
from reservoir_hw.core.errors import ConfigurationError, MissingExtra, ReservoirError, extra, text_of
from reservoir_hw.drivers.ports import is_port
from reservoir_hw.drivers.visa.roles import DigitizerConfig, GeneratorConfig, InstrumentConfig
from reservoir_hw.drivers.visa.scpi import ScpiInstrument
from reservoir_hw.drivers.zeromq.addresses import address_to_connect

# Sections of an instrument, and its channels. The ranges are for its owner to choose.
_ROLES: list[tuple[str, type[GeneratorConfig] | type[DigitizerConfig], str, str]] = [
    ("generator", GeneratorConfig, "outputs", "{1: {range_v: [-1, 1], load_ohm: 50}}"),
    ("digitizer", DigitizerConfig, "inputs", "{1: {range_v: [-1, 1]}}"),
]
_AUXILIARY = """\
knobs:
  NAME:
    address: {address}
    set: "VOLT {{value}}"          # whatever its manual says
    value: 0.0
    limits: [0, 1]
# or, told lines of text in each step (docs/commands.md):
# kind: commands
# address: {address}
# step: {{ask: "S {{u[0]:.3f}}"}}
"""


@dataclass(frozen=True)
class Found:
    """Something that may be a device: who it says it is, or why it says nothing, and a part of a reservoir file."""

    way: Literal["visa", "serial", "zeromq"]
    address: str
    identity: str = ""
    problem: str = ""
    snippet: str = ""


def ask(address: str, *, library: str = "@py", baud: int = 115200, timeout_s: float = 2.0) -> Found:
    """Who answers at `tcp://…`, `ipc://…` or `unix://…` (a served device), `…::…` (VISA), or a serial port.

    A serial port is asked as a board of docs/serial-protocol.md. Who has a served device or a board keeps it. Raises
    `ConfigurationError` for an address of no such form.
    """
    if is_port(address):
        return _board(address, baud, timeout_s)
    if "://" in address:
        return _served(address_to_connect(address), timeout_s)
    if "::" in address:
        return _instrument(address, library, timeout_s)
    raise ConfigurationError(
        f"{address!r} is neither the address of a served device (tcp://host:port), nor one of VISA "
        "(TCPIP::192.168.1.5::5025::SOCKET, USB0::0x2A8D::0x1602::MY1::INSTR), nor a serial port (/dev/ttyACM0, COM5)"
    )


def look_around(
    *, library: str = "@py", ask_ports: bool = False, baud: int = 115200, timeout_s: float = 2.0
) -> tuple[list[Found], list[str]]:
    """VISA resources that show themselves, which are asked, and serial ports. And what was not searched.

    A TCPIP instrument on a raw socket and a served device do not show themselves. Serial ports are asked if `ask_ports`
    is true: some boards begin anew when their port is opened, and what is no board may take the question for something
    else.
    """
    found, remarks = [], []
    try:
        addresses, remarks = _resources(library)
        found += [ask(address, library=library, timeout_s=timeout_s) for address in addresses]
    except MissingExtra as error:
        remarks.append(f"VISA: {error}")
    try:
        found += [_board(port.address, baud, timeout_s) if ask_ports else port for port in _serial_ports()]
    except MissingExtra as error:
        remarks.append(f"serial ports: {error}")
    return found, remarks


def _resources(library: str) -> tuple[list[str], list[str]]:
    with extra("visa", "not looked for, they need pyvisa"):
        import pyvisa
    # pyvisa-py says by warnings which ways it cannot search.
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            addresses = pyvisa.ResourceManager(library).list_resources()
        except (pyvisa.Error, OSError, ValueError) as error:
            return [], [f"VISA: the library {library!r} cannot search: {text_of(error)}"]
    remarks = [" ".join(str(one.message).split()) for one in warned if issubclass(one.category, UserWarning)]
    return [address for address in addresses if not address.startswith("ASRL")], remarks


def _serial_ports() -> list[Found]:
    with extra("serial", "not looked for, they need pyserial"):
        from serial.tools import list_ports
    return [
        Found(
            "serial",
            port.device,
            "" if port.description == "n/a" else port.description,
            snippet=_AUXILIARY.format(address=f"ASRL{port.device}::INSTR"),
        )
        for port in list_ports.comports()
    ]


def _board(port: str, baud: int, timeout_s: float) -> Found:
    with extra("serial", "boards need pyserial"):
        from reservoir_hw.drivers.serial import board_at
    try:
        board = board_at(port, baud=baud, timeout_s=timeout_s)
    except ReservoirError as error:
        return Found("serial", port, problem=str(error))
    names = " ".join(name for name in (board.vendor, board.model, board.serial, board.firmware) if name)
    identity = f"{names}, {board.inputs} inputs, {board.nodes} nodes"
    return Found("serial", port, identity, snippet=f"kind: serial\nport: {port}\nbaud: {baud}\n")


def _instrument(address: str, library: str, timeout_s: float) -> Found:
    try:
        asked = ScpiInstrument(address, library=library, timeout_s=timeout_s)
        # Some instruments wait for the CR, for all others it is white space.
        asked.end = "\r\n"
        with asked:
            identity = asked.idn
    except ReservoirError as error:
        return Found("visa", address, problem=str(error))
    sections = list(_sections(address, identity))
    return Found("visa", address, identity, snippet="".join(sections) or _AUXILIARY.format(address=address))


def _sections(address: str, identity: str) -> Iterator[str]:
    """A section for each kind of instrument whose driver takes what says this about itself."""
    for kind, plugin in registry.available("instruments").items():
        try:
            registered = plugin.load()
        except ConfigurationError:
            # `list instruments` says what is wrong with it.
            continue
        for name, role, channels, text in _ROLES:
            model = registry.in_role(registered, role)
            if model is not None and _takes(model, kind, channels, identity):
                yield f"{name}:\n  kind: {kind}\n  address: {address}\n  {channels}: {text}\n"


def _takes(model: type[InstrumentConfig], kind: str, channels: str, identity: str) -> bool:
    # Only a driver says whom it takes, and it is made without being opened.
    try:
        driver = model.model_validate({"kind": kind, "address": "", channels: {1: {"range_v": (-1.0, 1.0)}}}).build()
    except ValidationError:
        return False
    return bool(getattr(driver, "identity", "")) and re.search(driver.identity, identity) is not None


def _served(address: str, timeout_s: float) -> Found:
    with extra("zmq", "served devices need pyzmq"):
        from reservoir_hw.drivers.zeromq import status_of
    try:
        status = status_of(address, timeout_s=timeout_s)
    except ReservoirError as error:
        return Found("zeromq", address, problem=str(error))
    holder = status.get("holder")
    identity = f"{status.get('device')}" + (f", used by {holder}" if holder else "")
    return Found("zeromq", address, identity, snippet=f"kind: zmq\naddress: {address}\n")
