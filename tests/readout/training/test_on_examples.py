"""Training on examples: data sets with an index, and batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_models import Ups, classifier
from training_models import by_examples as options

from reservoir_hw.readout.training import train
from reservoir_hw.readout.training.examples import by_length


class Seen(nn.Module):
    """Keeps what its loss was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.batches: list[tuple[Tensor, ...]] = []

    def loss(self, *batch: Tensor) -> Tensor:
        self.batches.append(batch)
        return (self.weight - batch[1].float()).square().mean()


def test_fewer_examples_than_a_batch() -> None:
    order = by_length(np.array([3, 1, 2]), 8, 0)
    assert [sorted(order(3 * epoch, 3 * epoch + 3)) for epoch in range(4)] == [[0, 1, 2]] * 4


def test_what_the_loss_is_given() -> None:
    data, model = Ups(), Seen()
    train(model, data, options=options(steps=5, epochs=None))
    for u, labels, lengths in model.batches:
        assert u.shape[:2] == (8, lengths.max())
        assert labels.dtype == torch.int64
        for row, label, steps in zip(u, labels, lengths, strict=True):
            found = [n for n, one in enumerate(data.series) if np.array_equal(one, row[:steps].numpy())]
            assert [int(data.labels[n]) for n in found] == [int(label)]
            assert not row[steps:].any()
    # Of equal length there are no lengths.
    equal = torch.utils.data.TensorDataset(torch.zeros(20, 4, 3), torch.arange(20))
    model = Seen()
    train(model, equal, options=options(steps=1, epochs=None))
    assert [len(batch) for batch in model.batches] == [2]


@pytest.mark.slow
def test_learns_and_validates(tmp_path: Path) -> None:
    model = classifier()
    valid = Ups(50, "valid")
    result = train(model, Ups(), valid, options=options(epochs=20, keep="best"), folder=tmp_path)
    assert result.best_loss is not None
    assert result.best_loss < 0.2
    whole = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(one) for one in valid.series], batch_first=True)
    lengths = torch.tensor([len(one) for one in valid.series])
    # Batches of 8 and one of 2: a mean over the labels, and not over the batches.
    loss = float(model.loss(whole, torch.from_numpy(valid.labels), lengths).detach())
    assert result.best_loss == pytest.approx(loss, rel=1e-5)


SCRIPT = """\
import json, os, sys
from training_models import Ups, by_examples as options, classifier
from reservoir_hw.readout.training import train
model = classifier()
result = train(model, Ups(), Ups(49, "valid"), options=options(log_steps=1), folder=sys.argv[1])
if os.environ["RANK"] == "0":
    losses = {"losses": result.losses.tolist(), "validation": result.validation_losses.tolist()}
    open(sys.argv[1] + "/result.json", "w").write(json.dumps(losses))
"""


@pytest.mark.slow
def test_two_processes_are_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, tmp_path],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path},
    )
    found = json.loads((tmp_path / "result.json").read_text())
    alone = train(classifier(), Ups(), Ups(49, "valid"), options=options(log_steps=1))
    np.testing.assert_allclose(found["losses"], alone.losses, atol=2e-6)
    # 49 make a last batch of one, which two cannot share.
    np.testing.assert_allclose(found["validation"], alone.validation_losses, atol=2e-6)
