"""Reservoirs without a device, to compare devices with: products of the last inputs, or the encoded inputs alone."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.backends.baselines.encoder_only import EncoderOnly as EncoderOnly
    from reservoir_hw.backends.baselines.nvar import Nvar as Nvar

__getattr__, __dir__ = lazy_names(__name__)
