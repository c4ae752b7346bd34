"""A torch module of somebody's own as a readout: made, trained on gathered states, kept, and looked at for export."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import astuple
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError, ReservoirError
from reservoir_hw.core.files import read_tensors
from reservoir_hw.core.functions import import_function, source_of, without_digest
from reservoir_hw.readout.configuration import NotSolved
from reservoir_hw.readout.linear.least_squares import FeatureScale
from reservoir_hw.readout.linear.training_chunks import Widths
from reservoir_hw.readout.models.token_model import evaluating
from reservoir_hw.readout.own.gathered import GatheredReadout, settings_of
from reservoir_hw.readout.training.folder import WEIGHTS, load_weights, save_weights
from reservoir_hw.readout.training.loop import TrainingResult
from reservoir_hw.readout.training.optimizer import OnProgress
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.readout.training.shards import Shard
from reservoir_hw.readout.training.train_model import train

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets (steps, outputs) -> the mean loss."""

_LOSSES: dict[str, Loss] = {
    "mse": nn.functional.mse_loss,
    "mae": nn.functional.l1_loss,
    "l1": nn.functional.l1_loss,
    "cross_entropy": lambda outputs, targets: nn.functional.cross_entropy(outputs, targets.argmax(dim=1)),
}


# Of settings, nodes, inputs and outputs: an export takes seconds, and every point of a grid asks.
_SAID: dict[tuple[str, int, int, int], list[str]] = {}


class StandardisedModule(nn.Module):
    """`module((x - centre) / spread)` for features x (batch, time, features), in the precision of the module."""

    centre: Tensor
    spread: Tensor

    def __init__(self, module: nn.Module, scale: FeatureScale) -> None:
        super().__init__()
        self.module: nn.Module = module
        self.exported_as = type(module).__name__
        self.dtype = next((one.dtype for one in module.parameters()), torch.float32)
        self.register_buffer("centre", torch.from_numpy(scale.centre.copy()).to(self.dtype))
        self.register_buffer("spread", torch.from_numpy(scale.spread.copy()).to(self.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (batch, time, outputs)."""
        return self.module((x.to(self.dtype) - self.centre) / self.spread)


class TorchReadout(GatheredReadout):
    """Outputs of a torch module for the states of a device, followed by the inputs with an input connection.

    `config` is a `TorchConfig`.
    `options`, `folder` and `progress` are those of `train`, set by the caller. Windows of `options.context`
    steps are cut from each sequence behind the washout; the last may be filled up with steps that do not count.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.options: TrainingOptions | None = None
        self.folder: Path | None = None
        self.progress: OnProgress | None = None
        self._gathered: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
        self._network: nn.Module | None = None
        self._result: TrainingResult | None = None
        self._source = ""

    def network_for(self, nodes: int, inputs: int, outputs: int) -> StandardisedModule:
        """The untrained module for so many nodes, inputs that are read and outputs. Its weights depend on `seed` alone.

        Raises `ConfigurationError` where it cannot be made, or does not take states to outputs.
        """
        inputs = inputs if self.input_connection else 0
        target = self.config.module
        make = import_function(target, "module", "class")
        known = inspect.signature(make).parameters
        offered = {"nodes": nodes, "inputs": inputs, "outputs": outputs}
        arguments = {**{name: value for name, value in offered.items() if name in known}, **self.config.params}
        name = without_digest(target)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            try:
                module = make(**arguments)
            except Exception as error:
                # Whatever somebody's constructor does.
                raise ConfigurationError(
                    f"module: {name} cannot be made with {arguments}: {type(error).__name__}: {error}"
                ) from error
        if not isinstance(module, nn.Module):
            raise ConfigurationError(f"module: {name} makes a {type(module).__name__}, not a torch.nn.Module")
        network = StandardisedModule(module, FeatureScale.none(nodes + inputs))
        try:
            with evaluating(network):
                found: Any = network(torch.zeros(2, 3, nodes + inputs))
        except Exception as error:
            # As above, in its forward.
            raise ConfigurationError(
                f"module: {name} does not take states (batch, time, {nodes + inputs}): {type(error).__name__}: {error}"
            ) from error
        shape = tuple(getattr(found, "shape", ()))
        if shape != (2, 3, outputs):
            raise ConfigurationError(
                f"module: {name} takes states (2, 3, {nodes + inputs}) to {shape or type(found).__name__}, and must "
                f"give outputs (2, 3, {outputs})"
            )
        return network

    # ---- learning

    def _gather(self, features: np.ndarray, targets: np.ndarray, *, begins: bool) -> None:
        if begins:
            self._gathered.append(([], []))
        for kept, array in zip(self._gathered[-1], (features, targets), strict=True):
            kept.append(array.astype(np.float32))

    def solve(self) -> Self:
        """Train the module as `options` say; the states are forgotten then."""
        assert self.options is not None, "a training has options"
        config = self.config
        self._source = source_of(config.module, "module", "class")
        network = self.network_for(*astuple(self.widths))
        states, targets = self._windows(self.options.context)
        known = np.logical_not(np.any(np.isnan(targets), axis=2))
        if config.standardise:
            network = StandardisedModule(network.module, FeatureScale.of([states[known].astype(np.float64)]))
        held = min(round(config.validation * len(states)), len(states) - 1)
        first = len(states) - held
        loss = _LOSSES.get(config.loss) or import_function(config.loss, "loss")
        # One shard is all there is.
        shard_epochs = self.options.epochs or self.options.shard_epochs
        self._samples = int(known[:first].sum())

        def loss_of_known(states: Tensor, targets: Tensor) -> Tensor:
            learned = ~targets.isnan().any(dim=2)
            outputs = network(states)[learned]
            return loss(outputs, targets[learned].to(outputs.dtype))

        self._result = train(
            network,
            [Shard(states[:first], targets[:first])],
            [Shard(states[first:], targets[first:])] if held else None,
            options=self.options.model_copy(update={"context": states.shape[1], "shard_epochs": shard_epochs}),
            folder=self.folder,
            loss=loss_of_known,
            progress=self.progress,
        )
        self._take(network.cpu())
        return self

    def _windows(self, context: int) -> tuple[np.ndarray, np.ndarray]:
        """States (windows, context, features) and targets (windows, context, outputs), NaN where none is known."""
        sequences = [tuple(np.concatenate(parts, axis=1) for parts in one) for one in self._gathered]
        self._gathered = []
        context = min(context, max(states.shape[1] for states, _ in sequences))
        if not context:
            raise self._nothing_left()
        windows = zip(*(_cut(states, targets, context) for states, targets in sequences), strict=True)
        states, targets = (np.concatenate(parts) for parts in windows)
        learned = np.logical_not(np.all(np.any(np.isnan(targets), axis=2), axis=1))
        if not learned.any():
            raise self._nothing_left()
        return states[learned], targets[learned]

    def _take(self, network: nn.Module) -> None:
        from reservoir_hw.readout.export.torch_module import mixes_positions

        self._network = network
        self.mixes_positions = mixes_positions(network, torch.zeros(1, 1, self.widths.features))

    # ---- using

    @property
    def network(self) -> nn.Module:
        """The trained module, features (batch, time, features) -> outputs. Raises `NotSolved` before it is trained."""
        if self._network is None:
            raise NotSolved("this readout has not been trained: call solve, or load its weights")
        return self._network

    @property
    def report_(self) -> dict[str, Any]:
        """How the training went."""
        trained = sum(one.numel() for one in self.network.parameters() if one.requires_grad)
        result, module = self._result, without_digest(self.config.module)
        found = {"kind": "torch", "module": module, "trained": trained, "samples": self._samples}
        if result is None:
            return found
        losses = {"loss": float(result.losses[-1]), "validation_loss": result.best_loss} if result.history else {}
        return {**found, "steps": result.steps, "stopped_early": result.stopped_early, **losses}

    def predict(self, states: Any, inputs: Any = None) -> np.ndarray:
        """Outputs (batch, time, outputs), float32, for states (batch, time, nodes) of whole sequences or of parts."""
        features = self._features(states, inputs)
        with evaluating(self.network):
            return self.network(torch.from_numpy(np.ascontiguousarray(features))).float().numpy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights and the settings, from which `load` makes the module again."""
        save_weights(
            self.network,
            path,
            readout=self.config.model_dump(mode="json"),
            widths=astuple(self.widths),
            source=self._source,
            samples=self._samples,
            repetitions=self.repetitions_,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The trained readout of a file. Raises `ConfigurationError` where its class is not what it was."""
        _, facts = read_tensors(path, "pt", WEIGHTS)
        readout = cls(settings_of(facts["readout"]))
        target = readout.config.module
        readout._source = source_of(target, "module", "class")
        if facts.get("source") != readout._source:
            raise ConfigurationError(
                f"{without_digest(target)} has changed since the run that wrote {os.fspath(path)}: its weights are "
                "those of another class; run the experiment again"
            )
        readout.known_widths = Widths(*facts["widths"])
        readout._samples, readout.repetitions_ = facts["samples"], facts["repetitions"]
        network = readout.network_for(*facts["widths"])
        load_weights(network, path)
        readout._take(network)
        return readout


def _cut(states: np.ndarray, targets: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows of sequences (batch, time, ·); the last of each is filled up with steps that do not count."""
    behind = ((0, 0), (0, -states.shape[1] % context), (0, 0))
    states, targets = np.pad(states, behind), np.pad(targets, behind, constant_values=np.nan)
    return states.reshape(-1, context, states.shape[2]), targets.reshape(-1, context, targets.shape[2])


def about_export(config: Any, nodes: int, inputs: int, outputs: int) -> list[str]:
    """Why the module of a readout cannot be exported, in a sentence: what torch says of its export, untrained."""
    if any(find_spec(module) is None for module in ("onnx", "onnxscript", "onnxruntime")):
        return []
    asked = (config.model_dump_json(), nodes, inputs, outputs)
    if asked not in _SAID:
        from reservoir_hw.readout.export.torch_module import export_module

        network = TorchReadout(config).network_for(nodes, inputs, outputs)
        width = nodes + inputs * config.input_connection
        try:
            export_module(network, torch.zeros(1, 1, width), name="readout")
            _SAID[asked] = []
        except ReservoirError as error:
            _SAID[asked] = [f"readout.module can be trained and judged, but not exported: {error}"]
    return _SAID[asked]
