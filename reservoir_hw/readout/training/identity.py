"""Constants of a model: they decide about its function, but are not weights.

A module tells its own part by a method `constants()`, whose values JSON can hold: `ReservoirLayer` its input map,
`EsnLM` its leak rate and activation. Modules of your own may do the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.provenance import first_change
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer, layers_in


def constants_of(model: Any) -> dict[str, Any]:
    """The constants of all modules by name, as JSON gives them back; "model" is the outermost.

    Raises `ConfigurationError` naming the module whose constants cannot be written.
    """
    if not isinstance(model, nn.Module):
        return {}
    found = {}
    for name, module in model.named_modules():
        tell = getattr(module, "constants", None)
        # A module can have a part of that name.
        if callable(tell) and not isinstance(tell, nn.Module):
            try:
                # NaN could be written, but is never what it was.
                found[name or "model"] = json.loads(json.dumps(tell(), allow_nan=False))
            except (TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"constants() of {name or 'the model'} ({type(module).__name__}) cannot be kept: {error}; let it "
                    "give a mapping of finite numbers, texts and lists, or give it another name"
                ) from error
    return found


def change_of_constants(then: dict[str, Any], now: dict[str, Any]) -> str | None:
    """How the constants that were written down differ from those of now, or None."""
    change = first_change(then, now)
    return None if change is None else f"its {change.key} is {change.before}, this model's is {change.now}"


def reservoirs_of(model: Any) -> list[Reservoir]:
    """The devices behind a model's layers, each once, in the order of the layers."""
    return list({id(layer.reservoir): layer.reservoir for layer in _layers(model)}.values())


def layers_of(model: Any) -> list[dict[str, Any]]:
    """What each layer makes of its reservoir in training: which one it is, and what inputs and gradients meet."""
    numbers = {id(reservoir): number for number, reservoir in enumerate(reservoirs_of(model))}
    return [
        {
            "reservoir": numbers[id(layer.reservoir)],
            "limit": layer.limit,
            "gradient": layer.gradient,
            "twin": None if layer.twin is None else layer.twin.spec.identity.fingerprint,
        }
        for layer in _layers(model)
    ]


def _layers(model: Any) -> list[ReservoirLayer]:
    """What is trained may be no module, but anything with `parameters()`."""
    return layers_in(model) if isinstance(model, nn.Module) else []


class FrozenTensors:
    """The tensors of a module that a training does not change: what it does change is found out as it goes.

    Buffers such as running means may change without being trained; `names` gives those that did not.
    """

    def __init__(self, module: nn.Module, moving: Iterable[str] = ()) -> None:
        self._module, self._moving = module, set(moving)
        self._before = {name: (tensor, _version(tensor)) for name, tensor in _untrained(module).items()}

    def names(self) -> list[str]:
        """The tensors that are now as they were when this was made, and were not known to move."""
        now = _untrained(self._module)
        return sorted(
            name
            for name, (tensor, version) in self._before.items()
            if name not in self._moving and now.get(name) is tensor and _version(tensor) == version
        )


def trained_names(module: nn.Module) -> list[str]:
    """Names of the parameters that are trained."""
    return sorted(name for name, parameter in module.named_parameters() if parameter.requires_grad)


def _untrained(module: nn.Module) -> dict[str, Tensor]:
    parameters = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    return {**parameters, **dict(module.named_buffers())}


def _version(tensor: Tensor) -> int:
    """Grows with every change in place; what was made for inference cannot be changed."""
    return 0 if tensor.is_inference() else tensor._version
