"""The dialects that emulated instruments speak: one line for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.bench import BenchConfig, Cable, VirtualBench
from reservoir_hw.emulators.keysight.digitizer import InfiniiVision
from reservoir_hw.emulators.keysight.generator import Keysight33512B
from reservoir_hw.emulators.physics.devices import Ikeda
from reservoir_hw.emulators.red_pitaya.board import RedPitaya
from reservoir_hw.emulators.scpi.instrument import MessageDevice
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
