"""What a task declares of its inputs holds for all of them: a mask is made of it, before any of them is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reservoir_hw.core import registry
from reservoir_hw.tasks.task import Task, TaskConfig

SHORT = {"train_steps": 3000, "test_steps": 500}
DECLARED: list[tuple[str, dict[str, Any]]] = [
    ("narma", SHORT),
    ("memory_recall", SHORT),
    ("parity", SHORT),
    ("sine_square", {"train_periods": 50, "test_periods": 20}),
    ("channel_equalisation", SHORT),
    ("channel_equalisation", {**SHORT, "snr_db": 8}),
    ("mackey_glass", SHORT),
    ("mackey_glass", {**SHORT, "tau": 30, "scaling": "none"}),
    ("mackey_glass", {**SHORT, "scaling": "squash"}),
    ("lorenz", SHORT),
    ("lorenz", {**SHORT, "rho": 45.0}),
    ("henon", SHORT),
    ("kuramoto_sivashinsky", {"train_steps": 400, "test_steps": 100}),
    ("elman_grammar", {"sentences": 40}),
    ("validation", {"task": {"kind": "narma", **SHORT}}),
]


def made(kind: str, settings: dict[str, Any]) -> Task:
    config = registry.find("tasks", kind).load()
    assert issubclass(config, TaskConfig)
    return config.of(None, settings).build()


@pytest.mark.parametrize(("kind", "settings"), DECLARED, ids=str)
def test_inputs_lie_where_the_task_says(kind: str, settings: dict[str, Any]) -> None:
    task = made(kind, settings)
    channels = task.channels
    assert channels.range is not None
    for split in (task.train, task.test):
        u = split.inputs[split.valid] if split.inputs.shape[1] == split.targets.shape[1] else split.inputs
        assert channels.range[0] - 1e-6 <= u.min()
        assert u.max() <= channels.range[1] + 1e-6
        if channels.one_hot:
            np.testing.assert_array_equal(np.unique(u), np.asarray(channels.range, np.float32))
            np.testing.assert_array_equal((u == np.float32(channels.range[1])).sum(-1), 1)
    # It is no wish: the inputs use more than half of it.
    assert np.ptp(task.train.inputs) > 0.5 * (channels.range[1] - channels.range[0])
