"""What a graph is compared with: torch modules as they compute, in evaluation mode, on the CPU, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.readout.export.plan import Reference, Values
from reservoir_hw.readout.models.evaluating import evaluating

Compute = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def in_torch(model: nn.Module) -> Callable[[Compute], Reference]:
    """A reference in torch as one of arrays; the model computes in evaluation mode, in its own precision."""

    def decorate(compute: Compute) -> Reference:
        def reference(values: Values) -> Values:
            weights = (tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point())
            dtype = next((tensor.dtype for tensor in weights), torch.get_default_dtype())
            with evaluating(model), on_cpu(model):
                tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()}
                given = {name: one.to(dtype) if one.is_floating_point() else one for name, one in tensors.items()}
                return {name: value.numpy() for name, value in compute(given).items()}

        return reference

    return decorate


@contextmanager
def on_cpu(model: nn.Module) -> Iterator[None]:
    """The model on the CPU meanwhile, afterwards where it was."""
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
    if device is None or device.type == "cpu":
        yield
        return
    model.to("cpu")
    try:
        yield
    finally:
        model.to(device)
