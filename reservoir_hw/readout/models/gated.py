"""Gated ESN RZ: an untrained network or device between trained gates, and the models it is compared with.

    layer = ReservoirLayer(device, gradient="twin", twin=simulation)      # inputs: those of the task, then the nodes
    model = SequenceClassifier(GatedRecurrence(DrivenCandidate(layer)), classes=6)
    model.loss(u, labels, lengths).backward()

Equations, names and counts are those of Di Sarli, Gallicchio & Micheli 2022, "On the effectiveness of Gated Echo State
Networks for data exhibiting long-term dependencies".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.validation import whole_number
from reservoir_hw.readout.linear.ridge import RidgeReadout
from reservoir_hw.readout.models.reservoir_layer import OverSequences, ReservoirLayer, Series, _ValuesOf
from reservoir_hw.readout.models.softmax import LinearReadout


class Candidate(nn.Module, ABC):
    """What proposes the new state: h(t) of u(t) and r(t) ⊙ x(t - 1). Abstract base; `inputs` are those of the task."""

    inputs: int
    nodes: int

    def begin(self, batch: int) -> None:
        """Begin `batch` new sequences."""

    def drives(self, u: Tensor) -> Sequence[Tensor]:
        """What is known of each step of u (batch, time, inputs) before the first is taken."""
        return u.unbind(1)

    @abstractmethod
    def respond(self, drive: Tensor, gated: Tensor) -> Tensor:
        """h(t), (batch, nodes), of one of the `drives` and r(t) ⊙ x(t - 1), (batch, nodes)."""

    def cut(self, cutter: Any, gates: GatedRecurrence, series: Series) -> Any:
        """Say how gates around this candidate are exported (`Stage`)."""
        raise ConfigurationError(
            f"gates around a candidate of type {type(self).__name__} cannot be exported: use DrivenCandidate, "
            "SettableCandidate, MatrixCandidate or TrainedCandidate"
        )


class SettableCandidate(Candidate):
    """h(t) = one step of a `settable` reservoir from the state r(t) ⊙ x(t - 1): the paper's model, in simulation.

    With an echo state network of leak rate 1 that is tanh(W_in u + Ŵ (r ⊙ x)). Gradient policies of the layer:
    "through" is the paper's; "twin" takes the values of the reservoir and the gradient of its settable twin; "stop"
    truncates the gradient at h, so that the gates learn by the states that they keep and not by those that they make
    (not the paper's model).

    Raises `ConfigurationError` where the reservoir, or its twin, is not settable.
    """

    exported_methods = ("begin", "drives", "respond")

    def __init__(self, layer: ReservoirLayer) -> None:
        super().__init__()
        for name, reservoir in (("reservoir", layer.reservoir), ("twin", layer.twin)):
            if reservoir is not None and not reservoir.spec.settable:
                reason = reservoir.spec.not_supported.get("settable", "it does not declare it")
                raise ConfigurationError(
                    f"the {name} {reservoir.spec.identity.model} cannot be set to a state ({reason}): drive it with "
                    "[u; r x] instead (DrivenCandidate)"
                )
        self.layer = layer
        self.inputs, self.nodes = layer.inputs, layer.nodes

    def drives(self, u: Tensor) -> Sequence[Tensor]:
        """The inputs, through the layer's map into the range of the device."""
        return self.layer.map_inputs(u).unbind(1)

    def respond(self, drive: Tensor, gated: Tensor) -> Tensor:
        """One `transition`."""
        layer = self.layer
        given = gated.to(drive.dtype)
        if layer.gradient == "through":
            return cast(Tensor, layer.reservoir.transition(drive, given)).to(gated.dtype)
        with torch.no_grad():
            measured = cast(Tensor, layer.reservoir.transition(drive.detach(), given.detach()))
        if layer.twin is not None and torch.is_grad_enabled():
            measured = _ValuesOf.apply(layer.twin.transition(drive, given), measured)
        return measured.to(gated.dtype)

    def cut(self, cutter: Any, gates: GatedRecurrence, series: Series) -> Any:
        """Around a device that is asked for one transition from r ⊙ x."""
        return cutter.gates_around_device(gates, self.layer, series, settable=True)


class DrivenCandidate(Candidate):
    """h(t) = the response of a device to the inputs [u(t); r(t) ⊙ x(t - 1)], one crossing per step.

    A device without a memory of its own, with a random input matrix and tanh, is the paper's model. One that has a
    memory adds it to what the gates remember. Gradients (policies of the layer) pass from h(t) to the inputs of the
    same step only, not along the device's own memory.

    Raises `ConfigurationError` where the device has no more inputs than nodes.
    """

    exported_methods = ("begin", "drives", "respond")

    def __init__(self, layer: ReservoirLayer) -> None:
        super().__init__()
        self.layer = layer
        self.inputs, self.nodes = layer.inputs - layer.nodes, layer.nodes
        if self.inputs < 1:
            raise ConfigurationError(
                "a device that is driven with [u; r x] has as many inputs as the task and its nodes together; this one "
                f"has {layer.inputs} inputs and {layer.nodes} nodes (input_mask: spreads more channels over its inputs)"
            )

    def begin(self, batch: int) -> None:
        """A reset, before the first step."""
        self.layer.begin(batch)

    def respond(self, drive: Tensor, gated: Tensor) -> Tensor:
        """One step of the device."""
        return self.layer.advance(torch.cat([drive, gated], 1)[:, None])[:, 0].to(gated.dtype)

    def cut(self, cutter: Any, gates: GatedRecurrence, series: Series) -> Any:
        """Around a device that is driven with [u; r ⊙ x]."""
        return cutter.gates_around_device(gates, self.layer, series, settable=False)


class MatrixCandidate(Candidate):
    """h(t) = tanh(W_in u + Ŵ (r ⊙ x) + b) with given matrices, not trained: the paper's model at its fastest.

    `W_in` is (nodes, inputs), `W` (nodes, nodes), `bias` (nodes,) or None. Those of a simulated `esn` are its
    `weights.W_in`, `weights.recurrent()` (made dense if it is sparse) and `weights.bias`.
    """

    exported_methods = ("begin", "drives", "respond")

    W_in: Tensor
    W: Tensor
    bias: Tensor

    def __init__(self, W_in: Any, W: Any, bias: Any = None, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        given = (W_in, W, np.zeros(len(W)) if bias is None else bias)
        arrays = [torch.tensor(np.asarray(array), dtype=dtype) for array in given]
        nodes, inputs = arrays[0].shape if arrays[0].ndim == 2 else (0, 0)
        if not nodes or not inputs or arrays[1].shape != (nodes, nodes) or arrays[2].shape != (nodes,):
            shapes = ", ".join(str(tuple(array.shape)) for array in arrays)
            raise ShapeError(f"W_in, W and bias must be (nodes, inputs), (nodes, nodes) and (nodes,), not {shapes}")
        self.nodes, self.inputs = nodes, inputs
        for name, array in zip(("W_in", "W", "bias"), arrays, strict=True):
            self.register_buffer(name, array)

    def drives(self, u: Tensor) -> Sequence[Tensor]:
        """W_in u + b of all steps in one product. Raises `InputRangeError` for NaN or infinity."""
        if not u.isfinite().all():
            where = tuple(int(i) for i in (~u.isfinite()).nonzero()[0])
            raise InputRangeError(f"u at (sequence, step, channel) = {where} is {float(u[where])}: look at the data")
        return linear(u, self.W_in, self.bias).unbind(1)

    def respond(self, drive: Tensor, gated: Tensor) -> Tensor:
        """See the class."""
        return torch.tanh(torch.addmm(drive, gated, self.W.T))

    def cut(self, cutter: Any, gates: GatedRecurrence, series: Series) -> Any:
        """Without a device."""
        return cutter.gates_around_matrices(gates, self, series)


class TrainedCandidate(MatrixCandidate):
    """The same with trained matrices: makes a `GatedRecurrence` the paper's GRU (eq. 6), one bias per gate.

    `torch.nn.GRU` is another model: there the reset gate acts behind the recurrent product, and each gate has two
    biases. All weights start uniform within ±1 / nodes (section 6.2), the biases at 0.
    """

    def __init__(self, inputs: int, nodes: int, *, bias: bool = True) -> None:
        inputs, nodes = whole_number("inputs", inputs), whole_number("nodes", nodes)
        super().__init__(np.zeros((nodes, inputs)), np.zeros((nodes, nodes)))
        for name in ("W_in", "W", *(["bias"] if bias else [])):
            array = getattr(self, name)
            delattr(self, name)
            self.register_parameter(name, nn.Parameter(array))
        _draw((self.W_in, self.W), nodes)


class GatedRecurrence(OverSequences):
    """Trained reset and update gates around a candidate (Di Sarli et al. 2022, eq. 6 and section 4.2).

    r(t) = σ(W_in^r u(t) + Ŵ^r x(t-1) + b^r),   z(t) = σ(W_in^z u(t) + Ŵ^z x(t-1) + b^z),
    h(t) = candidate(u(t), r(t) ⊙ x(t-1)),      x(t) = z(t) ⊙ x(t-1) + (1 - z(t)) ⊙ h(t),   x(0) = 0.

    With an untrained candidate that is Gated ESN RZ, with a `TrainedCandidate` the GRU. Gates without training are the
    reservoir kind `gated_esn`.

    `W_in` (2 nodes, inputs), `W` (2 nodes, nodes) and `bias` (2 nodes,) hold the reset gate above the update gate. The
    matrices start uniform within ±1 / nodes (section 6.2), the biases at 0. The equation as printed has no bias; the
    paper's counts of parameters have one per gate, `bias=False` leaves it out.
    """

    exported_methods = ("begin", "forward", "advance")

    def __init__(self, candidate: Candidate, *, bias: bool = True) -> None:
        super().__init__()
        self.candidate = candidate
        self.inputs, self.nodes = candidate.inputs, candidate.nodes
        self.W_in = nn.Parameter(torch.empty(2 * self.nodes, self.inputs))
        self.W = nn.Parameter(torch.empty(2 * self.nodes, self.nodes))
        self.bias = nn.Parameter(torch.zeros(2 * self.nodes)) if bias else None
        _draw((self.W_in, self.W), self.nodes)
        self._state = self.W.new_zeros(0, self.nodes)

    def begin(self, batch: int = 1) -> None:
        """Begin `batch` new sequences, at x = 0."""
        self.candidate.begin(whole_number("batch", batch))
        self._state = self.W.new_zeros(batch, self.nodes)

    def advance(self, u: Tensor) -> Tensor:
        """Go on with the sequences: inputs (batch, time, inputs) -> states (batch, time, nodes).

        Gradients reach back to the start of the call. Raises `ShapeError` for another number of channels, or of
        sequences than were begun, `InputRangeError` for NaN or infinity, and whatever the candidate's device raises.
        """
        x = self._state
        self._check(u, len(x))
        u = u.to(self.W.dtype)
        if not u.shape[1]:
            return u.new_empty(len(x), 0, self.nodes)
        states = []
        recurrent = self.W.T
        driven = linear(u, self.W_in, self.bias).unbind(1)
        for drive_of_gates, drive in zip(driven, self.candidate.drives(u), strict=True):
            r, z = gates(drive_of_gates, x, recurrent)
            # Mixed precision has answers and gates in bfloat16, and the state in full.
            x = torch.lerp(self.candidate.respond(drive, r * x).to(x.dtype), x, z.to(x.dtype))
            states.append(x)
        self._state = x.detach()
        return torch.stack(states, 1)

    @property
    def label(self) -> str:
        """What it is, for the name of an exported model."""
        return f"{type(self).__name__}({type(self.candidate).__name__})"

    def states_from(self, x: Tensor, u: Tensor) -> Tensor:
        """As `advance`, from the state x (batch, nodes) on; the sequences that were begun stay where they are."""
        before = self._state
        self._state = x
        try:
            return self.advance(u)
        finally:
            self._state = before

    def cut(self, cutter: Any, series: Series | None = None) -> Any:
        """As the candidate says; without `series` the states are the output."""
        own = Series(self.label, self.nodes, lambda states: states, lambda graph, states: states)
        return self.candidate.cut(cutter, self, own if series is None else series)


def gates(drive: Tensor, x: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor]:
    """r(t) and z(t), each (batch, nodes), of W_in u(t) + b (batch, 2 nodes), x(t - 1), and Ŵ transposed."""
    r, z = torch.sigmoid(torch.addmm(drive, x, recurrent)).chunk(2, 1)
    return r, z


class SequenceClassifier(nn.Module):
    """A linear softmax readout of the last state of a sequence (Di Sarli et al. 2022, eq. 2 and figure 2).

    The paper's models for 300 inputs and 6 classes (table 2), and how many parameters are trained here:

    - ESN, leaky ESN, Gated ESN: a `ReservoirLayer` of 3230 nodes (kinds `esn`, with `leak_rate`, and `gated_esn`),
      the readout alone is trained: 19386
    - Gated ESN RZ: a `GatedRecurrence` of 29 nodes around an untrained candidate: 19320 (the paper rounds its budget
      and prints 19386 for this one too)
    - GRU: a `GatedRecurrence` of 20 nodes around a `TrainedCandidate`: 19386
    """

    exported_methods = ("forward", "features")

    def __init__(self, recurrence: GatedRecurrence | ReservoirLayer, classes: int) -> None:
        super().__init__()
        self.recurrence = recurrence
        self.classes = whole_number("classes", classes, least=2)
        self.readout = LinearReadout(recurrence.nodes, self.classes)

    def features(self, u: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The last states (batch, nodes) of sequences u (batch, time, inputs).

        `lengths` (batch,) are the steps of each where they are padded behind; None: all steps.
        Raises `ShapeError` for lengths that do not fit.
        """
        states = self.recurrence(u)
        batch, steps = states.shape[:2]
        if lengths is None:
            lengths = torch.full((batch,), steps)
        wrong = lengths.shape != (batch,) or lengths.is_floating_point() or steps == 0
        if wrong or int(lengths.min()) < 1 or int(lengths.max()) > steps:
            raise ShapeError(
                f"lengths must be a whole number of steps for each of {batch} sequences, from 1 to {steps}, not "
                f"{lengths.tolist()}"
            )
        return states[torch.arange(batch), lengths.to(states.device) - 1]

    def forward(self, u: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Logits (batch, classes) of sequences u (batch, time, inputs)."""
        return self._read(self.features(u, lengths))

    def loss(self, u: Tensor, labels: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Mean cross-entropy in nats of labels (batch,), the numbers of the classes."""
        self._check_labels(labels, u.shape[0])
        return cross_entropy(self(u, lengths), labels.long())

    def fit_readout(self, batches: Iterable[tuple[Any, ...]], alpha: float = 1e-6) -> Self:
        """Ridge regression of the readout alone (eq. 5), which the paper's untrained recurrences have.

        `batches` are tuples (u, labels) or (u, labels, lengths), read once. Targets are one-hot, the bias is not
        penalised, and the penalty acts on the states as they are.
        """
        ridge = RidgeReadout(alpha, standardise=False)
        for u, labels, *lengths in batches:
            self._check_labels(labels, u.shape[0])
            with torch.no_grad():
                states = self.features(u, *lengths).double().cpu().numpy()
            ridge.partial_fit(states[:, None], np.eye(self.classes)[labels.cpu().numpy()][:, None], new_sequence=True)
        ridge.solve()
        with torch.no_grad():
            self.readout.weight.copy_(torch.from_numpy(ridge.weights_))
            self.readout.bias.copy_(torch.from_numpy(ridge.bias_))
        return self

    def cut(self, cutter: Any) -> Any:
        """As the recurrence says, with the logits of each step as the output; that of the last one counts."""
        series = Series(
            f"{type(self).__name__}({self.recurrence.label})", self.classes, self._read,
            lambda graph, states: graph.emit(self.readout, states, "readout"), meaning="logits", reads_last=True,
        )  # fmt: skip
        return self.recurrence.cut(cutter, series)

    def _read(self, features: Tensor) -> Tensor:
        # A reservoir gives its states in its own dtype.
        return self.readout(features.to(self.readout.weight.dtype))

    def _check_labels(self, labels: Tensor, batch: int) -> None:
        if labels.shape != (batch,) or labels.is_floating_point():
            raise ShapeError(f"labels must be the numbers of {batch} classes, not {labels.dtype} {tuple(labels.shape)}")
        if batch and (int(labels.min()) < 0 or int(labels.max()) >= self.classes):
            raise InputRangeError(
                f"labels go from {int(labels.min())} to {int(labels.max())}, but the {self.classes} classes are 0 to "
                f"{self.classes - 1}"
            )


def _draw(matrices: Iterable[Tensor], nodes: int) -> None:
    """Uniform within ±1 / nodes (section 6.2)."""
    for matrix in matrices:
        nn.init.uniform_(matrix, -1 / nodes, 1 / nodes)
