"""The film with its instruments on sockets of this computer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from reservoir_hw.emulators.faults import FaultPlan, FaultyInstrument
from reservoir_hw.emulators.physics.devices import FilmConfig
from reservoir_hw.emulators.scpi.instrument import ScpiDevice
from reservoir_hw.emulators.scpi.messages import Argument, Number, ScpiError, Token
from reservoir_hw.emulators.scpi.tree import command, query, reading
from reservoir_hw.emulators.servers import SocketServer
from reservoir_hw.emulators.smu.source import Clock, FilmBench, SourceMeter

FIRST_CHANNEL = 101
_LIST = re.compile(rb"\(@([\d,:\s]+)\)")


class ChannelList(Argument):
    """`(@101)`, `(@101,103:105)`. The method gets the numbers."""

    takes_rest: ClassVar[bool] = True

    def read_rest(self, tokens: list[Token], device: Any, suffixes: Sequence[int]) -> list[int]:
        """The channels in their order."""
        if (found := _LIST.fullmatch(b",".join(bytes(token) for token in tokens))) is None:
            raise ScpiError(-102)
        channels: list[int] = []
        for part in found[1].decode().split(","):
            first, _, last = part.partition(":")
            if not first.strip().isdigit() or not (last or first).strip().isdigit():
                raise ScpiError(-102)
            channels += range(int(first), int(last or first) + 1)
        return channels


class SwitchMatrix(ScpiDevice):
    """Channels 101, 102, ... are the electrodes of the film. It also has a thermometer."""

    identity = "KEITHLEY INSTRUMENTS INC.,MODEL 2700,7654321,B09"
    number_format = ".4f"

    def __init__(self, bench: FilmBench) -> None:
        super().__init__()
        self._bench = bench

    def reset(self) -> None:
        """`*RST`."""
        self._bench.connect([])

    @command("ROUTe:CLOSe", ChannelList())
    def close(self, channels: list[int]) -> None:
        """`ROUTe:CLOSe (@101)`: this one, and no other."""
        if len(channels) != 1:
            raise ScpiError(-223)
        self._bench.connect(self._electrodes(channels))

    @command("ROUTe:MULTiple:CLOSe", ChannelList())
    def close_several(self, channels: list[int]) -> None:
        """`ROUTe:MULTiple:CLOSe (@101,102)`: these, too."""
        self._bench.connect(sorted({*self._bench.closed, *self._electrodes(channels)}))

    open_all = command("ROUTe:OPEN:ALL")(lambda self: self._bench.connect([]))

    @query("ROUTe:CLOSe")
    def closed(self) -> str:
        """`ROUTe:CLOSe?`."""
        return f"(@{','.join(str(FIRST_CHANNEL + electrode) for electrode in self._bench.closed)})"

    temperature = query("TEMPerature")(lambda self: self._bench.film.config.temperature_c)
    """In degrees Celsius."""

    def _electrodes(self, channels: list[int]) -> list[int]:
        electrodes = [channel - FIRST_CHANNEL for channel in channels]
        if any(not 0 <= electrode < self._bench.film.config.electrodes for electrode in electrodes):
            raise ScpiError(-222)
        return electrodes


class Supply(ScpiDevice):
    """A supply at the gate of the film, which is always on."""

    identity = "reservoir_hw,gate supply,1,1.0"
    number_format = "+.6f"

    def __init__(self, bench: FilmBench) -> None:
        super().__init__()
        self._bench = bench

    def reset(self) -> None:
        """`*RST`."""
        self._bench.set_gate(0.0)

    @command("[SOURce:]VOLTage[:LEVel][:IMMediate][:AMPLitude]", Number("V", low=-5.0, high=5.0))
    def set_level(self, volts: float) -> None:
        """`VOLTage`, in steps of a millivolt."""
        self._bench.set_gate(round(volts, 3))

    level = reading("[SOURce:]VOLTage[:LEVel][:IMMediate][:AMPLitude]", "gate_v", of=lambda supply: supply._bench)
    measure = reading("MEASure[:SCALar]:VOLTage[:DC]", "gate_v", of=lambda supply: supply._bench)


@dataclass(frozen=True)
class FilmLab:
    """The bench, and the VISA addresses of its instruments."""

    bench: FilmBench
    source: str
    switch: str
    supply: str


@contextlib.contextmanager
def film_lab(
    config: FilmConfig | None = None,
    *,
    clock: Clock = "steps",
    port: int = 0,
    log: Path | None = None,
    faults: FaultPlan | None = None,
) -> Iterator[FilmLab]:
    """Source, switch matrix and supply on a memristive film, served in threads while the block runs.

    Args:
        config: The film.
        clock: See `FilmBench`.
        port: Of the source; switch and supply have the next ones. 0: any that are free.
        log: Where the events of the outputs are written to (see `EventLog`).
        faults: What goes wrong.

    Raises `ConfigurationError` if a port is taken.
    """
    bench, planned = FilmBench(config or FilmConfig(), clock, log), faults or FaultPlan()
    with contextlib.ExitStack() as held:
        held.callback(bench.log.close)
        instruments = {"source": SourceMeter(bench), "switch": SwitchMatrix(bench), "supply": Supply(bench)}
        addresses = {}
        for number, (name, device) in enumerate(instruments.items()):
            server = SocketServer(FaultyInstrument(device, planned.of(name)), port=port and port + number)
            addresses[name] = held.enter_context(server)
        yield FilmLab(bench, **addresses)
