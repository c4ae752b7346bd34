"""What every linear readout computes, whatever found its weights."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import read_safetensors, write_safetensors
from reservoir_hw.readout.linear._decomposition import Array


@dataclass(frozen=True)
class FeatureScale:
    """Features x become (x - centre) / spread; all arrays are (features,)."""

    centre: Array
    spread: Array

    @classmethod
    def none(cls, features: int) -> Self:
        """Features as they are."""
        return cls(np.zeros(features), np.ones(features))

    @classmethod
    def of(cls, blocks: Sequence[Array], *, centred: bool, precision: float) -> Self:
        """From rows (..., features): mean and standard deviation, or 0 and root mean square.

        A feature that is constant up to `precision`, relative to its size, keeps its spread: it may come alive later.
        """
        rows = np.concatenate([block.reshape(-1, block.shape[-1]) for block in blocks])
        centre = rows.mean(axis=0) if centred else np.zeros(rows.shape[1])
        spread = np.sqrt(np.mean((rows - centre) ** 2, axis=0))
        constant = spread <= 16 * precision * np.abs(rows).max(axis=0)
        return cls(centre, np.where(constant, 1.0, spread))

    def standardised(self, rows: Array, *, bias: bool) -> Array:
        """Rows (..., features) for the update rule, with `bias` a constant 1 behind them."""
        result = np.empty((*rows.shape[:-1], rows.shape[-1] + bias))
        np.subtract(rows, self.centre, out=result[..., : rows.shape[-1]])
        result[..., : rows.shape[-1]] /= self.spread
        if bias:
            result[..., -1] = 1.0
        return result

    def unfolded(self, weights: Array, *, bias: bool) -> tuple[Array, Array]:
        """Weights (features, outputs) and bias (outputs,) for features as they are."""
        raw = weights[: len(self.spread)] / self.spread[:, None]
        offset = weights[-1] if bias else np.zeros(weights.shape[1])
        return raw, offset - self.centre @ raw


class LinearForm(NamedTuple):
    """y = W x + b, in float64. The features x are the states of `nodes` nodes, then the inputs, if it reads any.

    `weights` (outputs, features) and `bias` (outputs,) are those of the features as they are, standardisation folded
    in. `scale` is what the features were like in training, and `target_spread` (outputs,) how much the targets moved;
    None where the readout does not know it.
    """

    weights: Array
    bias: Array
    nodes: int
    scale: FeatureScale | None
    target_spread: Array | None = None

    @property
    def inputs(self) -> int:
        """How many of the features are inputs."""
        return self.weights.shape[1] - self.nodes


SINGLE_LIMIT = 1e-4
"""What rounding to float32 may change in an output, in standard deviations of it."""

REACH, SHARE = 3.0, 0.25
"""Standard deviations from the mean that a feature is taken to reach, and how much of the limit one rounding of all
products may take: the sums of products that large and of one sign are rounded as well."""


def loses_in_single(weights: Array, sizes: Array, spread: Array) -> bool:
    """Whether large weights that cancel move an output too far in float32.

    `weights` (outputs, features) of features of these `sizes` (features,); `spread` (outputs,) is that of outputs.
    """
    lost = (np.abs(weights) * sizes).sum(axis=1) * np.finfo(np.float32).epsneg
    return bool((lost > SINGLE_LIMIT * spread).any())


def sizes_of(scale: FeatureScale) -> Array:
    """How large features (features,) of this scale get."""
    return (np.abs(scale.centre) + REACH * scale.spread) / SHARE


# ---- The file of a linear readout: safetensors with a version, settings and a checksum; no pickle.


VERSION = 1


def write_readout(
    path: str | os.PathLike[str], arrays: dict[str, npt.NDArray], facts: dict[str, Any], kind: str = "ridge"
) -> None:
    """Replace the file at `path`."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(facts, sort_keys=True)
    metadata = {
        "format": _format(kind),
        "version": str(VERSION),
        "readout": text,
        "sha256": _checksum(arrays, text),
    }
    write_safetensors(path, save_file, arrays, metadata)


def read_readout(path: str | os.PathLike[str], kind: str = "ridge") -> tuple[dict[str, npt.NDArray], dict[str, Any]]:
    """Arrays and facts of a file; raises ConfigurationError if it is missing, damaged or something else."""
    name = os.fspath(path)
    arrays, metadata = read_safetensors(name, "readout file")
    if metadata.get("format") != _format(kind):
        raise ConfigurationError(
            f"{name} is a safetensors file, but no {kind} readout (format {metadata.get('format')!r}, "
            f"expected {_format(kind)!r})"
        )
    if metadata.get("version") != str(VERSION):
        raise ConfigurationError(
            f"{name} has version {metadata.get('version')} of the readout format, this package reads "
            f"version {VERSION}: use the package that wrote it, or a newer one"
        )
    text = metadata.get("readout", "")
    if metadata.get("sha256") != _checksum(arrays, text):
        raise ConfigurationError(f"{name} is damaged: its contents do not match their checksum; copy it again")
    return arrays, json.loads(text)


def _format(kind: str) -> str:
    return f"reservoir_hw.{kind}"


def _checksum(arrays: dict[str, npt.NDArray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
