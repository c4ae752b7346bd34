"""What the linear readouts share: parameters, learning chunk by chunk, answers, and their files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from reservoir_hw.core import arrays
from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import read_tensors, write_tensors
from reservoir_hw.core.threads import blas_threads
from reservoir_hw.readout.linear._ridge_solver import Array
from reservoir_hw.readout.linear.configuration import LinearConfig
from reservoir_hw.readout.linear.training_chunks import (
    Chunk,
    ChunkSource,
    Columns,
    SequencePosition,
    Widths,
    asked,
    check_finite,
    checked,
    chunks,
    in_numpy,
)

SINGLE_EPSILON = float(np.finfo(np.float32).eps)


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
    def of(cls, blocks: Sequence[Array], *, centred: bool = True, precision: float = SINGLE_EPSILON) -> Self:
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

    def arrays(self) -> dict[str, Array]:
        """What a file keeps of it."""
        found = {"weights": np.ascontiguousarray(self.weights), "bias": self.bias}
        if self.scale is not None:
            found |= {"centre": self.scale.centre, "spread": self.scale.spread}
        if self.target_spread is not None:
            found["target_spread"] = self.target_spread
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array], nodes: int) -> Self:
        """What was kept. Raises `KeyError` where it is incomplete."""
        scale = FeatureScale(arrays["centre"], arrays["spread"]) if "centre" in arrays else None
        return cls(arrays["weights"], arrays["bias"], nodes, scale, arrays.get("target_spread"))


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


def setting(name: str) -> Any:
    """A setting of a readout: it can be read, and is that of its configuration for good."""
    return property(lambda readout: getattr(readout.config, name))


class LeastSquaresReadout(ABC):
    """Linear readout y = W x + b: what `RidgeReadout`, `RLSReadout` and `LMSReadout` share.

    A derived class gives the `locals()` of its constructor to `__init__`, with the configuration that declares types
    and ranges of its parameters.

    Raises (methods): ConfigurationError, ShapeError, InputRangeError, NotSolved. A chunk that is refused leaves what
    was learned before untouched.
    """

    kind: ClassVar[str]
    """The name of this kind of readout in experiment files and in its own files."""
    takes_tensors = True

    config: Any
    """Its settings, as the configuration of its kind declares them."""
    standardise = setting("standardise")
    bias = setting("bias")
    n_samples_: int
    _largest: ClassVar[float]
    """States, inputs and targets above this are refused."""

    def __init__(self, declaration: type[LinearConfig], given: Mapping[str, Any]) -> None:
        parameters = {name: value for name, value in given.items() if name in declaration.model_fields}
        document = Document({"kind": self.kind, **parameters}, {(): type(self).__name__})
        self.config = declared = validate(declaration, document)
        self.washout, self.input_connection = declared.washout, declared.input_connection
        self.repetitions_ = 1
        self.reset()

    # ---- learning

    def reset(self) -> Self:
        """Forget the rows learned from."""
        self._widths: Widths | None = None
        self._position = SequencePosition(self.washout)
        return self

    def partial_fit(
        self,
        states: npt.ArrayLike,
        targets: npt.ArrayLike,
        inputs: npt.ArrayLike | None = None,
        *,
        new_sequence: bool = False,
    ) -> Self:
        """Learn from a chunk: (batch, time, nodes) or (time, nodes), targets and inputs likewise.

        A chunk continues the sequences of the previous one, with the same batch, unless `new_sequence`; the
        first chunk always starts sequences. It is with a new sequence that the washout begins again.
        Steps of the washout may hold anything, NaN included.
        Arrays may be torch tensors on any device; targets and inputs go where the states are.
        `solve` finishes learning. It may be called at any time, and learning can go on afterwards.
        """
        with blas_threads(0):
            self._learn(Chunk(states, targets, inputs, new_sequence))
        return self

    def fit(
        self,
        states: npt.ArrayLike | ChunkSource,
        targets: npt.ArrayLike | None = None,
        inputs: npt.ArrayLike | None = None,
    ) -> Self:
        """Forget everything, learn from all of this, solve.

        Either arrays as for `partial_fit`, each row of the batch a whole sequence; or, as the only argument,
        chunks: an iterable of `Chunk` or tuples (states, targets[, inputs[, new_sequence]]).
        """
        given = chunks(states, targets, inputs)
        self.reset()
        for chunk in given:
            with blas_threads(0):
                self._learn(chunk)
        with blas_threads(0):
            return self._finish()

    def solve(self) -> Self:
        """Finish learning: the weights are those of everything learned so far.

        Raises ConfigurationError if there are no rows to learn from.
        """
        with blas_threads(0):
            return self._finish()

    # ---- using

    @property
    @abstractmethod
    def report_(self) -> dict[str, Any]:
        """What to know about the last fit, ready for JSON. Raises NotSolved before there is a solution."""

    @property
    def weights_(self) -> npt.NDArray[np.float64]:
        """(outputs, features), in units of the raw features. Raises NotSolved before there is a solution."""
        return self._solved("weights_").weights

    @property
    def bias_(self) -> npt.NDArray[np.float64]:
        """(outputs,). Raises NotSolved before there is a solution."""
        return self._solved("bias_").bias

    def linear_form(self) -> LinearForm:
        """Weights and bias in units of the raw features, copied. Raises NotSolved before there is a solution."""
        form = self._solved("export")
        return form._replace(weights=form.weights.copy(), bias=form.bias.copy())

    def predict(self, states: Any, inputs: Any | None = None) -> Any:
        """Outputs (..., outputs) for states (..., nodes), whatever the leading axes: batch, time, both, none.

        float32 states (and inputs) give float32, computed in float32, or in float64 where large weights cancel that
        float32 would not hold; everything else float64. Nothing is learned.

        States that are a torch tensor give a tensor on the same device, computed there.
        """
        form = self._solved("predict")
        nodes = form.nodes
        x, u = asked(states, inputs, nodes, form.inputs)
        single = arrays.is_single(x) and (u is None or arrays.is_single(u))
        dtype = np.dtype(np.float32 if single else np.float64)
        computed = np.dtype(np.float64) if self._loses_in_single else dtype
        weights, bias = (arrays.like(array, x) for array in self._by_feature(form, computed))
        result = arrays.in_precision(x, computed) @ weights[:nodes]
        if u is not None:
            result += arrays.in_precision(arrays.like(u, x), computed) @ weights[nodes:]
        result += bias
        return arrays.in_precision(result, dtype)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, settings and figures as safetensors; an existing file is replaced as a whole."""
        form = self._solved("save")
        arrays, facts = self._memory()
        facts |= {
            "settings": self.config.arguments(),
            "report": self.report_,
            "nodes": form.nodes,
            "repetitions": self.repetitions_,
        }
        write_tensors(path, save_file, form.arrays() | arrays, facts, f"{self.kind} readout")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A readout that predicts as the saved one does; raises ConfigurationError for any other file."""
        arrays, facts = read_tensors(path, "numpy", f"{cls.kind} readout")
        try:
            readout = cls(**facts["settings"])
            readout.n_samples_ = int(facts["report"]["samples"])
            readout.repetitions_ = int(facts["repetitions"])
            readout._remember(arrays, facts, LinearForm.of_arrays(arrays, int(facts["nodes"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{os.fspath(path)} is not a complete {cls.kind} readout: {error!r}") from error
        return readout

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self.config.arguments().items() if value is not None)
        return f"{type(self).__name__}({given})"

    # ---- what kinds of readouts add

    _learns_on_device = False
    """Whether it learns from tensors where they are; else they are copied to the CPU."""

    _loses_in_single = False
    """Whether float32 would lose too much of the outputs, or nobody knows how much they move."""

    @abstractmethod
    def _learn(self, chunk: Chunk) -> Any:
        """Take in a chunk, or raise and leave everything as it was."""

    @abstractmethod
    def _finish(self) -> Self:
        """Compute the weights."""

    @abstractmethod
    def _solved(self, wanted_for: str) -> LinearForm:
        """The solution, not copied. Raises NotSolved where there is none."""

    def _by_feature(self, form: LinearForm, dtype: np.dtype) -> tuple[npt.NDArray, npt.NDArray]:
        """Weights (features, outputs) and bias (outputs,)."""
        return form.weights.T.astype(dtype, copy=False), form.bias.astype(dtype, copy=False)

    @abstractmethod
    def _memory(self) -> tuple[dict[str, npt.NDArray], dict[str, Any]]:
        """What the file holds besides what all readouts have: arrays, and facts for JSON."""

    @abstractmethod
    def _remember(self, arrays: Mapping[str, npt.NDArray], facts: Mapping[str, Any], form: LinearForm) -> None:
        """Take over the solution of a file. Raises KeyError, TypeError or ValueError if it does not fit together."""

    # ---- how

    def _checked(self, chunk: Chunk) -> tuple[Columns, int]:
        """A chunk that fits what came before, and how many of its steps are washed out."""
        chunk = chunk if self._learns_on_device else in_numpy(chunk)
        columns = checked(chunk, input_connection=self.input_connection, widths=self._widths)
        drop = self._position.washed_out(columns, new_sequence=chunk.new_sequence)
        check_finite(columns, drop, self._largest)
        return columns, drop

    def _no_rows(self) -> ConfigurationError:
        why = f"every sequence ended within the washout of {self.washout} steps"
        return ConfigurationError(
            f"there are no rows to learn from: {'call partial_fit first' if self._widths is None else why}"
        )
