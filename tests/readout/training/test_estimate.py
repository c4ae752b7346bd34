from __future__ import annotations

import pytest
import torch
from toys import Toy
from training_case import VOCABULARY, options, text

from reservoir_hw.readout import LAERC, LinearReadout, ReservoirLayer, ReservoirLM, random_embedding
from reservoir_hw.readout.training import HarvestedShards, estimate_training, train


def test_steps_times_layers_times_period() -> None:
    with Toy(step_period_s=2e-6, reset_time_s=1e-3) as a, Toy(step_period_s=2e-6, reset_time_s=1e-3) as b:
        model = LAERC(VOCABULARY, 2, [ReservoirLayer(a), ReservoirLayer(b)])
        found = estimate_training(model, text(3000), options=options(evaluation_steps=None))
    # 30 steps of 2 batches; the 8 sequences of a batch go side by side.
    assert (found.training_steps, found.layers, found.steps_per_layer, found.resets_per_layer) == (30, 2, 960, 60)
    assert found.device_steps == 1920
    assert found.seconds == pytest.approx(1920 * 2e-6 + 120 * 1e-3)
    assert str(found) == (
        "30 training steps: 960 time steps × 2 reservoir layers = 1,920 device steps, 0.124 s of device time"
    )


@pytest.mark.parametrize("max_batch", [1, 3])
def test_what_is_estimated_is_what_is_driven(max_batch: int) -> None:
    chosen = options(steps=4, evaluation_steps=3, batch=4, accumulate=1)
    with Toy(max_batch=max_batch, step_period_s=60.0) as device:
        layer = ReservoirLayer(device)
        model = ReservoirLM(random_embedding(VOCABULARY, 2, seed=0), layer, LinearReadout(2, VOCABULARY)).double()
        found = estimate_training(model, text(3000), text(200, "valid"), options=chosen)
        device.driven.clear()
        train(model, text(3000), text(200, "valid"), options=chosen)
        assert sum(u.shape[1] for u in device.driven) == found.steps_per_layer
        assert len(device.driven) == found.resets_per_layer
        # 12 windows of validation after the steps 3 and 4, in threes of batches.
        per_batch = {1: 4, 3: 2}[max_batch]
        assert found.steps_per_layer == (4 + 2 * 3) * per_batch * 16
        assert "days of device time" in str(found) or "h of device time" in str(found)
        shards = HarvestedShards(model, text(3000), options=chosen, shards=5)
        device.driven.clear()
        for number in range(5):
            _ = shards[number]
        assert sum(u.shape[1] for u in device.driven) == shards.estimate().steps_per_layer
        assert str(shards.estimate()).startswith("harvest: ")


def test_simulations_have_no_period() -> None:
    with Toy() as device:
        model = LAERC(VOCABULARY, 2, [ReservoirLayer(device)])
        found = estimate_training(model, text(3000), options=options())
    assert found.seconds is None
    assert "no step period is declared" in str(found)
    assert torch.is_grad_enabled()
