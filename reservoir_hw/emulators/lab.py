"""A virtual lab: a bench, with its generator and its digitizer on sockets of this computer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.bench import BenchConfig, Cable, VirtualBench
from reservoir_hw.emulators.faults import Fault, FaultPlan, FaultyInstrument
from reservoir_hw.emulators.keysight.digitizer import InfiniiVision
from reservoir_hw.emulators.keysight.generator import Keysight33512B
from reservoir_hw.emulators.physics.devices import Ikeda
from reservoir_hw.emulators.red_pitaya import RedPitaya
from reservoir_hw.emulators.scpi.instrument import MessageDevice
from reservoir_hw.emulators.servers import HislipServer, SocketServer
from reservoir_hw.emulators.tektronix.digitizer import Mso54
from reservoir_hw.emulators.tektronix.generator import Afg3152C

_BENCH = BenchConfig()


@dataclass(frozen=True)
class Dialect:
    """A generator and a digitizer on a bench, and the words after `kind:` of the drivers that speak to them.

    Without `digitizer`, the generator is the digitizer, too. `bench` is what they are connected to if nobody says
    otherwise. What follows it is of use in a reservoir file: the half of each range of the digitizer (empty: it has
    any), samples of the generator for each node, and of the digitizer (None: the default).
    """

    generator_kind: str
    generator: Callable[[VirtualBench], MessageDevice]
    digitizer_kind: str
    digitizer: Callable[[VirtualBench], MessageDevice] | None = None
    terminator: bytes = b"\n"
    hislip: bool = True
    bench: BenchConfig = _BENCH
    full_scales_v: tuple[float, ...] = ()
    points_per_node: int = 10
    samples_per_node: float | None = None


DIALECTS = {
    "keysight": Dialect("keysight_33500", Keysight33512B, "keysight_infiniivision", InfiniiVision),
    "tektronix": Dialect(
        "tektronix_afg3000",
        Afg3152C,
        "tektronix_mso",
        partial(Mso54, auxiliary_input=True),
        # It takes no more samples than it is asked for.
        samples_per_node=32.0,
    ),
    "red_pitaya": Dialect(
        "red_pitaya",
        RedPitaya,
        "red_pitaya",
        terminator=b"\r\n",
        hislip=False,
        # Both halves have one clock. The outputs reach 1 V, and only without a termination: so there is an amplifier.
        bench=BenchConfig(
            inputs={1: Cable(output=1, device=Ikeda(), amplification=5.0), 2: Cable(output=1)},
            termination_ohm=None,
            digitizer_ppm=0.0,
        ),
        full_scales_v=(1.0, 20.0),
        # Its memories are short.
        points_per_node=2,
        samples_per_node=3.2,
    ),
}


def dialect_named(name: str, generator: str | None = None) -> Dialect:
    """A dialect, with the generator of another one if that is named.

    Raises `ConfigurationError` with the names that there are, or where both are one instrument.
    """
    if generator is not None:
        this, other = dialect_named(name), dialect_named(generator)
        for one in (this, other):
            if one.digitizer is None:
                raise ConfigurationError(
                    f"a {one.generator_kind} is generator and digitizer in one: leave out --generator"
                )
        return replace(this, generator_kind=other.generator_kind, generator=other.generator)
    try:
        return DIALECTS[name]
    except KeyError:
        raise ConfigurationError(f"there is no dialect {name!r}; there are: {', '.join(DIALECTS)}") from None


@dataclass(frozen=True)
class Lab:
    """The bench, and the VISA addresses of its instruments; they may be one at one address."""

    bench: VirtualBench
    generator: str
    digitizer: str


@contextlib.contextmanager
def virtual_lab(
    dialect: Dialect,
    config: BenchConfig | None = None,
    *,
    hislip: bool = False,
    port: int = 0,
    log: Path | None = None,
    faults: FaultPlan | None = None,
) -> Iterator[Lab]:
    """Emulated instruments, served in threads while the block runs.

    Args:
        dialect: What they understand.
        config: The bench, and the device under test on it; by default the dialect's.
        hislip: They are reached by HiSLIP, and not by raw sockets.
        port: Of the generator; the digitizer has the next one. 0: any that are free.
        log: Where the events of the outputs are written to (see `EventLog`).
        faults: What goes wrong.

    Raises `ConfigurationError` if a port is taken, or for HiSLIP where the instruments have none.
    """
    if hislip and not dialect.hislip:
        raise ConfigurationError(f"a {dialect.generator_kind} is reached by a raw socket only: leave out --hislip")
    with contextlib.ExitStack() as held:
        bench = held.enter_context(VirtualBench(config or dialect.bench, log))
        # The file may say that an earlier process left them on.
        for channel in bench.outputs:
            bench.log.write("off", channel, 0.0, volts=0.0)
        planned = faults or FaultPlan()

        def served(device: MessageDevice, faults: list[Fault], port: int) -> str:
            faulty = FaultyInstrument(device, faults)
            if hislip:
                return held.enter_context(HislipServer(faulty, port=port))
            return held.enter_context(SocketServer(faulty, port=port, terminator=dialect.terminator))

        if dialect.digitizer is None:
            address = served(dialect.generator(bench), planned.faults, port)
            yield Lab(bench, address, address)
            return
        generator = served(dialect.generator(bench), planned.of("generator"), port)
        yield Lab(bench, generator, served(dialect.digitizer(bench), planned.of("digitizer"), port and port + 1))
