"""An optimizer, a schedule, an evaluation and a logger of the caller's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training_case import SmallModel, digest, options, text

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout import LinearReadout
from reservoir_hw.readout.training import Shard, TrainingOptions, train

TRAIN, VALID = text(3000), text(500, "valid")
# What belongs to AdamW and its schedule is left out.
PLAIN: dict[str, Any] = {"learning_rate": 1e-3, "warmup": 0.0, "hold": 0.0, "final_rate": 1.0}


class Counting(torch.optim.SGD):
    """Keeps tensors and numbers, and moves less and less."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["count"] = self.state[parameter].get("count", 0) + 1
                parameter.grad /= self.state[parameter]["count"]
        super().step(closure)


def counting(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return Counting(parameters, lr=0.5, momentum=0.9)


def halved(step: int, steps: int) -> float:
    return 1.0 if step < steps // 2 else 0.5


def size(model: nn.Module, step: int) -> dict[str, float]:
    assert not model.training
    assert not torch.is_grad_enabled()
    return {"size": float(sum(p.square().sum() for p in model.parameters())), "step": step}


@pytest.mark.slow
def test_all_of_them_together_and_after_an_interruption(tmp_path: Path) -> None:
    seen: list[tuple[int, dict[str, float]]] = []

    def on_row(step: int, model: Any, metrics: Mapping[str, float]) -> None:
        assert isinstance(model, SmallModel)
        seen.append((step, dict(metrics)))

    def stop(step: int, model: Any, metrics: Mapping[str, float]) -> None:
        if step >= 18:
            raise KeyboardInterrupt

    mine: dict[str, Any] = {"optimizer": counting, "schedule": halved, "evaluate": size}
    given = options(**PLAIN)
    whole = SmallModel()
    result = train(whole, TRAIN, options=given, on_row=on_row, **mine)
    rates = {row.step: row.learning_rate for row in result.history}
    assert rates[15] == 0.5
    assert rates[18] == 0.25
    evaluated = [row for row in result.history if row.metrics]
    assert [row.step for row in evaluated] == [7, 14, 21, 28, 30]
    with torch.no_grad():
        assert evaluated[-1].metrics == size(whole.eval(), 30)
    assert [step for step, _ in seen] == [row.step for row in result.history]
    assert seen[-1][1] == result.history[-1].numbers
    assert {"loss", "learning_rate", "size"} <= set(seen[-1][1])
    assert "validation_loss" not in seen[-1][1]

    with pytest.raises(KeyboardInterrupt):
        train(SmallModel(), TRAIN, options=given, folder=tmp_path, on_row=stop, **mine)
    again = SmallModel(seed=9)
    resumed = train(again, TRAIN, options=given, folder=tmp_path, **mine)
    assert digest(again) == digest(whole)
    assert [(row.step, row.metrics) for row in resumed.history] == [(row.step, row.metrics) for row in result.history]
    with pytest.raises(ConfigurationError, match="optimizer Counting, now it is AdamW"):
        train(SmallModel(), TRAIN, options=given, folder=tmp_path)


def test_a_rate_of_zero_changes_nothing() -> None:
    def only_the_first(step: int, steps: int) -> float:
        return float(step == 0)

    def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": parameters[:1], "lr": 0.25}, {"params": parameters[1:]}], lr=0.5)

    models = [SmallModel(), SmallModel(), SmallModel()]
    for steps, model in enumerate(models[1:], start=1):
        train(model, TRAIN, options=options(**PLAIN, steps=steps, clip=None), optimizer=sgd, schedule=only_the_first)
    assert digest(models[1]) == digest(models[2])
    assert digest(models[0]) != digest(models[1])


def test_a_readout_on_states_takes_them_too() -> None:
    states = np.random.default_rng(0).standard_normal((4, 32, 5)).astype(np.float32)
    readout, given = LinearReadout(5, 3), TrainingOptions(steps=4, shard_epochs=1, context=32, batch=4)
    result = train(
        readout,
        [Shard(states, np.zeros((4, 32), np.int64))],
        options=given,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        evaluate=lambda model, step: {"bias": float(model.bias[0])},
    )
    assert result.history[-1].metrics == {"bias": pytest.approx(float(readout.bias.detach()[0]))}
    assert result.losses[-1] < math.log(3)
