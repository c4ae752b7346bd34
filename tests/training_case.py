"""A small training that a test can run in a process of its own, kill, or give to torchrun.

python training_case.py FOLDER RESULT [--dropout P] [--slowly SECONDS] [--batch N]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core.seeds import generator
from reservoir_hw.readout.models.softmax import cross_entropy
from reservoir_hw.readout.training import Progress, TrainingOptions, TrainingResult, train

VOCABULARY = 11


class SmallModel(nn.Module):
    """Embedding, dropout, GRU, readout: what a language model offers to a training, and no more."""

    def __init__(self, width: int = 12, dropout: float = 0.1, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(VOCABULARY, width)
            self.dropout = nn.Dropout(dropout)
            self.recurrent = nn.GRU(width, width, batch_first=True)
            self.norm = nn.LayerNorm(width)
            self.readout = nn.Linear(width, VOCABULARY)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        states, _ = self.recurrent(self.dropout(self.embedding(tokens)))
        return cross_entropy(self.readout, self.norm(states), targets)


def text(tokens: int, name: str = "train") -> np.ndarray:
    """Tokens of which each mostly follows from the one before: something to learn."""
    drawn = generator(0, name)
    noise = drawn.random(tokens) < 0.2
    free = drawn.integers(0, VOCABULARY, tokens)
    made = np.empty(tokens, np.uint16)
    made[0] = 0
    for t in range(1, tokens):
        made[t] = free[t] if noise[t] else (3 * int(made[t - 1]) + 1) % VOCABULARY
    return made


def options(**changes: Any) -> TrainingOptions:
    """Settings under which every part of a checkpoint matters."""
    settings: dict[str, Any] = {
        "steps": 30,
        "context": 16,
        "batch": 8,
        "accumulate": 2,
        "learning_rate": 1e-2,
        "warmup": 0.1,
        "hold": 0.2,
        "final_rate": 0.1,
        "clip": 1.0,
        "accelerator": "cpu",
        "checkpoint_steps": 5,
        "evaluation_steps": 7,
        "log_steps": 3,
    }
    return TrainingOptions(**{**settings, **changes})


def digest(model: nn.Module) -> str:
    """Tells whether weights are the same bit for bit."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def facts(model: nn.Module, result: TrainingResult) -> dict[str, Any]:
    """What two trainings that are equal have in common."""
    return {
        "weights": digest(model),
        "losses": result.losses.tolist(),
        "validation": result.validation_losses.tolist(),
        "best": [result.best_step, result.best_loss],
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--slowly", type=float, default=0.0, help="seconds that every row of the log takes")
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = SmallModel(dropout=given.dropout)

    def progress(now: Progress) -> None:
        sys.stdout.write(f"{now}\n")
        sys.stdout.flush()
        time.sleep(given.slowly)

    chosen = options(log_steps=1, batch=given.batch)
    result = train(model, text(3000), text(500, "valid"), options=chosen, folder=given.folder, progress=progress)
    if os.environ.get("RANK", "0") == "0":
        given.result.write_text(json.dumps(facts(model, result)))


if __name__ == "__main__":
    main(sys.argv[1:])
