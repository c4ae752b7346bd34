"""Ridge regression from reservoir states to targets, learned in a single pass over chunks."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, Self, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.validation import whole_number
from reservoir_hw.readout.linear._answers import linear_answers
from reservoir_hw.readout.linear._normal_equations import NormalEquations
from reservoir_hw.readout.linear._qr import IncrementalQR
from reservoir_hw.readout.linear._readout_file import read_readout, write_readout
from reservoir_hw.readout.linear._regularisation import (
    DEFAULT_ALPHAS,
    LOO_BLOCK_ROWS,
    choose_alpha,
    gcv_scores,
    kfold_scores,
    loo_scores,
)
from reservoir_hw.readout.linear._spectrum import EPSILON, Array, Spectrum
from reservoir_hw.readout.linear._standardisation import design_of
from reservoir_hw.readout.linear._statistics import Accumulator, Statistics
from reservoir_hw.readout.linear.chunks import (
    Chunk,
    ChunkSource,
    Columns,
    Position,
    Widths,
    check_finite,
    checked,
    chunk_source,
    one_shot_error,
)
from reservoir_hw.readout.linear.conditioning import IllConditionedWarning, NotSolved
from reservoir_hw.readout.linear.scale import Scale

log = logging.getLogger(__name__)

Solver: TypeAlias = Literal["normal", "qr"]
Search: TypeAlias = Literal["gcv", "kfold", "loo"]

_SOLVERS: dict[str, Callable[[int], Statistics]] = {"normal": NormalEquations, "qr": IncrementalQR}


class RidgeReadout:
    """Linear readout y = W x + b that minimises Σ‖y - W x - b‖² + alpha ‖W‖² (Hoerl & Kennard 1970).

    With `standardise` the penalty acts on W in units of standardised features, (x - mean) / standard deviation
    over the training rows (divided by n), so that an alpha found on a simulation means the same on a bench:
    the result equals scikit-learn's `make_pipeline(StandardScaler(), Ridge(alpha))`. Without a bias, features are
    not centred but divided by their root mean square. Without `standardise`, the result equals
    `Ridge(alpha, fit_intercept=bias)`. The error is a sum over rows, not a mean: the same
    alpha weighs less on longer data. The bias is never penalised. The features are the nodes, followed by the
    inputs if `input_connection`.

    Two ways to learn:

        readout.fit(states, targets)                     # arrays, or chunks that can be read again

        for chunk in ...:                                # one pass, memory independent of the length
            readout.partial_fit(states, targets, new_sequence=...)
        readout.solve()

    Args:
        alpha: The penalty, ≥ 0; an array (outputs,) gives every output its own. Or how to find it:
            "gcv", generalised cross-validation (Golub, Heath & Wahba 1979);
            "kfold", cross-validation with `folds` folds made of blocks of `block_steps` consecutive steps;
            "loo", leave-one-out, which needs `fit` with data that can be read twice. Successive states are
            alike, so GCV and leave-one-out, which regard rows as independent, tend to too small an alpha
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
        scale_: Mean (`centre`) and standard deviation (`spread`) of the features (features,) learned from, with any
            solver and with or without standardisation; None where a file does not say.
        node_names_: None, or names of the nodes, set by the caller; saved with the weights.
        repetitions_: Drives that each state was the mean of, set by the caller; saved with the weights.

    `rank_`, `condition_` and `report_` take a decomposition. For one given alpha that surely conditions the
    problem well, the weights do without, and the decomposition waits until one of the three is asked for.

    Raises (methods): ConfigurationError, ShapeError, InputRangeError, NotSolved. A chunk that is
    refused leaves what was learned before untouched.
    """

    weights_: Array
    bias_: Array
    alpha_: float | Array
    alphas_: Array | None
    scores_: Array | None
    dead_nodes_: npt.NDArray[np.intp]
    dead_inputs_: npt.NDArray[np.intp]
    n_samples_: int

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
        self.alpha: float | Array | Search = _checked_alpha(alpha)
        if solver not in _SOLVERS:
            raise ConfigurationError(f'solver must be "normal" or "qr", not {solver!r}')
        self.solver: Solver = solver
        self.standardise = bool(standardise)
        self.bias = bool(bias)
        self.input_connection = bool(input_connection)
        self.washout = whole_number("washout", washout, least=0)
        self.alphas = _checked_grid(alphas)
        self.per_output = bool(per_output)
        self.folds = whole_number("folds", folds, least=2)
        self.block_steps = whole_number("block_steps", block_steps, least=1)
        self.node_names_: tuple[str, ...] | None = None
        self.repetitions_ = 1
        self.scale_: Scale | None = None
        self.reset()

    # ---- learning

    def reset(self) -> Self:
        """Forget the rows learned from; weights that were solved for stay until the next `solve`."""
        self._widths: Widths | None = None
        self._accumulator: Accumulator | None = None
        self._position = self._new_position()
        self._precision = np.zeros(0)
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
        Weights appear with `solve`, which may be called at any time; learning can go on afterwards.
        Steps of the washout may hold anything, NaN included.
        """
        if self._search == "loo":
            raise one_shot_error()
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
        chunks: an iterable of `Chunk` or tuples (states, targets[, inputs[, new_sequence]]), or a function
        without arguments that returns one. alpha="loo" reads them twice (NotSupported for an iterator).
        """
        if targets is not None:
            source, again = chunk_source([Chunk(states, targets, inputs, True)])  # type: ignore[arg-type]
        elif inputs is None and not isinstance(states, np.ndarray) and _is_chunk_source(states):
            source, again = chunk_source(states)  # type: ignore[arg-type]
        else:
            raise ConfigurationError("fit needs targets beside the states (or chunks of both as its only argument)")
        if self._search == "loo" and not again:
            raise one_shot_error()
        self.reset()
        for chunk in source():
            self._learn(chunk)
        return self._solve(source)

    def solve(self) -> Self:
        """Compute the weights from everything learned so far.

        Raises ConfigurationError if there are no rows, if no node varies, or if alpha is 0 and the features
        are linearly dependent. Warns with IllConditionedWarning if alpha > 0 is too small to matter.
        """
        if self._search == "loo":
            raise one_shot_error()
        return self._solve(None)

    @property
    def report_(self) -> dict[str, Any]:
        """See the class. Raises NotSolved before there is a solution."""
        self._require_solution("report_")
        if self._report is None:
            assert self._spectrum is not None
            self._report = self._reported(self._spectrum())
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

    # ---- using

    def predict(
        self,
        states: npt.ArrayLike,
        inputs: npt.ArrayLike | None = None,
        out: npt.NDArray | None = None,
    ) -> npt.NDArray:
        """Outputs (..., outputs) for states (..., nodes), whatever the leading axes: batch, time, both, none.

        float32 states (and inputs) give float32, computed in float32; everything else float64. `out` is
        filled and returned if given; it must have exactly that shape and dtype.
        """
        self._require_solution("predict")
        outputs, features = self.weights_.shape
        return linear_answers(
            states,
            inputs,
            out,
            widths=Widths(self._nodes, features - self._nodes, outputs),
            input_connection=self.input_connection,
            parameters=self._parameters,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, settings and figures as safetensors; an existing file is replaced as a whole."""
        self._require_solution("save")
        names = self.node_names_
        if names is not None and len(names) != self._nodes:
            raise ConfigurationError(f"node_names_ has {len(names)} names for {self._nodes} nodes")
        arrays: dict[str, npt.NDArray] = {
            "weights": self.weights_,
            "bias": self.bias_,
            "alpha": np.asarray(self.alpha_, dtype=np.float64),
            "dead_nodes": self.dead_nodes_.astype(np.int64),
            "dead_inputs": self.dead_inputs_.astype(np.int64),
        }
        if self.scores_ is not None and self.alphas_ is not None:
            arrays |= {"scores": self.scores_, "alphas": self.alphas_}
        if self.scale_ is not None:
            arrays |= {"mean": self.scale_.centre, "deviation": self.scale_.spread}
        facts = {
            "settings": self._settings(),
            "report": self.report_,
            "nodes": self._nodes,
            "node_names": None if names is None else list(names),
            "repetitions": self.repetitions_,
        }
        write_readout(path, arrays, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A readout that predicts as the saved one does; raises ConfigurationError for any other file.

        The rows it learned from are not in the file: `partial_fit` on it starts from nothing.
        """
        arrays, facts = read_readout(path)
        try:
            readout = cls(**facts["settings"])
            report = readout._report = facts["report"]
            readout.weights_, readout.bias_ = arrays["weights"], arrays["bias"]
            readout.alpha_ = arrays["alpha"] if arrays["alpha"].ndim else float(arrays["alpha"])
            readout.alphas_, readout.scores_ = arrays.get("alphas"), arrays.get("scores")
            readout.dead_nodes_ = arrays["dead_nodes"].astype(np.intp)
            readout.dead_inputs_ = arrays["dead_inputs"].astype(np.intp)
            readout.n_samples_ = int(report["samples"])
            readout._nodes = int(facts["nodes"])
            names = facts["node_names"]
            readout.node_names_ = None if names is None else tuple(names)
            readout.repetitions_ = int(facts.get("repetitions", 1))
            outputs, features = readout.weights_.shape
            # Older files have none.
            if "mean" in arrays:
                readout.scale_ = Scale(arrays["mean"], arrays["deviation"])
            scale = readout.scale_ or Scale.none(features)
            consistent = (
                readout.bias_.shape == (outputs,)
                and scale.centre.shape == scale.spread.shape == (features,)
                and 0 < readout._nodes <= features
                and readout.input_connection == (features > readout._nodes)
                and readout.rank_ <= features
                and readout.condition_ >= 1
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{os.fspath(path)} is not a complete readout: {error!r}") from error
        if not consistent:
            raise ConfigurationError(f"{os.fspath(path)} does not fit together: weights, bias and nodes disagree")
        readout._cast = {}
        return readout

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self._settings().items() if value is not None)
        return f"{type(self).__name__}({given})"

    # ---- how

    @property
    def _search(self) -> Search | None:
        return cast(Search, self.alpha) if isinstance(self.alpha, str) else None

    @property
    def _largest_condition(self) -> float:
        return EPSILON**-0.5 if self.solver == "normal" else 1 / EPSILON

    @property
    def _number_of_folds(self) -> int:
        return self.folds if self._search == "kfold" else 1

    def _new_position(self) -> Position:
        return Position(self.washout, self._number_of_folds, self.block_steps)

    def _learn(self, chunk: Chunk) -> None:
        columns = checked(chunk, input_connection=self.input_connection, widths=self._widths)
        widths = columns.widths
        if isinstance(self.alpha, np.ndarray) and self.alpha.shape != (widths.outputs,):
            raise ShapeError(f"alpha has {self.alpha.size} values, targets have {widths.outputs} outputs")
        check_finite(columns, self._position.check(columns, new_sequence=chunk.new_sequence))
        # From here on nothing can be refused.
        if self._accumulator is None:
            width = widths.features + widths.outputs
            self._accumulator = Accumulator(_SOLVERS[self.solver], width, self._number_of_folds)
            self._precision = np.zeros(widths.features)
            self._widths = widths
        self._note_precision(columns)
        for lane, start, stop, fold in self._position.segments(columns, new_sequence=chunk.new_sequence):
            self._accumulator.add(columns.rows(lane, start, stop), fold)

    def _note_precision(self, columns: Columns) -> None:
        start = 0
        for array in (columns.states, columns.inputs):
            if array is not None:
                stop = start + array.shape[2]
                precision = np.finfo(array.dtype).eps if array.dtype.kind == "f" else EPSILON
                np.maximum(self._precision[start:stop], precision, out=self._precision[start:stop])
                start = stop

    def _solve(self, source: Callable[[], Iterator[Chunk]] | None) -> Self:
        accumulator, widths = self._accumulator, self._widths
        if accumulator is None or widths is None:
            raise ConfigurationError("there are no rows to learn from: call partial_fit first")
        if accumulator.rows == 0:
            raise ConfigurationError(
                f"there are no rows to learn from: every sequence ended within the washout of {self.washout} steps"
            )
        parts = accumulator.statistics()
        self._check_folds(parts)
        design_of_rows = partial(
            design_of,
            shift=accumulator.shift,
            precision=self._precision,
            standardise=self.standardise,
            bias=self.bias,
        )
        total = parts[0].merged(parts[1:]) if len(parts) > 1 else parts[0]
        design = design_of_rows(total)
        if design.keep.size == 0:
            raise ConfigurationError(
                f"none of the {design.features} features varies over {total.rows} rows: there is nothing to learn "
                "from. Is the reservoir driven, and its output connected?"
            )
        alpha, alphas, scores = self.alpha, None, None
        direct = total.direct(design, alpha) if isinstance(alpha, float) else None
        if direct is None:
            spectrum = total.spectrum(design)
            if isinstance(alpha, str):
                alphas = DEFAULT_ALPHAS.copy() if self.alphas is None else self.alphas.copy()
                if alpha == "gcv":
                    scores = gcv_scores(spectrum, alphas)
                elif alpha == "kfold":
                    scores = kfold_scores(parts, design_of_rows, alphas)
                else:
                    assert source is not None
                    blocks = self._blocks(source, accumulator.shift, widths)
                    scores = loo_scores(blocks, spectrum, design, alphas)
                # Below that the estimates hold for exact arithmetic, and not for the weights one would get.
                usable = spectrum.condition(alphas) <= self._largest_condition
                if not usable.any():
                    usable[-1] = True
                alpha = choose_alpha(scores[usable], alphas[usable], per_output=self.per_output)
            self._check_singular(spectrum, alpha)
            scaled_weights, self._spectrum = spectrum.weights(np.asarray(alpha)), lambda: spectrum
        else:
            scaled_weights, self._spectrum = direct
        self.alpha_, self.alphas_, self.scores_ = cast(float | Array, alpha), alphas, scores
        self.n_samples_, self._report = total.rows, None
        self._store(design.scaled(scaled_weights), design.columns, design.centre + accumulator.shift, widths)
        features = widths.features
        self.scale_ = Scale((total.mean + accumulator.shift)[:features], np.sqrt(total.variance[:features]))
        if direct is None and self.condition_ > self._largest_condition:
            warnings.warn(self.report_["notes"][-1], IllConditionedWarning, stacklevel=3)
        return self

    def _check_folds(self, parts: list[Statistics]) -> None:
        empty = [fold for fold, part in enumerate(parts) if part.rows == 0]
        if empty:
            raise ConfigurationError(
                f"fold {empty[0]} of {len(parts)} got no rows: there are {sum(p.rows for p in parts)} rows in blocks "
                f"of {self.block_steps} steps. Reduce block_steps or folds."
            )

    def _blocks(
        self, source: Callable[[], Iterator[Chunk]], shift: Array, widths: Widths
    ) -> Iterator[tuple[Array, Array]]:
        """The rows once more, in the coordinates of the statistics."""
        position = self._new_position()
        for chunk in source():
            columns = checked(chunk, input_connection=self.input_connection, widths=widths)
            for lane, first, last, _ in position.segments(columns, new_sequence=chunk.new_sequence):
                for start in range(first, last, LOO_BLOCK_ROWS):
                    rows = columns.rows(lane, start, min(start + LOO_BLOCK_ROWS, last))
                    block = np.concatenate(rows, axis=1, dtype=np.float64) - shift
                    yield block[:, : widths.features], block[:, widths.features :]

    def _check_singular(self, spectrum: Spectrum, alpha: float | Array) -> None:
        if np.min(alpha) > 0 or spectrum.rank == spectrum.features:
            return
        remedies = ["give alpha > 0 (or alpha='gcv')"]
        if self.input_connection:
            remedies.append("set input_connection=False if the inputs always sum to a constant, as one-hot codes do")
        if spectrum.rows <= spectrum.features:
            remedies.append("learn from more steps than there are features")
        elif self.solver == "normal":
            remedies.append("use solver='qr', which tells nearly dependent features apart")
        raise ConfigurationError(
            f"alpha is 0 and the features are linearly dependent: rank {spectrum.rank} of {spectrum.features} "
            f"varying features from {spectrum.rows} rows, so the weights are not determined. "
            f"Try one of these: {'; '.join(remedies)}."
        )

    def _store(self, kept_weights: Array, kept: npt.NDArray[np.intp] | slice, centre: Array, widths: Widths) -> None:
        weights = np.zeros((widths.outputs, widths.features))
        weights[:, kept] = kept_weights.T
        features = np.arange(widths.features)
        dead = features[:0] if isinstance(kept, slice) else np.delete(features, kept)
        self._nodes = widths.nodes
        self.weights_ = weights
        self.bias_ = centre[widths.features :] - weights @ centre[: widths.features]
        self.dead_nodes_ = dead[dead < widths.nodes]
        self.dead_inputs_ = dead[dead >= widths.nodes] - widths.nodes
        self._cast: dict[np.dtype, tuple[npt.NDArray, npt.NDArray]] = {}

    def _reported(self, spectrum: Spectrum) -> dict[str, Any]:
        condition = float(spectrum.condition(np.min(self.alpha_)))
        notes: list[str] = []
        if self.dead_nodes_.size:
            notes.append(f"{self.dead_nodes_.size} of {self._nodes} nodes are constant and were dropped")
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
            better = "a larger alpha, or solver='qr'" if self.solver == "normal" else "a larger alpha"
            notes.append(
                f"condition number {condition:.1e} after regularisation, solver {self.solver!r} resolves "
                f"{limit:.1e}: some weights are rounding errors; use {better}"
            )
        for note in notes:
            log.info("ridge readout: %s", note)
        return {
            "samples": self.n_samples_,
            "features": self.weights_.shape[1],
            "dead_nodes": int(self.dead_nodes_.size),
            "dead_inputs": int(self.dead_inputs_.size),
            "rank": spectrum.rank,
            "condition": condition if np.isfinite(condition) else None,
            "solver": self.solver,
            "search": self._search,
            "alpha": np.asarray(self.alpha_).tolist(),
            "notes": notes,
        }

    def _require_solution(self, what: str) -> None:
        if not hasattr(self, "weights_"):
            raise NotSolved(
                f"{what} needs weights, and this readout has none yet: "
                + (
                    "call solve() after partial_fit()"
                    if self._accumulator
                    else "call fit(), or partial_fit() and solve()"
                )
            )

    def _parameters(self, dtype: np.dtype) -> tuple[npt.NDArray, npt.NDArray]:
        """Weights (features, outputs) and bias in the dtype of a prediction, converted once."""
        if dtype not in self._cast:
            self._cast[dtype] = (np.ascontiguousarray(self.weights_.T, dtype=dtype), self.bias_.astype(dtype))
        return self._cast[dtype]

    def _settings(self) -> dict[str, Any]:
        return {
            "alpha": self.alpha.tolist() if isinstance(self.alpha, np.ndarray) else self.alpha,
            "solver": self.solver,
            "standardise": self.standardise,
            "bias": self.bias,
            "input_connection": self.input_connection,
            "washout": self.washout,
            "alphas": None if self.alphas is None else self.alphas.tolist(),
            "per_output": self.per_output,
            "folds": self.folds,
            "block_steps": self.block_steps,
        }


def _is_chunk_source(value: object) -> bool:
    return callable(value) or hasattr(value, "__iter__")


def _checked_alpha(alpha: Any) -> float | Array | Search:
    if isinstance(alpha, str):
        if alpha not in get_args(Search):
            raise ConfigurationError(
                f'alpha must be a number, an array (outputs,), "gcv", "kfold" or "loo", not {alpha!r}'
            )
        return alpha  # type: ignore[return-value]
    if isinstance(alpha, float) and 0 <= alpha < math.inf:
        return alpha
    values = _real_numbers("alpha", alpha)
    if values.ndim > 1 or values.size == 0 or not np.all(np.isfinite(values) & (values >= 0)):
        raise ConfigurationError(f"alpha must be ≥ 0 and finite, one number or one per output, not {alpha!r}")
    return values if values.ndim else float(values)


def _checked_grid(alphas: Any) -> Array | None:
    if alphas is None:
        return None
    values = _real_numbers("alphas", alphas)
    if values.ndim != 1 or values.size == 0 or not np.all(np.isfinite(values) & (values > 0)):
        raise ConfigurationError(f"alphas must be a list of finite numbers > 0, not {alphas!r}")
    return np.unique(values)


def _real_numbers(name: str, value: Any) -> Array:
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} must be numbers, not {value!r}") from error
