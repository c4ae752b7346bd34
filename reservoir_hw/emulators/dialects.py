"""The dialects that emulated instruments speak: one line for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.bench import VirtualBench
from reservoir_hw.emulators.keysight.digitizer import InfiniiVision
from reservoir_hw.emulators.keysight.generator import Keysight33512B
from reservoir_hw.emulators.scpi.instrument import MessageDevice
from reservoir_hw.emulators.tektronix.digitizer import Mso54
from reservoir_hw.emulators.tektronix.generator import Afg3152C


@dataclass(frozen=True)
class Dialect:
    """A generator and a digitizer on a bench, and the words after `kind:` of the drivers that speak to them."""

    generator_kind: str
    generator: Callable[[VirtualBench], MessageDevice]
    digitizer_kind: str
    digitizer: Callable[[VirtualBench], MessageDevice]


DIALECTS = {
    "keysight": Dialect("keysight_33500", Keysight33512B, "keysight_infiniivision", InfiniiVision),
    "tektronix": Dialect("tektronix_afg3000", Afg3152C, "tektronix_mso", partial(Mso54, auxiliary_input=True)),
}


def dialect_named(name: str, generator: str | None = None) -> Dialect:
    """A dialect, with the generator of another one if that is named.

    Raises `ConfigurationError` with the names that there are.
    """
    if generator is not None:
        other = dialect_named(generator)
        return replace(dialect_named(name), generator_kind=other.generator_kind, generator=other.generator)
    try:
        return DIALECTS[name]
    except KeyError:
        raise ConfigurationError(f"there is no dialect {name!r}; there are: {', '.join(DIALECTS)}") from None
