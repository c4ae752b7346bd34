"""The numbers of `core/seeds.py` in torch."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from reservoir_hw.backends.simulated.nonidealities import torch_noise  # noqa: E402
from reservoir_hw.core import seeds  # noqa: E402

SEQUENCES = [0, 3, 2**40]


def test_the_words_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        key, counter = rng.integers(0, 2**64, 2, np.uint64), rng.integers(0, 2**63, 4, np.uint64)
        words = torch_noise.philox_words(
            (int(key[0]), int(key[1])),
            # numpy counts up before it draws.
            tuple(torch.tensor([number]) for number in (int(counter[0]) + 1, *map(int, counter[1:]))),  # pyright: ignore
        )
        drawn = np.random.Philox(key=key, counter=counter).random_raw(4)
        np.testing.assert_array_equal(np.array([word.item() for word in words]).view(np.uint64), drawn)


@pytest.mark.parametrize("size", [1, 3, 4, 101])
@pytest.mark.parametrize("first", [0, 5, 10**9])
@pytest.mark.parametrize("seed", [0, 7, 2**63 + 5, 2**64 - 1, 2**70 + 3])
def test_uniforms_are_equal_to_the_bit_and_normals_within_rounding(seed: int, first: int, size: int) -> None:
    drawn = {
        of: np.array([getattr(seeds, of)(seed, sequence, first, 7, size, "x") for sequence in SEQUENCES])
        for of in ("step_uniform", "step_noise")
    }
    ours = {of: getattr(torch_noise, of)(seed, torch.tensor(SEQUENCES), first, 7, size, "x").numpy() for of in drawn}
    np.testing.assert_array_equal(ours["step_uniform"], drawn["step_uniform"])
    np.testing.assert_allclose(ours["step_noise"], drawn["step_noise"], rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 50])
def test_no_bit_depends_on_the_chunks_or_on_the_other_sequences(size: int) -> None:
    together = torch.arange(3)
    whole = torch_noise.step_noise(1, together, 0, 400, size, "x")
    steps = [torch_noise.step_noise(1, together, t, 1, size, "x") for t in range(400)]
    alone = [torch_noise.step_noise(1, together[k, None], 0, 400, size, "x") for k in range(3)]
    assert torch.equal(torch.cat(steps, 1), whole)
    assert torch.equal(torch.cat(alone), whole)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_numbers_of_a_gpu_are_those_of_the_cpu() -> None:
    for of, tolerance in (("step_uniform", 0.0), ("step_noise", 1e-6)):
        drawn = [
            getattr(torch_noise, of)(2**63 + 5, torch.tensor(SEQUENCES, device=device), 5, 300, 101, "x").cpu()
            for device in ("cpu", "cuda")
        ]
        torch.testing.assert_close(drawn[0], drawn[1], rtol=0, atol=tolerance)
