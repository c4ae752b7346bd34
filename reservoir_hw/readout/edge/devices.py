"""The reservoirs beside a bundle: which of them stands where, whether it fits, and what another precision costs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, open_reservoir, reservoir_config
from reservoir_hw.readout.edge.bundle import Bundle
from reservoir_hw.readout.edge.manifest import Slot
from reservoir_hw.readout.edge.verification import deviation, golden_values

log = logging.getLogger(__name__)

AnyReservoir = Reservoir | ReservoirConfig | Mapping[str, Any] | str | os.PathLike[str]


def opened(
    reservoirs: AnyReservoir | Sequence[AnyReservoir] | None, slots: Sequence[Slot], stack: ExitStack
) -> list[Reservoir]:
    """One open reservoir for each slot; `stack` closes those that came as configurations.

    A configuration may name the reservoirs of several slots (`kind: layers`). Raises `ConfigurationError` for another
    number of them, before anything is opened.
    """
    found: list[Reservoir | ReservoirConfig] = []
    if isinstance(reservoirs, Reservoir | ReservoirConfig | Mapping | str | os.PathLike):
        reservoirs = [reservoirs]
    for one in reservoirs or ():
        if isinstance(one, Reservoir):
            found.append(one)
        else:
            width = slots[len(found)].inputs if len(found) < len(slots) else 1
            found += reservoir_config(one).for_layers(width, len(slots) - len(found))
    if len(found) != len(slots):
        needed = "holds its reservoirs and takes none" if not slots else f"needs {len(slots)} reservoirs, one per slot"
        raise ConfigurationError(f"the bundle {needed}, but {len(found)} were given")
    fitting = [
        one if isinstance(one, Reservoir) else one.keeping_mask(slot.input_mask).for_inputs(slot.inputs)
        for one, slot in zip(found, slots, strict=True)
    ]
    return [one if isinstance(one, Reservoir) else stack.enter_context(open_reservoir(one)) for one in fitting]


def check_repetitions(slots: Sequence[Slot], repetitions: int) -> None:
    """Raise `ConfigurationError` unless the model was trained with as many."""
    for slot in slots:
        if slot.repetitions != repetitions:
            raise ConfigurationError(
                f"the model was trained on states that are means of {slot.repetitions} repetitions, and is to be run "
                f"with {repetitions}: other noise than it knows; set repetitions={slot.repetitions}"
            )


def check_device(device: Reservoir, slot: Slot, number: int, *, any_device: bool) -> None:
    """Raise `ConfigurationError` unless `any_device` for another device, and for one of another shape."""
    spec = device.spec
    identity = spec.identity
    if not any_device and identity.fingerprint != slot.fingerprint:
        raise ConfigurationError(
            f"reservoir {number} is another device ({_named(identity.model_dump())}, fingerprint "
            f"{identity.fingerprint[:12]}) than the one that the model was trained on ({_named(slot.identity)}, "
            f"{slot.fingerprint[:12]}): train on this device, or say any_device=True (--any-device) and compare its "
            "response first (verify_probe, --verify-probe)"
        )
    for name in ("inputs", "nodes"):
        here, there = getattr(spec, name), getattr(slot, name)
        if here != there:
            raise ConfigurationError(f"reservoir {number} has {name} {here}, the model was trained on {name} {there}")


@dataclass(frozen=True)
class Cast:
    """The states of a device in another precision than those of the training.

    `error` is the certificate's at the lower of both precisions: its own, and what an output changes on the bundle's
    golden values when the states pass float32, in spreads (standard deviations of that output, which is `spread`). Both
    are None where the bundle has no golden values.
    """

    reservoir: int
    trained: str
    device: str
    error: float | None
    spread: float | None

    def __str__(self) -> str:
        cost = (
            "the bundle has no golden values to say what that costs"
            if self.error is None
            else f"on the golden states of the bundle, the graphs then differ from the model by at most "
            f"{self.error:.1e} of an output's standard deviation ({self.spread:.2g})"
        )
        return (
            f"reservoir {self.reservoir} gives states of {self.device}, and the model was trained on {self.trained}: "
            f"they are cast; {cost}"
        )


def casts_of(devices: Sequence[Reservoir], bundle: Bundle, sessions: Sequence[Any]) -> tuple[Cast, ...]:
    """What has to be cast, and what it costs; each is told once, as a warning."""
    manifest = bundle.manifest
    found = []
    for number, (device, slot) in enumerate(zip(devices, manifest.slots, strict=True)):
        if device.spec.dtype == slot.dtype:
            continue
        read = {crossing.states for crossing in manifest.crossings if crossing.slot == number}
        known = manifest.golden is not None
        worst = _through_single(bundle, sessions, golden_values(bundle), read) if known else (None, None)
        found.append(Cast(number, slot.dtype, device.spec.dtype, *worst))
        log.warning("%s", found[-1])
    return tuple(found)


def _through_single(
    bundle: Bundle, sessions: Sequence[Any], golden: Mapping[str, np.ndarray], rounded: set[str]
) -> tuple[float, float]:
    """Largest error, and the spread that it is measured in, where segments read `rounded` values in float32."""
    found = []
    for index, segment in enumerate(bundle.manifest.segments):
        if rounded & {value.name for value in segment.reads}:
            given = {value.name: golden[f"segment_{index}/{value.name}"].copy() for value in segment.reads}
            for name in rounded & set(given):
                given[name] = given[name].astype(np.float32).astype(given[name].dtype)
            worst = deviation(bundle, index, sessions[index], given, golden)
            certified = [one.error for one in bundle.manifest.certificate.segments if one.segment == index]
            found.append((worst.error + sum(certified), worst.spread))
    return max(found)


def _named(identity: Mapping[str, Any]) -> str:
    named = " ".join(str(identity[key]) for key in ("vendor", "model", "serial") if identity.get(key))
    # Of a bundle from elsewhere: a terminal would obey it.
    return "".join(letter if letter.isprintable() else "?" for letter in named)
