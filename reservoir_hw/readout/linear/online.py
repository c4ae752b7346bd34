"""Online readouts: linear, like ridge regression, and learning with every step."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ReservoirError, ShapeError
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.readout.linear._answers import linear_answers
from reservoir_hw.readout.linear._least_mean_squares import LeastMeanSquares
from reservoir_hw.readout.linear._readout_file import read_readout, write_readout
from reservoir_hw.readout.linear._recursive import RecursiveLeastSquares
from reservoir_hw.readout.linear._spectrum import EPSILON, Array
from reservoir_hw.readout.linear.chunks import (
    Chunk,
    ChunkSource,
    Columns,
    Position,
    Widths,
    check_finite,
    checked,
    chunk_source,
)
from reservoir_hw.readout.linear.conditioning import NotSolved
from reservoir_hw.readout.linear.linear_form import LinearForm
from reservoir_hw.readout.linear.scale import Scale

# Rows that are converted to float64 at once.
_ROWS = 4096
# Of states and targets: products of larger numbers with covariances would leave the range of float64.
_LARGEST = 1e20
# Of weights, which got there by diverging.
_DIVERGED = 1e30


class _Rule(Protocol):
    """How weights (features, outputs) are updated."""

    weights: Array
    steps: int

    def learn(self, rows: Array, targets: Array) -> Array:
        """From (steps, lanes, features), (steps, lanes, outputs) to the answers before each step was learned."""
        ...

    def memory(self) -> dict[str, Array]:
        """What it needs, beside weights and steps, to go on."""
        ...

    def remember(self, memory: Mapping[str, Array]) -> None:
        """Go on from a `memory`; raises KeyError or ValueError where that does not fit."""


class OnlineReadout(ABC):
    """Linear readout y = W x + b that learns with every step: what `RLSReadout` and `LMSReadout` share.

    It is used like a `RidgeReadout`. What is more, it can learn while it is used:

        for states, target in ...:                       # on a device that drifts
            output = readout.step(states, target)        # the answer first, then the target is learned

        outputs = readout.follow(states, targets)        # the same for a chunk, many times as fast

    Sequences of a batch are driven side by side: a step of all of them is answered before any of it is learned. What
    was learned goes on over sequences; steps of the washout are answered, but not learned.

    With `standardise` the rule sees (x - mean) / standard deviation over the first `standardise_steps` steps (without
    a bias x / root mean square), so that a penalty or a rate means the same for any device. These steps are held back
    and answered with 0; when they are there, or at `solve`, they are learned. Everything is computed in float64.

    Attributes
    ----------
    weights_ : (outputs, features), in units of the raw features: nodes, then inputs if `input_connection`.
    bias_ : (outputs,).
    n_samples_ : Rows learned from.
    report_ : Figures for the provenance, ready for JSON.
    node_names_ : None, or names of the nodes, set by the caller; saved with the weights.
    repetitions_ : Drives that each state was the mean of, set by the caller; saved with the weights.

    Raises (methods): ConfigurationError, ShapeError, InputRangeError, NotSolved. A chunk that is refused leaves what
    was learned before untouched.
    """

    kind: str

    def __init__(
        self, *, standardise: bool, standardise_steps: int, bias: bool, input_connection: bool, washout: int
    ) -> None:
        self.standardise = bool(standardise)
        self.standardise_steps = whole_number("standardise_steps", standardise_steps, least=2)
        self.bias = bool(bias)
        self.input_connection = bool(input_connection)
        self.washout = whole_number("washout", washout, least=0)
        self.node_names_: tuple[str, ...] | None = None
        self.repetitions_ = 1
        self.reset()

    @abstractmethod
    def _new_rule(self, features: int, outputs: int) -> _Rule:
        """The update rule, untrained."""

    @abstractmethod
    def _rule_settings(self) -> dict[str, Any]:
        """What of the constructor's arguments is the rule's own, ready for JSON."""

    # ---- learning

    def reset(self) -> Self:
        """Forget everything that was learned."""
        self._widths: Widths | None = None
        self._rule: _Rule | None = None
        self._scale: Scale | None = None
        self._held: list[tuple[Array, Array]] = []
        self._precision = 0.0
        self._position = Position(self.washout, 1, 1)
        self.n_samples_ = 0
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

        A chunk continues the sequences of the previous one, with the same batch, unless `new_sequence`; the first
        chunk always starts sequences. It is with a new sequence that the washout begins again. Steps of the washout
        may hold anything, NaN included.
        """
        self._learn(Chunk(states, targets, inputs, new_sequence))
        return self

    def follow(
        self,
        states: npt.ArrayLike,
        targets: npt.ArrayLike,
        inputs: npt.ArrayLike | None = None,
        *,
        new_sequence: bool = False,
    ) -> npt.NDArray:
        """Learn from a chunk as `partial_fit` does, and return the answer to each step as it was before its update.

        (batch, time, outputs) or (time, outputs); float32 where states and inputs are. A target is taken to be known
        before the next step is answered. Where it is known later only, as in a forecast over many steps, these
        answers are better than any that could have been given.
        """
        columns, answers = self._learn(Chunk(states, targets, inputs, new_sequence))
        single = columns.states.dtype == np.float32 and (columns.inputs is None or columns.inputs.dtype == np.float32)
        answers = answers.astype(np.float32 if single else np.float64, copy=False)
        return answers if np.ndim(states) == 3 else answers[0]

    def step(
        self,
        states: npt.ArrayLike,
        target: npt.ArrayLike,
        inputs: npt.ArrayLike | None = None,
        *,
        new_sequence: bool = False,
    ) -> npt.NDArray:
        """One step: the answer to states (batch, nodes) or (nodes,), computed before the target is learned."""
        x, y = np.asarray(states), np.asarray(target)
        if x.ndim not in (1, 2):
            raise ShapeError(f"a step takes states (batch, nodes) or (nodes,), not {x.shape}; a chunk goes to follow()")
        u = None if inputs is None else np.asarray(inputs)
        wrong = [array.shape for array in (y, u) if array is not None and array.ndim != x.ndim]
        if wrong:
            raise ShapeError(
                f"target and inputs of a step need as many axes as its states {x.shape}, got {wrong[0]}; a single "
                "column is target[..., None]"
            )
        if x.ndim == 1:
            return self.follow(x[None], y[None], None if u is None else u[None], new_sequence=new_sequence)[0]
        given = None if u is None else u[:, None]
        return self.follow(x[:, None], y[:, None], given, new_sequence=new_sequence)[:, 0]

    def fit(
        self,
        states: npt.ArrayLike | ChunkSource,
        targets: npt.ArrayLike | None = None,
        inputs: npt.ArrayLike | None = None,
    ) -> Self:
        """Forget everything, then learn from all of this: arrays, or chunks as for `RidgeReadout.fit`."""
        if targets is not None:
            chunks: Any = [Chunk(states, targets, inputs, True)]  # type: ignore[arg-type]
        elif (
            inputs is None and not isinstance(states, np.ndarray) and (callable(states) or hasattr(states, "__iter__"))
        ):
            chunks = states
        else:
            raise ConfigurationError("fit needs targets beside the states (or chunks of both as its only argument)")
        source, _ = chunk_source(chunks)
        self.reset()
        for chunk in source():
            self._learn(chunk)
        return self.solve()

    def solve(self) -> Self:
        """Finish learning: what is left to do is to learn the steps that were held back, if there are any.

        Raises ConfigurationError where there is no row to learn from. Learning can go on afterwards.
        """
        if not self.n_samples_ or self._rule is None:
            washed = f"every sequence ended within the washout of {self.washout} steps"
            raise ConfigurationError(
                f"there are no rows to learn from: {'call partial_fit first' if self._rule is None else washed}"
            )
        if self._scale is None:
            self._scale = self._scale_by(self._held)
            for rows, targets in self._held:
                self._rule.learn(self._scale.standardised(rows, bias=self.bias), targets)
            self._held = []
        return self

    # ---- using

    @property
    def weights_(self) -> Array:
        """(outputs, features)."""
        return self._unfolded("weights_")[0].T.copy()

    @property
    def bias_(self) -> Array:
        """(outputs,)."""
        return self._unfolded("bias_")[1]

    @property
    def report_(self) -> dict[str, Any]:
        """See the class. Raises NotSolved before anything was learned."""
        widths, _, _ = self._trained("report_")
        return {"samples": self.n_samples_, "features": widths.features, **self._settings(), "notes": []}

    def predict(
        self,
        states: npt.ArrayLike,
        inputs: npt.ArrayLike | None = None,
        out: npt.NDArray | None = None,
    ) -> npt.NDArray:
        """Outputs (..., outputs) for states (..., nodes), whatever the leading axes; nothing is learned.

        float32 states (and inputs) give float32, computed in float32; everything else float64. `out` is
        filled and returned if given; it must have exactly that shape and dtype.
        """
        widths, _, _ = self._trained("predict")

        def parameters(dtype: np.dtype) -> tuple[npt.NDArray, npt.NDArray]:
            weights, bias = self._unfolded("predict")
            return weights.astype(dtype, copy=False), bias.astype(dtype, copy=False)

        return linear_answers(
            states, inputs, out, widths=widths, input_connection=self.input_connection, parameters=parameters
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, settings and what learning goes on from as safetensors; a file is replaced as a whole."""
        widths, rule, scale = self._trained("save")
        names = self.node_names_
        if names is not None and len(names) != widths.nodes:
            raise ConfigurationError(f"node_names_ has {len(names)} names for {widths.nodes} nodes")
        arrays = {
            "weights": self.weights_,
            "bias": self.bias_,
            "rule.weights": rule.weights,
            **{f"rule.{name}": array for name, array in rule.memory().items()},
            "centre": scale.centre,
            "spread": scale.spread,
        }
        facts = {
            "settings": self._settings(),
            "report": self.report_,
            "nodes": widths.nodes,
            "steps": rule.steps,
            "node_names": None if names is None else list(names),
            "repetitions": self.repetitions_,
        }
        write_readout(path, arrays, facts, self.kind)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A readout that predicts as the saved one does, and goes on learning as it would, with new sequences.

        Raises ConfigurationError for any other file.
        """
        arrays, facts = read_readout(path, cls.kind)
        name = os.fspath(path)
        try:
            readout = cls(**facts["settings"])
            outputs, features = arrays["weights"].shape
            nodes = int(facts["nodes"])
            readout._widths = Widths(nodes, features - nodes, outputs)
            readout._scale = Scale(arrays["centre"], arrays["spread"])
            rule = readout._rule = readout._new_rule(features + readout.bias, outputs)
            rule.weights[:], rule.steps = arrays["rule.weights"], int(facts["steps"])
            rule.remember({key.removeprefix("rule."): array for key, array in arrays.items()})
            readout.n_samples_ = int(facts["report"]["samples"])
            names = facts["node_names"]
            readout.node_names_ = None if names is None else tuple(names)
            readout.repetitions_ = int(facts["repetitions"])
            consistent = (
                0 < nodes <= features
                and readout.input_connection == (features > nodes)
                and arrays["centre"].shape == arrays["spread"].shape == (features,)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{name} is not a complete readout: {error!r}") from error
        if not consistent:
            raise ConfigurationError(f"{name} does not fit together: weights, scales and nodes disagree")
        return readout

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self._settings().items())
        return f"{type(self).__name__}({given})"

    # ---- how

    def _learn(self, chunk: Chunk) -> tuple[Columns, Array]:
        """The checked chunk, and the answer (batch, time, outputs) to each step before its update."""
        columns = checked(chunk, input_connection=self.input_connection, widths=self._widths)
        widths = columns.widths
        drop = self._position.check(columns, new_sequence=chunk.new_sequence)
        check_finite(columns, drop)
        _check_size(columns, drop)
        rule = self._rule or self._new_rule(widths.features + self.bias, widths.outputs)
        scale, held = self._scale, self._held
        if scale is None and not self.standardise:
            scale = Scale.none(widths.features)
        self._precision = max(self._precision, _precision(columns))
        weights, steps = rule.weights.copy(), rule.steps
        answers = np.zeros((columns.batch, columns.steps, widths.outputs))
        start = drop
        with np.errstate(over="ignore", invalid="ignore"):
            if scale is None:
                start = min(drop + self.standardise_steps - sum(len(rows) for rows, _ in held), columns.steps)
                held = [*held, _rows(columns, drop, start)]
                if sum(len(rows) for rows, _ in held) == self.standardise_steps:
                    scale = self._scale_by(held)
                    for rows, targets in held:
                        rule.learn(scale.standardised(rows, bias=self.bias), targets)
                    held = []
            elif drop:
                rows, _ = _rows(columns, 0, drop)
                answers[:, :drop] = (scale.standardised(rows, bias=self.bias) @ rule.weights).swapaxes(0, 1)
            size = max(1, _ROWS // columns.batch)
            for first in range(start, columns.steps, size):
                last = min(first + size, columns.steps)
                rows, targets = _rows(columns, first, last)
                assert scale is not None
                answers[:, first:last] = rule.learn(scale.standardised(rows, bias=self.bias), targets).swapaxes(0, 1)
        # Written so that NaN is no small number.
        if not np.abs(rule.weights).max() <= _DIVERGED:
            rule.weights, rule.steps = weights, steps
            raise self._diverged()
        self._rule, self._widths, self._scale, self._held = rule, widths, scale, held
        self._position.segments(columns, new_sequence=chunk.new_sequence)
        self.n_samples_ += columns.batch * (columns.steps - drop)
        return columns, answers

    def _diverged(self) -> ReservoirError:
        return InputRangeError(f"the weights of this readout exceed {_DIVERGED:g}: scale states and targets")

    def linear_form(self) -> LinearForm:
        """Weights and bias in units of the raw features, copied. Raises NotSolved before there is a solution."""
        widths, _, scale = self._trained("export")
        weights, bias = self._unfolded("export")
        return LinearForm(weights.T.copy(), bias.copy(), widths.nodes, scale if self.standardise else None)

    def _scale_by(self, held: list[tuple[Array, Array]]) -> Scale:
        return Scale.of([rows for rows, _ in held], centred=self.bias, precision=self._precision)

    def _trained(self, what: str) -> tuple[Widths, _Rule, Scale]:
        if self._widths is None or self._rule is None or not self.n_samples_:
            raise NotSolved(f"{what} needs weights, and this readout has learned nothing yet: call partial_fit or fit")
        if self._scale is None:
            raise NotSolved(
                f"{what} needs weights, and the first {self.standardise_steps} steps are still held back, to "
                "standardise by them: call solve() to learn from what there is, or set standardise=False"
            )
        return self._widths, self._rule, self._scale

    def _unfolded(self, what: str) -> tuple[Array, Array]:
        _, rule, scale = self._trained(what)
        return scale.unfolded(rule.weights, bias=self.bias)

    def _settings(self) -> dict[str, Any]:
        return {
            **self._rule_settings(),
            "standardise": self.standardise,
            "standardise_steps": self.standardise_steps,
            "bias": self.bias,
            "input_connection": self.input_connection,
            "washout": self.washout,
        }


class RLSReadout(OnlineReadout):
    """Recursive least squares with exponential forgetting (Plackett 1950; Haykin, Adaptive Filter Theory).

    After every step n the weights minimise Σ_i forgetting^(n-i) ‖y_i - W x_i - b‖² + penalty ‖W‖². With forgetting 1
    the penalty is `alpha`, and the weights are those of ridge regression on all rows so far. With less, rows count by
    their age, 1 / (1 - forgetting) steps being the memory, and the penalty of each weight is renewed once in that time,
    so that it stays between alpha / e and alpha. This is what keeps the weights determined where the device is not
    excited for long: what no row of the memory shows is forgotten, the weights along such directions return to 0, and
    nothing blows up. The bias is never penalised.

    A memory of fewer steps than there are features leaves much to the penalty; take it several times as long.

    The covariance of the weights is kept as its square root (Potter 1963), which no number of steps makes indefinite.
    A step takes O(features²). Chunks are learned some 48 rows at a time by matrix products, which gives the same
    answers and weights up to rounding.

    Parameters
    ----------
    alpha
        The penalty, at least 1e-30, on weights of standardised features. It decides as long as little was learned.
    forgetting
        Above 0 and at most 1, per time step; a batch of sequences forgets as one does.
    standardise, standardise_steps
        See `OnlineReadout`.
    bias, input_connection, washout
        As of `RidgeReadout`.
    """

    kind = "rls"

    def __init__(
        self,
        alpha: float = 1e-6,
        *,
        forgetting: float = 1.0,
        standardise: bool = True,
        standardise_steps: int = 100,
        bias: bool = True,
        input_connection: bool = False,
        washout: int = 0,
    ) -> None:
        self.alpha = number_in("alpha", alpha, 1e-30, math.inf)
        self.forgetting = number_in("forgetting", forgetting, 0.0, 1.0, excluding=(0.0,))
        super().__init__(
            standardise=standardise,
            standardise_steps=standardise_steps,
            bias=bias,
            input_connection=input_connection,
            washout=washout,
        )

    def _new_rule(self, features: int, outputs: int) -> _Rule:
        return RecursiveLeastSquares(features, outputs, alpha=self.alpha, forgetting=self.forgetting, free=self.bias)

    def _rule_settings(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "forgetting": self.forgetting}


class LMSReadout(OnlineReadout):
    """Least mean squares: at every step W += rate · (y - W x - b) xᵀ / (‖x‖² + 1), and b likewise.

    That is the normalised rule (Nagumo & Noda 1967), which is stable for rates below 2 whatever the states are.
    With `normalised=False` nothing is divided (Widrow & Hoff 1960), and the largest stable rate is 2 over the largest
    eigenvalue of the second moments of the states; weights that leave all bounds are an InputRangeError, and those
    before the chunk stay.

    A step takes O(features), but many more steps than with `RLSReadout` are needed where states are alike, as those of
    a reservoir are: the error falls along each direction of the states at a speed of its own.

    Parameters
    ----------
    rate
        Above 0; below 2 where normalised. Of a batch of sequences, the mean of their updates is taken.
    normalised
        See above.
    standardise, standardise_steps
        See `OnlineReadout`.
    bias, input_connection, washout
        As of `RidgeReadout`.
    """

    kind = "lms"

    def __init__(
        self,
        rate: float = 0.5,
        *,
        normalised: bool = True,
        standardise: bool = True,
        standardise_steps: int = 100,
        bias: bool = True,
        input_connection: bool = False,
        washout: int = 0,
    ) -> None:
        self.normalised = bool(normalised)
        excluded = (0.0, 2.0) if self.normalised else (0.0,)
        self.rate = number_in("rate", rate, 0.0, 2.0 if self.normalised else math.inf, excluding=excluded)
        super().__init__(
            standardise=standardise,
            standardise_steps=standardise_steps,
            bias=bias,
            input_connection=input_connection,
            washout=washout,
        )

    def _new_rule(self, features: int, outputs: int) -> _Rule:
        return LeastMeanSquares(features, outputs, rate=self.rate, normalised=self.normalised)

    def _diverged(self) -> ReservoirError:
        return InputRangeError(
            f"LMS with rate {self.rate:g} diverges on these states: take a lower rate, or normalised=True. The weights "
            "are those before this chunk"
        )

    def _rule_settings(self) -> dict[str, Any]:
        return {"rate": self.rate, "normalised": self.normalised}


def _rows(columns: Columns, start: int, stop: int) -> tuple[Array, Array]:
    """Features and targets of some steps in float64, time first: (steps, batch, ·)."""
    arrays = [array[:, start:stop].swapaxes(0, 1) for array in (columns.states, columns.inputs) if array is not None]
    targets = columns.targets[:, start:stop].swapaxes(0, 1).astype(np.float64)
    return np.concatenate(arrays, axis=2, dtype=np.float64), targets


def _precision(columns: Columns) -> float:
    kinds = [array.dtype for array in (columns.states, columns.inputs) if array is not None]
    return max(float(np.finfo(kind).eps) if kind.kind == "f" else EPSILON for kind in kinds)


def _check_size(columns: Columns, start: int) -> None:
    for name, array in (("states", columns.states), ("inputs", columns.inputs), ("targets", columns.targets)):
        if array is None or array.dtype != np.float64 or not array[:, start:].size:
            continue
        low, high = array[:, start:].min(), array[:, start:].max()
        if max(-low, high) > _LARGEST:
            raise InputRangeError(
                f"{name} reach {high if high > -low else low:g}, too large to be squared and summed: scale them. The "
                "chunk was not used"
            )
