"""Online readouts: linear, like ridge regression, and learning with every step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, model_validator

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import InputRangeError, ReservoirError, ShapeError
from reservoir_hw.readout.configuration import NotSolved
from reservoir_hw.readout.linear._online_rules import LeastMeanSquares, RecursiveLeastSquares
from reservoir_hw.readout.linear._ridge_solver import Array
from reservoir_hw.readout.linear.configuration import LinearConfig
from reservoir_hw.readout.linear.least_squares import FeatureScale, LeastSquaresReadout, LinearForm, setting
from reservoir_hw.readout.linear.training_chunks import Chunk, Columns, Widths, numeric

# Rows that are converted to float64 at once.
_ROWS = 4096
# Of weights, which got there by diverging.
_DIVERGED = 1e30


class OnlineConfig(LinearConfig):
    """What the readouts that learn with every step can be told."""

    standardise_steps: Annotated[int, Field(ge=2)] = Field(
        default=100, description="first steps that the standardisation goes by"
    )
    keep_learning: bool = Field(
        default=False, description="in the test too: each step is answered first, then its target is learned"
    )

    @property
    def keeps_learning(self) -> bool:
        """As configured."""
        return self.keep_learning


_Rule: TypeAlias = LeastMeanSquares | RecursiveLeastSquares


class OnlineReadout(LeastSquaresReadout):
    """Linear readout y = W x + b that learns with every step: what `RLSReadout` and `LMSReadout` share.

    It is used like a `RidgeReadout`. What is more, it can learn while it is used:

        for states, target in ...:                       # on a device that drifts
            output = readout.step(states, target)        # the answer first, then the target is learned

        outputs = readout.predict_then_update(states, targets)       # the same for a chunk, many times as fast

    Sequences of a batch are driven side by side: a step of all of them is answered before any of it is learned. What
    was learned goes on over sequences; steps of the washout are answered, but not learned.

    With `standardise` the rule sees (x - mean) / standard deviation over the first `standardise_steps` steps (without
    a bias x / root mean square), so that a penalty or a rate means the same for any device. These steps are held back
    and answered with 0; when they are there, or at `solve`, they are learned. Everything is computed in float64.

    States may be torch tensors on any device. They are copied to the CPU, where every step is learned; answers come
    back to the device.

    Attributes
    ----------
    weights_ : (outputs, features), in units of the raw features: nodes, then inputs if `input_connection`.
    bias_ : (outputs,).
    n_samples_ : Rows learned from.
    report_ : Figures for the provenance, ready for JSON.
    repetitions_ : Drives that each state was the mean of, set by the caller; saved with the weights.

    A loaded readout goes on learning as the saved one would, with new sequences.

    Raises (methods): ConfigurationError, ShapeError, InputRangeError, NotSolved. A chunk that is refused leaves what
    was learned before untouched.
    """

    # Products of larger numbers with covariances would leave the range of float64.
    _largest = 1e20

    standardise_steps = setting("standardise_steps")

    @abstractmethod
    def _new_rule(self, features: int, outputs: int) -> _Rule:
        """The update rule, untrained."""

    # ---- learning

    def reset(self) -> Self:
        """Forget everything that was learned."""
        self._rule: _Rule | None = None
        self._scale: FeatureScale | None = None
        self._held: list[tuple[Array, Array]] = []
        self._precision = 0.0
        self.n_samples_ = 0
        return super().reset()

    def predict_then_update(
        self,
        states: Any,
        targets: Any,
        inputs: Any | None = None,
        *,
        new_sequence: bool = False,
    ) -> Any:
        """Learn from a chunk as `partial_fit` does, and return the answer to each step as it was before its update.

        Judged by these answers, a readout is evaluated prequentially (Dawid 1984).

        (batch, time, outputs) or (time, outputs); float32 where states and inputs are. A target is taken to be known
        before the next step is answered. Where it is known later only, as in a forecast over many steps, these
        answers are better than any that could have been given.
        """
        columns, answers = self._learn(Chunk(states, targets, inputs, new_sequence))
        single = all(map(arrays.is_single, columns.features))
        answers = answers.astype(np.float32 if single else np.float64, copy=False)
        return arrays.like(answers if np.ndim(states) == 3 else answers[0], states)

    def step(
        self,
        states: Any,
        target: Any,
        inputs: Any | None = None,
        *,
        new_sequence: bool = False,
    ) -> Any:
        """One step: the answer to states (batch, nodes) or (nodes,), computed before the target is learned."""
        x, y = numeric(states, "states"), numeric(target, "target")
        u = None if inputs is None else numeric(inputs, "inputs")
        if x.ndim not in (1, 2):
            raise ShapeError(
                f"a step takes states (batch, nodes) or (nodes,), not {tuple(x.shape)}; a chunk goes to "
                "predict_then_update()"
            )
        wrong = [tuple(array.shape) for array in (y, u) if array is not None and array.ndim != x.ndim]
        if wrong:
            raise ShapeError(
                f"target and inputs of a step need as many axes as its states {tuple(x.shape)}, got {wrong[0]}; a "
                "single column is target[..., None]"
            )
        chunk = [None if one is None else one[..., None, :] for one in (x, y, u)]
        return self.predict_then_update(*chunk, new_sequence=new_sequence)[..., 0, :]

    # ---- using

    @property
    def report_(self) -> dict[str, Any]:
        """See the class. Raises NotSolved before anything was learned."""
        features = self._solved("report_").weights.shape[1]
        return {"samples": self.n_samples_, "features": features, **self.config.arguments(), "notes": []}

    # ---- how

    def _learn(self, chunk: Chunk) -> tuple[Columns, Array]:
        """The checked chunk, and the answer (batch, time, outputs) to each step before its update."""
        columns, drop = self._checked(chunk)
        config = self.config
        widths = columns.widths
        rule = self._rule or self._new_rule(widths.features + config.bias, widths.outputs)
        scale, held = self._scale, self._held
        if scale is None and not config.standardise:
            scale = FeatureScale.none(widths.features)
        self._precision = max(self._precision, *columns.precisions)
        weights, steps = rule.weights.copy(), rule.steps
        answers = np.zeros((columns.batch, columns.steps, widths.outputs))
        start = drop
        with np.errstate(over="ignore", invalid="ignore"):
            if scale is None:
                start = min(drop + config.standardise_steps - sum(len(rows) for rows, _ in held), columns.steps)
                held = [*held, _rows(columns, drop, start)]
                if sum(len(rows) for rows, _ in held) == config.standardise_steps:
                    scale, held = self._learn_held(rule, held), []
            elif drop:
                rows, _ = _rows(columns, 0, drop)
                answers[:, :drop] = (scale.standardised(rows, bias=config.bias) @ rule.weights).swapaxes(0, 1)
            size = max(1, _ROWS // columns.batch)
            for first in range(start, columns.steps, size):
                last = min(first + size, columns.steps)
                rows, targets = _rows(columns, first, last)
                assert scale is not None
                answers[:, first:last] = rule.learn(scale.standardised(rows, bias=config.bias), targets).swapaxes(0, 1)
        # Written so that NaN does not count as a small number.
        if not np.abs(rule.weights).max() <= _DIVERGED:
            rule.weights, rule.steps = weights, steps
            raise self._diverged()
        self._rule, self._widths, self._scale, self._held = rule, widths, scale, held
        self._position.advance(columns, drop, new_sequence=chunk.new_sequence)
        self.n_samples_ += columns.batch * (columns.steps - drop)
        return columns, answers

    def _diverged(self) -> ReservoirError:
        return InputRangeError(f"the weights of this readout exceed {_DIVERGED:g}: scale states and targets")

    def _learn_held(self, rule: _Rule, held: list[tuple[Array, Array]]) -> FeatureScale:
        """Learn the steps that were held back; returns the scale that they have."""
        scale = FeatureScale.of([rows for rows, _ in held], centred=self.config.bias, precision=self._precision)
        for rows, targets in held:
            rule.learn(scale.standardised(rows, bias=self.config.bias), targets)
        return scale

    def _finish(self) -> Self:
        """Learn the steps that were held back, if there are any."""
        if self._rule is None or not self.n_samples_:
            raise self._no_rows()
        if self._scale is None:
            self._scale, self._held = self._learn_held(self._rule, self._held), []
        return self

    def _solved(self, wanted_for: str) -> LinearForm:
        if self._widths is None or self._rule is None or not self.n_samples_:
            raise NotSolved(
                f"{wanted_for} needs weights, and this readout has learned nothing yet: call partial_fit or fit"
            )
        if self._scale is None:
            raise NotSolved(
                f"{wanted_for} needs weights, and the first {self.config.standardise_steps} steps are still held back, "
                "to standardise by them: call solve() to learn from what there is, or set standardise=False"
            )
        weights, bias = self._scale.unfolded(self._rule.weights, bias=self.config.bias)
        return LinearForm(weights.T, bias, self._widths.nodes, self._scale if self.config.standardise else None)

    # Targets come one by one: nothing says how much they move.
    _loses_in_single = True

    def _memory(self) -> tuple[dict[str, npt.NDArray], dict[str, Any]]:
        assert self._rule is not None
        return {f"rule.{name}": array for name, array in self._rule.memory().items()}, {"steps": self._rule.steps}

    def _remember(self, arrays: Mapping[str, npt.NDArray], facts: Mapping[str, Any], form: LinearForm) -> None:
        outputs, features = form.weights.shape
        self._widths = Widths(form.nodes, form.inputs, outputs)
        self._scale = form.scale or FeatureScale.none(features)
        rule = self._rule = self._new_rule(features + self.config.bias, outputs)
        rule.steps = int(facts["steps"])
        for name, array in rule.memory().items():
            array[:] = arrays[f"rule.{name}"]


class RlsConfig(OnlineConfig):
    """Recursive least squares: ridge regression that learns with every step, and forgets if it is told to."""

    kind: Literal["rls"]
    alpha: Annotated[float, Field(ge=1e-30)] = Field(default=1e-6, description="the penalty")
    forgetting: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="how much a step counts one step later; 1 / (1 - forgetting) steps are the memory"
    )

    def build(self) -> RLSReadout:
        """An `RLSReadout` with these settings."""
        return RLSReadout(**self.arguments())


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
    alpha = setting("alpha")
    forgetting = setting("forgetting")

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
        super().__init__(RlsConfig, locals())

    def _new_rule(self, features: int, outputs: int) -> _Rule:
        config = self.config
        return RecursiveLeastSquares(
            features, outputs, alpha=config.alpha, forgetting=config.forgetting, free=config.bias
        )


class LmsConfig(OnlineConfig):
    """Least mean squares: a step down the gradient of each error; cheap, slow to learn and quick to forget."""

    kind: Literal["lms"]
    rate: PositiveFloat = Field(default=0.5, description="of learning; below 2 if normalised")
    normalised: bool = Field(default=True, description="divide the rate by the squared length of the states")

    @model_validator(mode="after")
    def _stable(self) -> Self:
        if self.normalised and self.rate >= 2:
            raise ValueError(f"rate {self.rate:g} must be below 2 where it is normalised")
        return self

    def build(self) -> LMSReadout:
        """An `LMSReadout` with these settings."""
        return LMSReadout(**self.arguments())


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
    rate = setting("rate")
    normalised = setting("normalised")

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
        super().__init__(LmsConfig, locals())

    def _new_rule(self, features: int, outputs: int) -> _Rule:
        return LeastMeanSquares(features, outputs, rate=self.config.rate, normalised=self.config.normalised)

    def _diverged(self) -> ReservoirError:
        return InputRangeError(
            f"LMS with rate {self.config.rate:g} diverges on these states: take a lower rate, or normalised=True. The "
            "weights are those before this chunk"
        )


def _rows(columns: Columns, start: int, stop: int) -> tuple[Array, Array]:
    """Features and targets of some steps in float64, time first: (steps, batch, ·)."""
    arrays = [array[:, start:stop].swapaxes(0, 1) for array in columns.features]
    targets = columns.targets[:, start:stop].swapaxes(0, 1).astype(np.float64)
    return np.concatenate(arrays, axis=2, dtype=np.float64), targets
