"""Stored states as examples: the windows of shards, each shard learned from for some epochs before the next."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.readout.models.softmax import cross_entropy
from reservoir_hw.readout.training.examples import Examples, Order, drawn, shuffled
from reservoir_hw.readout.training.noise import inside
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.readout.training.shards import GivenShards, HarvestedShards, Shard


def are_shards(data: Any) -> bool:
    """Whether these are `HarvestedShards`, or a list of `Shard`."""
    # To ask for a first one can drive a device.
    if isinstance(data, HarvestedShards):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data) > 0 and isinstance(data[0], Shard)


class StoredStates(Examples):
    """Windows of `context` successive steps of shards, or whole sequences where these are shorter.

    A training visits one shard after the other, round and round, each for `options.shard_epochs` epochs and whole
    steps; the last step of a visit is filled up with rows of a further epoch. It holds one shard, on the device that
    learns from it. For an evaluation (`learned` is False) all are held in memory from the start.

    Its noise is where the noise of the devices is, and where it was before the shard that is held was driven: a
    training that goes on drives that shard again with the noise that it had.
    """

    def __init__(self, shards: HarvestedShards | Sequence[Shard], context: int, *, learned: bool) -> None:
        found = shards if isinstance(shards, HarvestedShards) else GivenShards(shards)
        purpose = "to learn from" if learned else "to validate with"
        if not len(found):
            raise ConfigurationError(f"there are no shards {purpose}")
        shapes = [found.shape(number) for number in range(len(found))]
        for number, (sequences, steps) in enumerate(shapes):
            if not sequences or not steps:
                raise ConfigurationError(
                    f"shard {number} {purpose} is empty: it has {sequences} sequences of {steps} steps"
                )
        self._shards, self._context = found, context
        self.lengths = min(context, shapes[0][1])
        self._counts = [sequences * (steps // min(context, steps)) for sequences, steps in shapes]
        self._begins = np.cumsum([0, *self._counts])
        self._noise = found.noise
        # A shard, and where the noise was before it was driven: the one held, and one that an interruption has lost.
        self._driven: tuple[int, dict[str, np.ndarray]] | None = None
        self._lost: tuple[int, dict[str, np.ndarray]] | None = None
        self._held = {} if learned else {number: self._windows_in(number) for number in range(len(found))}
        self.noise = self

    def __len__(self) -> int:
        return int(self._begins[-1])

    @property
    def identity(self) -> dict[str, Any]:
        """That of the shards."""
        return self._shards.identity

    def items(self, numbers: np.ndarray, device: torch.device) -> list[Tensor]:
        """States (windows, context, features) and targets (windows, context, ...). Those of a step are of one shard."""
        shards = np.searchsorted(self._begins, numbers, side="right") - 1
        parts = []
        for shard in sorted({*shards.tolist()} or {0}):
            held = self._on(shard, device)
            chosen = torch.from_numpy(numbers[shards == shard] - self._begins[shard]).to(held[0].device)
            parts.append([tensor[chosen] for tensor in held])
        found = parts[0] if len(parts) == 1 else [torch.cat(several) for several in zip(*parts, strict=True)]
        return [tensor.to(device) for tensor in found]

    def loss(self, model: Any) -> Callable[..., Tensor]:
        """Of a readout, states -> logits: the mean cross-entropy of tokens."""
        return functools.partial(_loss, model)

    # ---- visits

    def order(self, options: TrainingOptions) -> Order:
        """Rows of one step are of one visit."""
        make = drawn if options.windows == "random" else shuffled
        number, begins = len(self._counts), np.cumsum([0, *self._visits(options)])

        @functools.lru_cache(maxsize=1)
        def within(visit: int) -> Order:
            # The first visit has the order of a training on windows.
            name = "windows" if visit == 0 else f"windows visit {visit}"
            return make(self._counts[visit % number], options.seed, name)

        def order(first: int, stop: int) -> np.ndarray:
            round_, rest = divmod(first // options.windows_per_step, int(begins[-1]))
            shard = int(np.searchsorted(begins, rest, side="right")) - 1
            begin = (round_ * int(begins[-1]) + int(begins[shard])) * options.windows_per_step
            return self._begins[shard] + within(round_ * number + shard)(first - begin, stop - begin)

        return order

    def steps(self, options: TrainingOptions) -> int:
        """Raises `ConfigurationError` for epochs that no whole round makes."""
        if options.steps is not None:
            return options.steps
        assert options.epochs is not None
        rounds, rest = divmod(options.epochs, options.shard_epochs)
        if rest:
            raise ConfigurationError(
                f"epochs {options.epochs} must be a multiple of shard_epochs {options.shard_epochs}, the epochs on one "
                "shard before the next"
            )
        return rounds * sum(self._visits(options))

    def evaluated(self, most: int | None) -> np.ndarray:
        """All of them."""
        return super().evaluated(None)

    def _visits(self, options: TrainingOptions) -> list[int]:
        """The steps of a visit to each shard."""
        return [-(-count * options.shard_epochs // options.windows_per_step) for count in self._counts]

    def _on(self, number: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if number not in self._held:
            self._held.clear()
            self._drives(number)
            states, targets = self._windows_in(number)
            # A shard lies where it is learned from: it is read many times.
            self._held[number] = states.to(device), targets.to(device)
        return self._held[number]

    def _windows_in(self, number: int) -> tuple[Tensor, Tensor]:
        states, targets = self._shards[number].tensors.values()
        context = min(self._context, states.shape[1])
        kept = states.shape[1] // context * context
        return (
            states[:, :kept].reshape(-1, context, states.shape[2]),
            targets[:, :kept].reshape(-1, context, *targets.shape[2:]),
        )

    # ---- noise

    @property
    def noisy(self) -> bool:
        """Whether shards that are driven again have noise."""
        return self._noise is not None and self._noise.noisy

    def kept(self) -> dict[str, np.ndarray]:
        """Where the noise is, and where it was before the shard that is held was driven."""
        now = {} if self._noise is None else self._noise.kept()
        shard, before = self._driven or (0, {})
        # A device that did not know its state when it was driven has no noise to go back to.
        if not now or not before:
            return {}
        found = {f"now/{name}": array for name, array in now.items()}
        return {"shard": np.array([shard]), **{f"before/{name}": array for name, array in before.items()}, **found}

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        """Bring the noise to where it was; the shard that was held will be driven with the noise that it had."""
        if self._noise is not None:
            self._noise.restore(inside(kept, "now"))
            self._lost = int(kept["shard"][0]), inside(kept, "before")

    def _drives(self, number: int) -> None:
        """Keep where the noise is before a shard is driven; first bring it to where it was, if this one was lost."""
        if self._noise is None:
            return
        if self._lost is not None and self._lost[0] == number:
            self._noise.restore(self._lost[1])
        self._driven, self._lost = (number, self._noise.kept()), None


def _loss(readout: nn.Module, states: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of targets (rows, context) under the logits for states (rows, context, features)."""
    parameter = next(readout.parameters())
    expected = getattr(readout, "features", states.shape[-1])
    if states.shape[-1] != expected:
        raise ShapeError(f"the states of the shards have {states.shape[-1]} features, the readout takes {expected}")
    return cross_entropy(readout, states.to(parameter.dtype), targets)
