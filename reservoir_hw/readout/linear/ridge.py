"""Ridge regression from reservoir states to targets, learned in a single pass over chunks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.readout.configuration import NotSolved
from reservoir_hw.readout.linear._ridge_solver import (
    DEFAULT_ALPHAS,
    EPSILON,
    Accumulator,
    Array,
    Design,
    IncrementalQR,
    NormalEquations,
    Spectrum,
    choose_alpha,
    gcv_scores,
)
from reservoir_hw.readout.linear.configuration import LinearConfig
from reservoir_hw.readout.linear.least_squares import (
    FeatureScale,
    LeastSquaresReadout,
    LinearForm,
    loses_in_single,
    setting,
    sizes_of,
)
from reservoir_hw.readout.linear.training_chunks import Chunk, SequencePosition
from reservoir_hw.tasks.task import Task

log = logging.getLogger(__name__)

Solver: TypeAlias = Literal["normal", "qr"]
Search: TypeAlias = Literal["gcv", "kfold"]

Statistics: TypeAlias = NormalEquations | IncrementalQR
"""Of rows: they add up, and give mean, variance and the problem decomposed (`spectrum`), or `direct`ly its weights."""

_SOLVERS: dict[str, type[Statistics]] = {"normal": NormalEquations, "qr": IncrementalQR}


def kfold_scores(parts: Sequence[Statistics], design_of: Callable[[Statistics], Design], alphas: Array) -> Array:
    """Each fold predicted from the others; standardisation and bias come from the others as well.

    The squared errors of all held-out rows are pooled (a longer fold counts for more).
    """
    squared_error = 0.0
    for held_out, part in enumerate(parts):
        first, *rest = (other for fold, other in enumerate(parts) if fold != held_out)
        training = first.merged(rest)
        design = design_of(training)
        weights = training.spectrum(design).weights_for_each(alphas)
        squared_error = squared_error + part.squared_error(design, weights)
    return np.asarray(squared_error / sum(part.rows for part in parts))


class IllConditionedWarning(RuntimeWarning):
    """The weights were computed, but rounding errors decide about some of them; `report_` has the figures."""


class RidgeConfig(LinearConfig):
    """Ridge regression, learned in one pass over the states."""

    kind: Literal["ridge"]
    alpha: NonNegativeFloat | Annotated[list[NonNegativeFloat], Field(min_length=1)] | Literal["gcv", "kfold"] = Field(
        default=1e-6, description="the penalty, one for each output, or how to find it"
    )
    solver: Solver = Field(default="normal", description="qr is slower and accurate at a tiny alpha")
    alphas: Annotated[list[PositiveFloat], Field(min_length=1)] | None = Field(
        default=None, description="grid for the searches"
    )
    per_output: bool = Field(default=False, description="the searches choose an alpha for each output")
    folds: Annotated[int, Field(ge=2)] = 5
    block_steps: PositiveInt = Field(default=100, description="kfold: consecutive steps that stay together")

    def check_outputs(self, outputs: int) -> None:
        """A list of alphas needs one for each output."""
        if isinstance(self.alpha, list) and len(self.alpha) != outputs:
            raise ConfigurationError(f"alpha has {len(self.alpha)} values, the task has {outputs} outputs")

    def check_features(self, nodes: int, task: Task) -> None:
        """Without a penalty there must be at least as many samples as weights of an output."""
        alphas = self.alpha if isinstance(self.alpha, list) else [self.alpha]
        weights = nodes + self.input_connection * task.inputs + self.bias
        samples = self.samples(task)
        if 0.0 in alphas and weights > samples:
            raise ConfigurationError(
                f"alpha is 0, and {weights:,} weights ({nodes:,} features{', the inputs' * self.input_connection}"
                f"{' and a bias' * self.bias}) cannot be told from {samples:,} samples: take an alpha above 0, fewer "
                "features or a longer training"
            )

    def build(self) -> RidgeReadout:
        """A `RidgeReadout` with these settings."""
        return RidgeReadout(**self.arguments())


class RidgeReadout(LeastSquaresReadout):
    """Linear readout y = W x + b that minimises Σ‖y - W x - b‖² + alpha ‖W‖² (Hoerl & Kennard 1970).

    With `standardise` the penalty acts on W in units of standardised features, (x - mean) / standard deviation
    over the training rows (divided by n), so that an alpha found on a simulation means the same on a bench:
    the result equals scikit-learn's `make_pipeline(StandardScaler(), Ridge(alpha))`. Without a bias, features are
    not centred but divided by their root mean square. Without `standardise`, the result equals
    `Ridge(alpha, fit_intercept=bias)`. The error is a sum over rows, not a mean: the same
    alpha weighs less on longer data. The bias is never penalised. The features are the nodes, followed by the
    inputs if `input_connection`.

    There are two ways to learn:

        readout.fit(states, targets)                     # arrays, or chunks that can be read again

        for chunk in ...:                                # one pass, memory independent of the length
            readout.partial_fit(states, targets, new_sequence=...)
        readout.solve()

    Args:
        alpha: The penalty, ≥ 0; an array (outputs,) gives every output its own. Or how to find it:
            "gcv", generalised cross-validation (Golub, Heath & Wahba 1979);
            "kfold", cross-validation with `folds` folds made of blocks of `block_steps` consecutive steps;
            Successive states are alike, so GCV, which regards rows as independent, tends to too small an alpha
            where the targets' noise is correlated in time; "kfold" with blocks longer than that does not.
        solver: "normal" sums the normal equations in float64: fast, and accurate while the condition number
            of the (regularised) states stays well below 7e7. "qr" updates a QR decomposition: about eight
            times slower, accurate up to 4e15. Use it where a tiny alpha matters.
        standardise: Penalise weights of standardised features (see above).
        bias: Fit b; without it y = W x.
        input_connection: The readout sees the inputs too.
        washout: Number of leading steps of every sequence that are not learned from.
        alphas: Grid for the searches, > 0; by default 49 values from 1e-8 to 1e8. Those too small for the
            solver to compute (see `solver`) appear in `scores_` but are not chosen.
        per_output: The searches choose an alpha for every output; otherwise one that minimises the mean of the
            squared errors over the outputs.
        folds: Number of folds, ≥ 2 (for "kfold").
        block_steps: Steps per block (for "kfold"); blocks go to the folds in turn. Take it well above the
            memory of the reservoir.

    Attributes, after `solve` or `fit`:
        weights_: (outputs, features), in units of the raw features, standardisation folded in.
        bias_: (outputs,).
        alpha_: The penalty used: a float, or (outputs,).
        alphas_, scores_: The grid in ascending order (alphas,), and the estimated mean squared error on unseen
            steps (alphas, outputs); None if alpha was given.
        rank_: Number of directions of the features that rise above rounding errors.
        condition_: Ratio of the extreme singular values of the design stacked on √alpha · 1; with several
            alphas, for the smallest.
        dead_nodes_, dead_inputs_: Indices of nodes and inputs that were constant up to rounding of their
            dtype; they were dropped, and their weights are 0.
        n_samples_: Rows learned from.
        report_: All of these figures and what is remarkable about them (`notes`), ready for JSON.
        linear_form(): Its `scale` is mean (`centre`) and standard deviation (`spread`) of the features (features,)
            learned from, with any solver and with or without standardisation.
        repetitions_: Drives that each state was the mean of, set by the caller; saved with the weights.

    States may be torch tensors on any device that has float64. With solver "normal" the normal equations are summed
    there, in float64, in blocks of some hundred rows, and only the sums come to the CPU, where they are solved. With
    "qr" the states are copied to the CPU.

    `rank_`, `condition_` and `report_` take a decomposition. For one given alpha that surely conditions the
    problem well, the weights do without, and the decomposition waits until one of the three is asked for.

    A loaded readout predicts as the saved one does. The rows it learned from are not in the file: `partial_fit` on it
    starts from nothing. `solve` raises ConfigurationError, too, if no node varies, or if the features are linearly
    dependent and alpha is 0, or nothing beside rounding errors. It warns with IllConditionedWarning if alpha > 0 is too
    small to matter.

    Raises (methods): ConfigurationError, ShapeError, InputRangeError, NotSolved. A chunk that is refused leaves what
    was learned before untouched.
    """

    kind = "ridge"
    # Squares of larger numbers, summed, would leave the range of float64.
    _largest = 1e150

    config: RidgeConfig
    alpha = setting("alpha")
    solver = setting("solver")
    alphas = setting("alphas")
    per_output = setting("per_output")
    folds = setting("folds")
    block_steps = setting("block_steps")
    alpha_: float | Array
    alphas_: Array | None
    scores_: Array | None
    dead_nodes_: npt.NDArray[np.intp]
    dead_inputs_: npt.NDArray[np.intp]

    def __init__(
        self,
        alpha: float | npt.ArrayLike | Search = 1e-6,
        *,
        solver: Solver = "normal",
        standardise: bool = True,
        bias: bool = True,
        input_connection: bool = False,
        washout: int = 0,
        alphas: npt.ArrayLike | None = None,
        per_output: bool = False,
        folds: int = 5,
        block_steps: int = 100,
    ) -> None:
        arguments = locals()
        self._form: LinearForm | None = None
        super().__init__(RidgeConfig, arguments)
        self._learns_on_device = self.config.solver == "normal"

    def reset(self) -> Self:
        """Forget the rows learned from; weights that were solved for stay until the next `solve`."""
        self._accumulator: Accumulator | None = None
        self._precisions = np.zeros(1 + self.input_connection)
        super().reset()
        self._position = SequencePosition(self.washout, self._number_of_folds, self.config.block_steps)
        return self

    @property
    def report_(self) -> dict[str, Any]:
        """See the class. Raises NotSolved before there is a solution."""
        form = self._solved("report_")
        if self._report is None:
            assert self._spectrum is not None
            self._report = self._reported(form, self._spectrum())
            self._spectrum = None
        return self._report

    @property
    def rank_(self) -> int:
        """See the class."""
        return self.report_["rank"]

    @property
    def condition_(self) -> float:
        """See the class; inf if the problem is singular."""
        condition = self.report_["condition"]
        return float("inf") if condition is None else condition

    # ---- how

    @property
    def _largest_condition(self) -> float:
        return EPSILON**-0.5 if self.config.solver == "normal" else 1 / EPSILON

    @property
    def _number_of_folds(self) -> int:
        return self.config.folds if self.config.alpha == "kfold" else 1

    def _learn(self, chunk: Chunk) -> None:
        columns, drop = self._checked(chunk)
        widths = columns.widths
        alpha = self.config.alpha
        if isinstance(alpha, list) and len(alpha) != widths.outputs:
            raise ShapeError(f"alpha has {len(alpha)} values, targets have {widths.outputs} outputs")
        # From here on nothing can be refused.
        if self._accumulator is None:
            width = widths.features + widths.outputs
            self._accumulator = Accumulator(_SOLVERS[self.config.solver], width, self._number_of_folds, columns.device)
            self._widths = widths
        self._precisions = np.maximum(self._precisions, columns.precisions)
        for lane, start, stop, fold in self._position.advance(columns, drop, new_sequence=chunk.new_sequence):
            rows = [array[lane, start:stop] for array in (*columns.features, columns.targets)]
            self._accumulator.add(rows, fold)

    def _finish(self) -> Self:
        accumulator, widths = self._accumulator, self._widths
        if accumulator is None or widths is None or accumulator.rows == 0:
            raise self._no_rows()
        parts = accumulator.statistics()
        shift, config = accumulator.shift, self.config
        empty = [fold for fold, part in enumerate(parts) if part.rows == 0]
        if empty:
            raise ConfigurationError(
                f"fold {empty[0]} of {len(parts)} got no rows: there are {sum(p.rows for p in parts)} rows in blocks "
                f"of {config.block_steps} steps. Reduce block_steps or folds."
            )
        precision = np.repeat(self._precisions, [widths.nodes, widths.inputs][: len(self._precisions)])
        design_of = partial(
            Design.of, shift=shift, precision=precision, standardise=config.standardise, bias=config.bias
        )
        total = parts[0].merged(parts[1:]) if len(parts) > 1 else parts[0]
        design = design_of(total)
        if design.keep.size == 0:
            raise ConfigurationError(
                f"none of the {design.features} features varies over {total.rows} rows: there is nothing to learn "
                "from. Is the reservoir driven, and its output connected?"
            )
        alphas, scores = None, None
        alpha: Any = np.array(config.alpha) if isinstance(config.alpha, list) else config.alpha
        direct = total.direct(design, alpha) if isinstance(alpha, float) else None
        if direct is None:
            spectrum = total.spectrum(design)
            if isinstance(alpha, str):
                alphas = DEFAULT_ALPHAS.copy() if config.alphas is None else np.unique(config.alphas)
                scores = gcv_scores(spectrum, alphas) if alpha == "gcv" else kfold_scores(parts, design_of, alphas)
                # Below that the estimates hold for exact arithmetic, and not for the weights one would get.
                usable = spectrum.condition(alphas) <= self._largest_condition
                if not usable.any():
                    usable[-1] = True
                alpha = choose_alpha(scores[usable], alphas[usable], per_output=config.per_output)
            self._check_singular(spectrum, alpha)
            scaled_weights, self._spectrum = spectrum.weights(np.asarray(alpha)), lambda: spectrum
        else:
            scaled_weights, self._spectrum = direct
        self.alpha_, self.alphas_, self.scores_ = alpha, alphas, scores
        self.n_samples_, self._report = total.rows, None
        features = widths.features
        weights = np.zeros((widths.outputs, features))
        weights[:, design.columns] = design.scaled(scaled_weights).T
        centre, moved = design.centre + shift, np.sqrt(total.variance)
        self._hold(
            LinearForm(
                weights,
                centre[features:] - weights @ centre[:features],
                widths.nodes,
                FeatureScale((total.mean + shift)[:features], moved[:features]),
                moved[features:] if (moved[features:] > 0).all() else None,
            )
        )
        dead = np.delete(np.arange(features), design.keep)
        self.dead_nodes_, self.dead_inputs_ = dead[dead < widths.nodes], dead[dead >= widths.nodes] - widths.nodes
        if direct is None and self.condition_ > self._largest_condition:
            warnings.warn(self.report_["notes"][-1], IllConditionedWarning, stacklevel=3)
        return self

    def _check_singular(self, spectrum: Spectrum, alpha: float | Array) -> None:
        smallest = float(np.min(alpha))
        # Below the square of what rounding leaves of the largest singular value, it is nothing.
        if smallest > EPSILON**2 * spectrum.values.max(initial=0.0) or spectrum.rank == spectrum.features:
            return
        remedies = [f"give {'a larger alpha' if smallest else 'alpha > 0'} (or alpha='gcv')"]
        if self.input_connection:
            remedies.append("set input_connection=False if the inputs always sum to a constant, as one-hot codes do")
        if spectrum.rows <= spectrum.features:
            remedies.append("learn from more steps than there are features")
        elif self.config.solver == "normal":
            remedies.append("use solver='qr', which tells nearly dependent features apart")
        raise ConfigurationError(
            f"alpha is {smallest:g}{', too small to do anything,' if smallest else ''} and the features are linearly "
            f"dependent: rank {spectrum.rank} of {spectrum.features} varying features from {spectrum.rows} rows, so "
            f"the weights are not determined. Try one of these: {'; '.join(remedies)}."
        )

    def _hold(self, form: LinearForm) -> None:
        """From now on this is the solution."""
        self._form = form
        self._cast: dict[np.dtype, tuple[npt.NDArray, npt.NDArray]] = {}
        scale, spread = form.scale, form.target_spread
        self._loses_in_single = (
            scale is not None and spread is not None and loses_in_single(form.weights, sizes_of(scale), spread)
        )

    def _reported(self, form: LinearForm, spectrum: Spectrum) -> dict[str, Any]:
        condition = float(spectrum.condition(np.min(self.alpha_)))
        notes: list[str] = []
        if self.dead_nodes_.size:
            notes.append(f"{self.dead_nodes_.size} of {form.nodes} nodes are constant and were dropped")
        if self.dead_inputs_.size:
            notes.append(f"{self.dead_inputs_.size} inputs are constant and were dropped")
        if spectrum.rank < spectrum.features:
            notes.append(
                f"the features are linearly dependent (rank {spectrum.rank} of {spectrum.features}); "
                "alpha decides between equivalent weights"
            )
        if self.alphas_ is not None and np.isin(self.alpha_, self.alphas_[[0, -1]]).any():
            notes.append("the best alpha lies at the end of the grid: widen `alphas`")
        limit = self._largest_condition
        if condition > limit:
            better = "a larger alpha, or solver='qr'" if self.config.solver == "normal" else "a larger alpha"
            notes.append(
                f"condition number {condition:.1e} after regularisation, solver {self.config.solver!r} resolves "
                f"{limit:.1e}: some weights are rounding errors; use {better}"
            )
        for note in notes:
            log.info("ridge readout: %s", note)
        return {
            "samples": self.n_samples_,
            "features": form.weights.shape[1],
            "dead_nodes": int(self.dead_nodes_.size),
            "dead_inputs": int(self.dead_inputs_.size),
            "rank": spectrum.rank,
            "condition": condition if np.isfinite(condition) else None,
            "solver": self.config.solver,
            "search": self.config.alpha if isinstance(self.config.alpha, str) else None,
            "alpha": np.asarray(self.alpha_).tolist(),
            "notes": notes,
        }

    def _solved(self, wanted_for: str) -> LinearForm:
        if self._form is None:
            remedy = (
                "call solve() after partial_fit()" if self._accumulator else "call fit(), or partial_fit() and solve()"
            )
            raise NotSolved(f"{wanted_for} needs weights, and this readout has none yet: {remedy}")
        return self._form

    def _by_feature(self, form: LinearForm, dtype: np.dtype) -> tuple[npt.NDArray, npt.NDArray]:
        # Converted once.
        if dtype not in self._cast:
            self._cast[dtype] = (np.ascontiguousarray(form.weights.T, dtype=dtype), form.bias.astype(dtype))
        return self._cast[dtype]

    def _memory(self) -> tuple[dict[str, npt.NDArray], dict[str, Any]]:
        arrays: dict[str, npt.NDArray] = {
            "alpha": np.asarray(self.alpha_, dtype=np.float64),
            "dead_nodes": self.dead_nodes_,
            "dead_inputs": self.dead_inputs_,
        }
        if self.scores_ is not None and self.alphas_ is not None:
            arrays |= {"scores": self.scores_, "alphas": self.alphas_}
        return arrays, {}

    def _remember(self, arrays: Mapping[str, npt.NDArray], facts: Mapping[str, Any], form: LinearForm) -> None:
        self._hold(form)
        self._report = facts["report"]
        self.alpha_ = arrays["alpha"] if arrays["alpha"].ndim else float(arrays["alpha"])
        self.alphas_, self.scores_ = arrays.get("alphas"), arrays.get("scores")
        self.dead_nodes_, self.dead_inputs_ = arrays["dead_nodes"], arrays["dead_inputs"]
