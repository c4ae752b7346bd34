"""Judging a trained language model on the test, and letting it write a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.experiment.configuration.experiment import SampleConfig
from reservoir_hw.experiment.run.text_plan import prompt_of
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.tasks.task import Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir_hw.readout.models.token_model import TokenModel
    from reservoir_hw.readout.training.loop import TrainingResult


def judged(
    model: TokenModel, tokens: np.ndarray, options: TrainingOptions, on_tokens: Callable[[int], None]
) -> tuple[float, float]:
    """Mean cross-entropy in nats and accuracy over the windows of these tokens, each from rest."""
    import torch

    from reservoir_hw.readout.models.evaluating import evaluating
    from reservoir_hw.readout.training.windows import Windows

    windows = Windows(
        tokens,
        options.context,
        stride=options.stride,
        vocabulary=model.vocabulary,
        predict=options.predict,
        name="the test part of the text",
    )
    device = next(model.readout.parameters()).device
    loss, hits, count = 0.0, 0, 0
    with evaluating(model):
        for first in range(0, len(windows), options.batch):
            read, following = windows.consecutive(np.arange(first, min(first + options.batch, len(windows))))
            targets = torch.from_numpy(following).to(device)
            features = model.features(torch.from_numpy(read).to(device))
            counted = targets >= 0
            part = _scored(model, features[counted], targets[counted])
            loss, hits, count = loss + part[0], hits + part[1], count + int(counted.sum())
            on_tokens(read.size)
    return loss / count, hits / count


def _scored(model: TokenModel, features: Tensor, targets: Tensor) -> tuple[float, int]:
    """Summed cross-entropy, and how often the largest logit is that of the target; logits chunk by chunk."""
    from torch.nn.functional import cross_entropy

    size = max(1, (1 << 24) // model.vocabulary)
    loss, hits = 0.0, 0
    for first in range(0, len(features), size):
        logits = model.readout(features[first : first + size]).float()
        wanted = targets[first : first + size]
        loss += float(cross_entropy(logits, wanted, reduction="sum").double())
        hits += int((logits.argmax(-1) == wanted).sum())
    return loss, hits


def curves(result: TrainingResult, options: TrainingOptions) -> dict[str, np.ndarray]:
    """What the figures of the task show of the training."""
    validation = result.validation_losses
    return {
        "training/step": np.array([row.step for row in result.history]),
        "training/loss": result.losses,
        "validation/step": validation[:, 0],
        "validation/loss": validation[:, 1],
        "context": np.array(options.context),
    }


def sample_of(model: TokenModel, sample: SampleConfig, task: Tokens) -> str:
    """A text that the model writes, behind its prompt in ⟦⟧.

    Raises `StateLost` or `NotSupported` where the device cannot be stepped.
    """
    prompt = prompt_of(sample, task)
    choices = sample.model_dump(include={"temperature", "top_k", "top_p", "seed"})
    written = list(model.generate(prompt, sample.tokens, **choices))
    return f"⟦{task.tokenizer.decode(prompt)}⟧{task.tokenizer.decode(written)}"
