"""The mask: how inputs are spread over virtual nodes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, NonNegativeInt, model_validator

from reservoir_hw.core.arrays import all_finite
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.files import read_safetensors, write_safetensors
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import real_array

# Numbers in one block of masked inputs, so that a block stays in the cache while channel after channel is added.
_BLOCK = 1 << 15

# Taps of shift registers of maximum length, by their number of bits (Golomb 1967; Alfke 1996, XAPP052).
_TAPS = {
    2: (2, 1), 3: (3, 2), 4: (4, 3), 5: (5, 3), 6: (6, 5), 7: (7, 6), 8: (8, 6, 5, 4), 9: (9, 5), 10: (10, 7),
    11: (11, 9), 12: (12, 6, 4, 1), 13: (13, 4, 3, 1), 14: (14, 5, 3, 1), 15: (15, 14), 16: (16, 15, 13, 4),
    17: (17, 14), 18: (18, 11), 19: (19, 6, 2, 1), 20: (20, 17), 21: (21, 19), 22: (22, 21), 23: (23, 18),
    24: (24, 23, 22, 17),
}  # fmt: skip


class Mask:
    """A linear map from inputs to virtual nodes, matrix u + bias.

    Parameters
    ----------
    matrix
        (nodes, inputs).
    bias
        (nodes,); by default 0.
    """

    def __init__(self, matrix: ArrayLike, bias: ArrayLike | None = None) -> None:
        self.matrix = real_array("the matrix of a mask", matrix)
        if self.matrix.ndim != 2 or 0 in self.matrix.shape:
            raise ConfigurationError(f"the matrix of a mask must be (nodes, inputs), its shape is {self.matrix.shape}")
        self.bias = np.zeros(self.nodes) if bias is None else real_array("the bias of a mask", bias)
        if self.bias.shape != (self.nodes,):
            raise ConfigurationError(f"the bias of a mask must be ({self.nodes},), its shape is {self.bias.shape}")
        # Turn -0 into 0. `mask_inputs` of the delay loop skips inputs of 0, so a bias of -0 would stay. `apply` adds 0,
        # so it would become 0.
        self.matrix, self.bias = self.matrix + 0.0, self.bias + 0.0
        self.matrix.setflags(write=False)
        self.bias.setflags(write=False)

    @property
    def nodes(self) -> int:
        """Number of virtual nodes, or of inputs of the device that the mask feeds."""
        return self.matrix.shape[0]

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return self.matrix.shape[1]

    def apply(self, u: ArrayLike) -> NDArray[Any]:
        """Apply the mask to inputs (..., inputs); returns (..., nodes).

        The result is float32 for float32 inputs, else float64. It is the same to the last bit, however many rows are
        given at once.
        Raises `ShapeError` for another number of channels, `InputRangeError` for inputs that are not finite.
        """
        u = np.asarray(u)
        if u.ndim < 1 or u.shape[-1] != self.inputs:
            raise ShapeError(f"the mask takes inputs (..., {self.inputs}), their shape is {u.shape}")
        if u.dtype != np.float32:
            u = u.astype(np.float64)
        if not all_finite(u):
            raise InputRangeError(f"the mask was given {int((~np.isfinite(u)).sum())} inputs that are not finite")
        columns, bias = self.matrix.T.astype(u.dtype), self.bias.astype(u.dtype)
        rows = u.reshape(-1, self.inputs)
        masked = np.empty((len(rows), self.nodes), u.dtype)
        size = max(1, _BLOCK // self.nodes)
        for first in range(0, len(rows), size):
            # Channel after channel: a matrix product would round by the number of rows.
            block = masked[first : first + size]
            block[...] = bias
            for k, column in enumerate(columns):
                block += rows[first : first + size, k, None] * column
        return masked.reshape(*u.shape[:-1], self.nodes)

    def digest(self) -> str:
        """sha256 over the numbers, 64 hexadecimal digits; the same on every machine."""
        content = hashlib.sha256(f"{self.nodes} {self.inputs}".encode())
        for array in (self.matrix, self.bias):
            content.update(array.astype("<f8").tobytes())
        return content.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with `matrix` and `bias`."""
        from safetensors.numpy import save_file

        write_safetensors(path, save_file, {"matrix": np.ascontiguousarray(self.matrix), "bias": self.bias})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of `save`. Raises `ConfigurationError` if it is missing or something else."""
        arrays, _ = read_safetensors(path, "mask file")
        if set(arrays) != {"matrix", "bias"}:
            raise ConfigurationError(f"{path} holds {sorted(arrays)}, a mask has matrix and bias")
        return cls(arrays["matrix"], arrays["bias"])


class MaskConfig(Config):
    """A mask as it is drawn: `matrix` from `kind`, times `scaling`; bias uniform in ±`bias_scaling`, plus `offset`.

    - uniform: each weight uniform in [-1, 1];
    - binary: each weight -1 or 1 at random;
    - maximum_length: -1 or 1 from a shift register of maximum length, each input another section of its sequence
      (Appeltant et al. 2014);
    - chirp: a sine of rising frequency over the nodes, for each input shifted by its share of the nodes;
    - one_to_one: each input to the node of its own number, with weight 1.
    """

    kind: Literal["uniform", "binary", "maximum_length", "chirp", "one_to_one"] = "uniform"
    scaling: float | list[float] = Field(default=1.0, description="one number, or one for each input")
    bias_scaling: Annotated[float, Field(ge=0)] = 0.0
    offset: float = Field(default=0.0, description="added to what drives each node")
    chirp_cycles: tuple[float, float] | None = Field(
        default=None, description="frequency of a chirp at the first and the last node, in cycles over all nodes; "
        "by default [1, nodes / 4]"
    )  # fmt: skip
    seed: NonNegativeInt | None = Field(default=None, description="by default that of the reservoir")
    file: str | None = Field(default=None, description="a safetensors file of a saved mask instead of drawing one")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        fields = type(self).model_fields
        given = sorted(name for name in fields.keys() - {"file"} if getattr(self, name) != fields[name].default)
        if self.file is not None and given:
            raise ValueError(f"the mask in `file` decides about {', '.join(given)}; remove them")
        if self.chirp_cycles is not None and self.kind != "chirp":
            raise ValueError(f"chirp_cycles means nothing to a mask of kind {self.kind}")
        return self

    def check_inputs(self, inputs: int, section: str = "mask") -> None:
        """Raise `ConfigurationError` unless `scaling` of this section fits this number of input channels."""
        if isinstance(self.scaling, list) and len(self.scaling) != inputs:
            raise ConfigurationError(f"{section}.scaling has {len(self.scaling)} numbers for {inputs} input channels")

    def build(self, nodes: int, inputs: int, *, seed: int = 0) -> Mask:
        """The mask from `inputs` channels to `nodes` virtual nodes (or inputs of a device).

        `seed` counts where the configuration has none. Raises `ConfigurationError` for numbers that do not fit.
        """
        if self.file is not None:
            mask = Mask.load(self.file)
            if (mask.nodes, mask.inputs) != (nodes, inputs):
                raise ConfigurationError(
                    f"the mask in {self.file} takes {mask.inputs} inputs to {mask.nodes} nodes, "
                    f"not {inputs} inputs to {nodes} nodes"
                )
            return mask
        if nodes < 1 or inputs < 1:
            raise ConfigurationError(f"a mask needs at least one node and one input, not {nodes} and {inputs}")
        self.check_inputs(inputs)
        seed = seed if self.seed is None else self.seed
        matrix = self._matrix(nodes, inputs, generator(seed, "mask")) * np.asarray(self.scaling, np.float64)
        bias = self.bias_scaling * generator(seed, "mask bias").uniform(-1, 1, nodes)
        return Mask(matrix, bias + self.offset)

    def _matrix(self, nodes: int, inputs: int, rng: np.random.Generator) -> NDArray[np.float64]:
        if self.kind == "uniform":
            return rng.uniform(-1, 1, (inputs, nodes)).T
        if self.kind == "binary":
            return rng.integers(0, 2, (inputs, nodes)).T * np.float64(2.0) - 1.0
        if self.kind == "one_to_one":
            if nodes != inputs:
                raise ConfigurationError(f"a mask of kind one_to_one has as many nodes as inputs: {nodes} for {inputs}")
            return np.eye(nodes)
        if self.kind == "maximum_length":
            return maximum_length_sequence(nodes * inputs, rng.random()).reshape(inputs, nodes).T
        wave = chirp(nodes, self.chirp_cycles or (1.0, nodes / 4), rng.random())
        # Shifted in time, not in phase: sines that differ in phase alone span two dimensions.
        return np.stack([np.roll(wave, nodes * k // inputs) for k in range(inputs)], axis=1)


def maximum_length_sequence(length: int, start: float) -> NDArray[np.float64]:
    """±1 from the shortest linear feedback shift register whose period 2^m - 1 is at least `length`.

    `start` in [0, 1) chooses where in the period the sequence begins.
    Raises `ConfigurationError` beyond 2^24 - 1 values.
    """
    bits = next((m for m in _TAPS if 2**m - 1 >= length), None)
    if bits is None:
        raise ConfigurationError(f"a maximum-length sequence of {length} values needs more than 24 bits")
    # Every nonzero content of the register is one place in the period.
    content = 1 + int(start * (2**bits - 1))
    register = [content >> k & 1 for k in range(bits)]
    for n in range(bits, length):
        register.append(sum(register[n - tap] for tap in _TAPS[bits]) % 2)
    return 2.0 * np.array(register[:length]) - 1.0


def chirp(length: int, cycles: tuple[float, float], start: float) -> NDArray[np.float64]:
    """A sine whose frequency, in cycles per `length`, goes linearly from one value to another; `start` is its phase."""
    x = (np.arange(length) + 0.5) / length
    low, high = cycles
    return np.sin(2 * np.pi * (start + low * x + (high - low) * x**2 / 2))
