from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from reservoir_hw.readout.training import PRESETS, TrainingOptions
from reservoir_hw.readout.training.optimizer import make_optimizer, parameter_groups


def test_schedule_rises_stays_and_falls() -> None:
    options = TrainingOptions(steps=100, warmup=0.1, hold=0.2, final_rate=0.25)
    factors = [options.rate_factor(step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10:31] == pytest.approx([1.0] * 21)
    # Half-way down the cosine is the mean of both ends.
    assert factors[65] == pytest.approx((1 + 0.25) / 2)
    assert factors[99] == pytest.approx(0.25 + 0.75 * (1 + math.cos(math.pi * 69 / 70)) / 2)
    assert all(a >= b for a, b in pairwise(factors[30:]))


def test_warmup_alone_and_hold_alone() -> None:
    assert TrainingOptions(steps=4, warmup=1.0).rate_factor(3, 4) == 1.0
    assert TrainingOptions(steps=4, hold=1.0, final_rate=0.0).rate_factor(3, 4) == 1.0
    assert TrainingOptions(steps=4, final_rate=0.0).rate_factor(0, 4) == 1.0
    assert {TrainingOptions(steps=7).rate_factor(step, 7) for step in range(7)} == {1.0}


def test_steps_of_epochs_are_whole_and_enough() -> None:
    options = TrainingOptions(epochs=3, batch=4, accumulate=2)
    assert options.steps_for(16) == 6
    assert options.steps_for(17) == 7
    assert TrainingOptions(steps=5).steps_for(1000) == 5


def test_presets_are_the_papers() -> None:
    laerc = TrainingOptions.preset("laerc", steps=10)
    # 001 A.3: (0.9, 0.999), decay 0.1 on linear weights, B = 32, accum = 4, chunks of 512, about 65536 tokens a step.
    assert (laerc.betas, laerc.weight_decay, laerc.decay) == ((0.9, 0.999), 0.1, "linear")
    assert laerc.windows_per_step * (laerc.context + 1) == 65536
    aerc = TrainingOptions.preset("aerc", epochs=5)
    # 001 II.F: Adam, 1e-4, batches of 1024, sequences of 32, the next character is the target.
    assert (aerc.learning_rate, aerc.batch, aerc.context, aerc.weight_decay) == (1e-4, 1024, 32, 0.0)
    assert (aerc.predict, aerc.stride, aerc.shard_epochs) == ("last", 1, 5)
    # 000 4.1 and 003 3: one epoch, batches of 32, AdamW with torch's defaults.
    defaults = torch.optim.AdamW([nn.Parameter(torch.zeros(1))]).defaults
    for name in ("esn", "esn+i"):
        esn = TrainingOptions.preset(name)
        assert (esn.epochs, esn.batch, esn.decay) == (1, 32, "all")
        assert (esn.learning_rate, esn.weight_decay, esn.betas) == (
            defaults["lr"],
            defaults["weight_decay"],
            defaults["betas"],
        )
    assert TrainingOptions.preset("esn", steps=5).epochs is None
    assert set(PRESETS) == {"aerc", "laerc", "esn", "esn+i"}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.LayerNorm(3)
        self.gain = nn.Parameter(torch.tensor(0.0))
        self.hidden = nn.Linear(3, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.zeros(2, 2), requires_grad=False)


def test_decay_groups() -> None:
    model = Tied()
    options = TrainingOptions(steps=1, weight_decay=0.1, embedding_rate=0.2, learning_rate=0.5)
    groups = parameter_groups(model, options)
    treated = {id(p): (g["weight_decay"], g["rate"]) for g in groups for p in g["params"]}
    assert treated == {
        id(model.embedding.weight): (0.0, 0.2),
        id(model.norm.weight): (0.0, 1.0),
        id(model.norm.bias): (0.0, 1.0),
        id(model.gain): (0.0, 1.0),
        id(model.hidden.weight): (0.1, 1.0),
        id(model.hidden.bias): (0.0, 1.0),
    }
    everything = parameter_groups(model, options.model_copy(update={"decay": "all"}))
    assert {g["weight_decay"] for g in everything} == {0.1}
    optimizer = make_optimizer(model, options)
    assert {g["rate"]: g["initial_lr"] for g in optimizer.param_groups} == {0.2: 0.1, 1.0: 0.5}
