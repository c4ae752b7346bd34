"""How the channels of a task, or of the layer of a model, meet the inputs of a device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.signal import Mask, MaskConfig
from reservoir_hw.core.spec import Counters, ReservoirSpec
from reservoir_hw.core.words import counted

FILLED = 0.9
"""Share of a device's range that scaled inputs fill: later ones, and answers that are fed back, may go further."""

# Where nobody says how large inputs are, they are taken as numbers of variance 1, which seldom lie further out.
_DEVIATIONS = 3.0


@dataclass(frozen=True)
class Channels:
    """What a reservoir is driven with.

    Every input lies in `range`. With `one_hot` one channel has its upper end and all others its lower one. `length` is
    the most that the vector of all channels measures. These are declared by whoever drives the reservoir, never
    measured. With `states` the states of all nodes are fed back on further channels.
    """

    count: int
    range: tuple[float, float] | None = None
    one_hot: bool = False
    length: float | None = None
    states: bool = False

    @classmethod
    def of(cls, inputs: int | Channels) -> Channels:
        """So many channels, of which no more is known."""
        return inputs if isinstance(inputs, Channels) else cls(inputs)

    def of_device(self, spec: ReservoirSpec) -> Channels:
        """All of them, for a device whose number of nodes is known."""
        return Channels(self.count + spec.nodes) if self.states else self

    def behind(self, mask: Mask) -> tuple[float, float] | None:
        """The least and the greatest that reaches any input of the device behind a mask, None where nobody knows."""
        found = []
        if self.range is not None:
            low, high = self.range
            if self.one_hot:
                ends = low * mask.matrix.sum(axis=1) + (high - low) * np.stack([mask.matrix.min(1), mask.matrix.max(1)])
                # At rest all channels are 0.
                ends = np.stack([np.minimum(ends[0], 0.0), np.maximum(ends[1], 0.0)])
            else:
                corners = np.stack([low * mask.matrix, high * mask.matrix])
                ends = np.stack([corners.min(axis=0).sum(axis=1), corners.max(axis=0).sum(axis=1)])
            found.append(ends + mask.bias)
        if self.length is not None:
            reach = self.length * np.linalg.norm(mask.matrix, axis=1)
            found.append(mask.bias + np.stack([-reach, reach]))
        if not found:
            return None
        low, high = np.max([ends[0] for ends in found], axis=0), np.min([ends[1] for ends in found], axis=0)
        return float(low.min()), float(high.max())


def into_range(extremes: tuple[float, float], limits: tuple[float, float]) -> tuple[float, float]:
    """Factor and offset that bring `extremes` to the ends of the middle nine tenths of `limits`, rounded."""
    width = limits[1] - limits[0]
    gain = float(f"{FILLED * width / (extremes[1] - extremes[0]):.3g}")
    return gain, round(sum(limits) / 2 - gain * sum(extremes) / 2, 3 - math.ceil(math.log10(width))) + 0.0


def chosen_mask(
    asked: MaskConfig | Literal["none"] | None,
    channels: Channels,
    spec: ReservoirSpec,
    *,
    clips: bool,
    seed: int,
    kept: MaskConfig | None = None,
) -> MaskConfig | None:
    """The mask in front of a device, with its seed: the one that was asked for, or else what `meeting` says.

    Where one is needed, that which was `kept` of a training counts: another would be another reservoir. Raises
    `ConfigurationError` where one is needed and `asked` refuses it, and for one that leaves the device's range.
    """
    if asked == "none":
        if channels.count != spec.inputs:
            what = f"{counted(channels.count, 'channel')} for {counted(spec.inputs, 'input')} of {spec.identity.name}"
            raise ConfigurationError(f"{what}, and `input_mask: none` refuses to spread them")
        return None
    if asked is None:
        scaled = kept is not None and kept.kind == "one_to_one"
        if kept is None or (channels.count == spec.inputs and not scaled):
            return meeting(channels, spec, clips=clips, seed=seed)
        if not clips and spec.input_range is not None:
            built = kept.build(spec.inputs, channels.count)
            try:
                check_within(built, channels, spec.input_range)
            except ConfigurationError:
                raise ConfigurationError(
                    "behind the mask that the readout was trained with, inputs leave the range of "
                    f"{spec.identity.name}, {spec.input_range}: train a readout there "
                    "(reservoir-hw run ... --reservoir)"
                ) from None
        return kept
    mask = asked if asked.seed is not None or asked.file is not None else asked.model_copy(update={"seed": seed})
    if not clips and spec.input_range is not None:
        check_within(mask.build(spec.inputs, channels.count), channels, spec.input_range)
    return mask


def about_mask(mask: MaskConfig, channels: int, inputs: int, device: str) -> str:
    """What a mask does that nobody asked for, in a sentence."""
    numbers = f"times {mask.scaling:g}, plus {mask.offset:g}"
    if mask.kind == "one_to_one":
        return f"inputs are scaled into the range of {device} ({numbers})"
    return (
        f"{counted(channels, 'channel')} {'is' if channels == 1 else 'are'} spread over {counted(inputs, 'input')} of "
        f"{device} by a mask ({mask.kind}, seed {mask.seed}, {numbers})"
    )


def box_within(mask: Mask, limits: tuple[float, float]) -> tuple[float, float] | None:
    """The widest range such that inputs within it, on whatever channels, stay within `limits` behind a mask."""
    reached = mask.matrix.any(axis=1)
    if not ((limits[0] <= mask.bias) & (mask.bias <= limits[1]))[~reached].all():
        return None
    matrix, bias = mask.matrix[reached], mask.bias[reached]
    total, reach = matrix.sum(axis=1), np.abs(matrix).sum(axis=1)
    furthest = np.abs([limits[0] - bias, limits[1] - bias]).max() / max(np.abs(total).max(), 1e-9)
    middles = np.linspace(-furthest, furthest, 4001)[:, None]
    room = np.minimum(limits[1] - bias - middles * total, bias + middles * total - limits[0]) / reach
    half = room.min(axis=1)
    best = int(half.argmax())
    if half[best] <= 0:
        return None
    return float(middles[best, 0] - half[best]), float(middles[best, 0] + half[best])


def check_within(mask: Mask, channels: Channels, limits: tuple[float, float]) -> None:
    """Raise `ConfigurationError` where inputs are sure to leave the range of a device behind a mask."""
    sure = channels.one_hot or (np.count_nonzero(mask.matrix, axis=1) <= 1).all()
    extremes = channels.behind(mask) if sure else None
    rounding = 1e-6 * (limits[1] - limits[0])
    if extremes is not None and (extremes[0] < limits[0] - rounding or extremes[1] > limits[1] + rounding):
        raise ConfigurationError(
            f"input_mask: behind it inputs lie in [{extremes[0]:.3g}, {extremes[1]:.3g}], outside the range "
            f"[{limits[0]:g}, {limits[1]:g}] of the device: change its scaling and offset, or leave input_mask out"
        )


def meeting(channels: Channels, spec: ReservoirSpec, *, clips: bool, seed: int) -> MaskConfig | None:
    """The mask by which channels meet the inputs of a device where the file names none; None where none is needed.

    Another number of channels is spread by weights that are drawn uniformly from `seed`. One factor and one offset
    keep what reaches the device within its range, as far as the channels declare theirs. As many channels as there are
    inputs are only scaled, where the device would refuse them.

    Raises `ConfigurationError` for a device that declares no range, and where nobody says in which range inputs lie and
    the device refuses what lies outside its own.
    """
    limits = spec.input_range
    if channels.count == spec.inputs:
        if clips or limits is None or channels.range is None:
            return None
        if limits[0] <= channels.range[0] and channels.range[1] <= limits[1]:
            return None
        gain, offset = into_range(channels.range, limits)
        return MaskConfig(kind="one_to_one", scaling=gain, offset=offset)
    what = f"{counted(channels.count, 'channel')} for {counted(spec.inputs, 'input')} of {spec.identity.name}"
    if limits is None and not spec.identity.simulated:
        raise ConfigurationError(
            f"{what}, which declares no input_range: nothing says how strong they may be; give it input_range, or "
            "write the mask out: input_mask: {kind: uniform, scaling: ...}"
        )
    drawn = MaskConfig(kind="uniform", seed=seed)
    extremes = channels.behind(drawn.build(spec.inputs, channels.count))
    # The sum of inputs of variance 1, each with a weight of variance 1/3, has this factor's inverse as deviation.
    alone = 1.0 if channels.one_hot else math.sqrt(3 / channels.count)
    if limits is None:
        gain, offset = float(f"{alone:.3g}"), 0.0
    elif extremes is not None:
        gain, offset = into_range(extremes, limits)
    elif clips:
        gain, offset = into_range((-_DEVIATIONS / alone, _DEVIATIONS / alone), limits)
    else:
        raise ConfigurationError(
            f"{what}, which refuses what lies outside [{limits[0]:g}, {limits[1]:g}], and nothing says in which range "
            "these channels lie: let it clip and count (out_of_range: clip), or write the mask out (input_mask:)"
        )
    return drawn.model_copy(update={"scaling": gain, "offset": offset})


# ---- The way of a caller's array to the device: library and dtype, shape, mask, range.


OutOfRange = Literal["error", "clip"]


class Inputs:
    """What a reservoir makes of the arrays that callers give, before its device gets them.

    Parameters
    ----------
    outer, inner
        What the reservoir declares to its callers, and what the device itself takes behind the mask.
    mask
        Spreads the callers' channels over the device's inputs; None: there is none.
    library, device
        Where the backend computes: "numpy", or "torch" on this device.
    out_of_range
        What becomes of values outside the device's range: refused, or clipped and counted in `counters`.
    limited
        Whether the device's range is looked at.
    check
        What the backend checks beyond that: gets the device's own inputs, and raises where it cannot take them.
    """

    def __init__(
        self,
        outer: ReservoirSpec,
        inner: ReservoirSpec,
        mask: Mask | None,
        *,
        library: Literal["numpy", "torch"],
        device: str,
        out_of_range: OutOfRange,
        limited: bool,
        counters: Counters,
        check: Callable[[Any], None],
    ) -> None:
        self.mask = mask
        self._spec, self._library, self._device = outer, library, device
        self._dtype = outer.numpy_dtype
        self._name, self._out_of_range, self._counters = inner.identity.name, out_of_range, counters
        self._check = check
        limits = inner.input_range if limited else None
        # The limits as this dtype has them: a float32 0.1 lies within [-0.1, 0.1].
        self._limits = None if limits is None else tuple(float(self._dtype.type(limit)) for limit in limits)

    def to_native(self, value: Any, name: str) -> Any:
        """An array or tensor as the backend takes it."""
        if not self._spec.differentiable:
            arrays.refuse_gradient(value)
        if self._library == "torch":
            return arrays.to_tensor(value, self._dtype, self._device, name)
        return arrays.to_numpy(value, self._dtype, name)

    def is_native(self, out: Any) -> bool:
        """Whether a backend can fill `out` itself."""
        if out is None or arrays.is_tensor(out) != (self._library == "torch"):
            return False
        if arrays.is_tensor(out):
            return str(out.device) == self._device and out.is_contiguous()
        return out.flags.c_contiguous

    def shaped(self, u: Any, batch: int) -> Any:
        """Native inputs (batch, time, inputs), or a `ShapeError`."""
        native = self.to_native(u, "inputs")
        if native.ndim != 3:
            raise ShapeError(
                f"inputs must be (batch, time, inputs), not {tuple(native.shape)}; "
                "one series (time, inputs) is taken after reset(1), and is u[None]"
            )
        if native.shape[2] != self._spec.inputs:
            raise ShapeError(
                f"inputs have {native.shape[2]} channels, {self._name} takes {self._spec.inputs} "
                f"(inputs are (batch, time, inputs) = {tuple(native.shape)})"
            )
        if native.shape[0] != batch:
            raise ShapeError(
                f"inputs hold {native.shape[0]} sequences, but the reservoir was reset for {batch}: "
                f"call reset({native.shape[0]}) first"
            )
        return native

    def for_device(self, u: Any) -> Any:
        """What the device gets for native inputs (batch, time, inputs): finite, behind the mask, within its range.

        Raises `InputRangeError` that names the first value which is none of this, unless it is clipped and counted.
        """
        if not arrays.all_finite(u):
            where = arrays.first_true(arrays.not_finite(u))
            raise InputRangeError(
                f"input at (sequence, step, channel) = {where} is {float(u[where])} (or masked), not a number"
            )
        inner = self.within_limits(u if self.mask is None else _masked(self.mask, u))
        self._check(inner)
        return inner

    def within_limits(self, u: Any) -> Any:
        """The device's own inputs, checked or clipped."""
        if self._limits is None or u.shape[1] == 0:
            return u
        low, high = self._limits
        smallest, largest = arrays.limits_of(u)
        if low <= smallest and largest <= high:
            return u
        outside = arrays.as_numpy((u < low) | (u > high))
        if self._out_of_range == "clip":
            self._counters.clipped += int(outside.sum())
            return u.clip(low, high)
        where = arrays.first_true(outside)
        raise InputRangeError(
            f"input at (sequence, step, channel) = {where} is {float(u[where]):g}, outside the range "
            f"[{low:g}, {high:g}] of {self._name} ({int(outside.sum())} values are); scale the inputs, or set "
            "out_of_range: clip to have them clipped and counted"
        )

    def check_out(self, out: Any, shape: Any) -> None:
        """Raise `ShapeError` unless `out` can take the states of inputs of this shape."""
        if out is None:
            return
        found, expected = tuple(getattr(out, "shape", ())), (*shape[:2], self._spec.nodes)
        # numpy makes the name of a dtype at every use. That takes longer than the rest of a call.
        known = type(out) is np.ndarray and out.dtype == self._dtype
        dtype = self._spec.dtype if known else str(getattr(out, "dtype", None)).removeprefix("torch.")
        if found != expected or dtype != self._spec.dtype:
            raise ShapeError(f"out must be {expected} of {self._spec.dtype}, not {found} of {dtype}")
        given: Any = out
        if given.requires_grad if arrays.is_tensor(out) else not given.flags.writeable:
            raise ShapeError("out cannot be written to: it is read-only, or a tensor that requires a gradient")


def _masked(mask: Mask, u: Any) -> Any:
    if not arrays.is_tensor(u):
        return mask.apply(u)
    matrix, bias = (arrays.import_torch("this reservoir").tensor(a).to(u) for a in (mask.matrix, mask.bias))
    masked = bias
    for k in range(mask.inputs):
        # Channel after channel: a matrix product would round by the number of rows.
        masked = masked + u[..., k, None] * matrix[:, k]
    return masked
