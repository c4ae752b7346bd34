"""The film with its instruments on sockets of this computer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reservoir_hw.emulators.faults import FaultPlan, FaultyInstrument
from reservoir_hw.emulators.physics.film import FilmConfig
from reservoir_hw.emulators.servers.socket import SocketServer
from reservoir_hw.emulators.smu.bench import Clock, FilmBench
from reservoir_hw.emulators.smu.companions import Supply, SwitchMatrix
from reservoir_hw.emulators.smu.source import SourceMeter


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
            addresses[name] = held.enter_context(server).resource
        yield FilmLab(bench, **addresses)
