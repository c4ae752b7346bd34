"""The processes that train together: this one alone, or those that torchrun has started."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.readout.training.optimizer import Objective
from reservoir_hw.readout.training.options import TrainingOptions

log = logging.getLogger(__name__)

IN_FLOAT32 = "this processor has no instructions for bfloat16: precision bf16-mixed is computed in float32"


class TrainingProcesses:
    """`count` processes, of which this one has the number `rank`; each trains on `device`.

    Raises `ConfigurationError` where they cannot share a batch equally.
    """

    def __init__(self, options: TrainingOptions) -> None:
        self.fabric = _fabric(options)
        self.rank, self.count, self.device = self.fabric.global_rank, self.fabric.world_size, self.fabric.device
        if options.batch % self.count:
            raise ConfigurationError(
                f"batch {options.batch} cannot be shared equally by {self.count} processes: choose a multiple"
            )

    @property
    def is_first(self) -> bool:
        """The first process writes the folder, and says what there is to say."""
        return self.rank == 0

    def wrapped(self, objective: Objective, optimizer: Optimizer) -> tuple[Any, Any]:
        """Both as they are called for steps that the processes take together."""
        with _without_deprecations():
            return self.fabric.setup(objective, optimizer)

    def share(self, first: int, stop: int) -> tuple[int, int]:
        """This process's share of rows first..stop - 1."""
        begin, end = (first + (stop - first) * rank // self.count for rank in (self.rank, self.rank + 1))
        return begin, end

    def gathered(self, tensor: Tensor) -> Tensor:
        """That of every process (processes, ...)."""
        if self.count == 1:
            return tensor[None]
        with _without_deprecations():
            return self.fabric.all_gather(tensor.to(self.device))

    def largest(self, number: int) -> int:
        """The largest of what each process gives, such as the signal by which one of them was asked to stop."""
        return number if self.count == 1 else int(self.gathered(torch.tensor(number)).max())

    def agreed(self, loss: Tensor, norm: Tensor, requested: int) -> tuple[float, float, int]:
        """Loss and norm over all processes, and whether one of them was asked to stop."""
        everyone = self.gathered(torch.stack([loss, norm.detach().double(), loss.new_tensor(requested)])).cpu()
        return float(everyone[:, 0].mean()), float(everyone[:, 1].max()), int(everyone[:, 2].max())


def _fabric(options: TrainingOptions) -> Any:
    """Lightning Fabric for this process: alone, or one of those that torchrun has started."""
    with extra("train", "training needs Lightning Fabric"):
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments.lightning import LightningEnvironment
        from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
        from lightning_fabric.strategies.ddp import DDPStrategy
    accelerator = options.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    elif accelerator == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("accelerator is cuda, but torch finds no CUDA device; set it to cpu")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    fabric = Fabric(
        accelerator=accelerator,
        devices=here,
        num_nodes=world // here,
        strategy=DDPStrategy(broadcast_buffers=False) if world > 1 else "auto",
        # Where SLURM has several tasks for this job, Lightning would count them as processes of this training.
        plugins=[TorchElasticEnvironment() if world > 1 else LightningEnvironment()],
        precision="32-true" if options.precision == "fp32" else options.precision,
    )
    begun = torch.distributed.is_available() and torch.distributed.is_initialized()
    fabric.launch()
    if world > 1 and not begun and torch.distributed.get_backend() == "gloo":
        # Threads of gloo that outlive the interpreter can abort the process. Lightning ends the groups of NCCL alone.
        atexit.register(_end_group)
    return fabric


def as_computed(options: TrainingOptions) -> TrainingOptions:
    """The options with the precision that this computer computes in: a processor may have no bfloat16.

    Without such instructions products take 70 times longer, and the LSTM of oneDNN fails: float32 takes its place.
    """
    on_gpu = options.accelerator != "cpu" and torch.cuda.is_available()
    if options.precision == "fp32" or on_gpu or _has_bfloat16():
        return options
    _say_in_float32()
    return options.model_copy(update={"precision": "fp32"})


def _has_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


# Once, however many trainings a run has.
@functools.cache
def _say_in_float32() -> None:
    log.warning(IN_FLOAT32)


def _end_group() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """Without what Lightning and torch say about each other under torchrun; the tests tell when it no longer works."""
    with warnings.catch_warnings():
        for what in (r".*`broadcast_buffers` is deprecated", r".*functional\.all_gather is deprecated"):
            warnings.filterwarnings("ignore", message=what)
        yield
