"""The signal chain: each object against its definition, and as a chain against itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.signal import Mask, MaskConfig, Quantiser, SampleAndHold, average
from reservoir_hw.core.signal._mask import _TAPS, maximum_length_sequence


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(-1, 1, shape)


# ---- quantiser -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 3, 12])
@pytest.mark.parametrize("limits", [(-1.0, 1.0), (0.0, 3.3), (-2.0, 5.0)])
def test_quantiser_takes_the_nearest_of_its_levels(bits: int, limits: tuple[float, float]) -> None:
    quantiser = Quantiser(bits=bits, range=limits)
    levels = limits[0] + np.arange(2**bits) * (limits[1] - limits[0]) / 2**bits
    x = np.random.default_rng(0).uniform(*limits, 500)
    rounded, clipped = quantiser.apply(x)
    nearest = levels[np.abs(x[:, None] - levels).argmin(axis=1)]
    np.testing.assert_allclose(rounded, nearest, atol=1e-12)
    assert clipped == 0
    assert set(np.round(quantiser.apply(levels)[0] - levels, 12)) == {0.0}


def test_quantiser_at_the_ends_of_its_range() -> None:
    quantiser = Quantiser(bits=3)
    x = np.array([-1.0, 0.0, 0.9, 1.0, 1.01, -1.5, np.inf, np.nan])
    rounded, clipped = quantiser.apply(x)
    np.testing.assert_array_equal(rounded, [-1, 0, 0.75, 0.75, 0.75, -1, 0.75, np.nan])
    assert clipped == 3


def test_quantiser_refuses_where_it_shall_and_says_where() -> None:
    x = np.zeros((2, 3))
    x[1, 2] = -1.2
    with pytest.raises(InputRangeError, match=r"value at \(1, 2\) is -1\.2, beyond the range \[-1, 1\]"):
        Quantiser(bits=8, out_of_range="error").apply(x)
    with pytest.raises(InputRangeError, match=r"the value is 2, beyond the range \[-1, 1\]"):
        Quantiser(bits=8, out_of_range="error").apply(np.float64(2))
    assert Quantiser(bits=2).apply(np.float64(0.6)) == (0.5, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quantiser_keeps_dtype_and_library(dtype: str) -> None:
    x = 1.2 * random(3, 40).astype(dtype)
    before = x.copy()
    rounded, clipped = Quantiser(bits=6).apply(x)
    assert rounded.dtype == dtype
    assert clipped == np.count_nonzero(np.abs(x) > 1) > 0
    tensor, count = Quantiser(bits=6).apply(torch.from_numpy(x))
    assert tensor.dtype == getattr(torch, dtype)
    np.testing.assert_array_equal(tensor.numpy(), rounded)
    assert count == clipped
    np.testing.assert_array_equal(x, before)


# ---- mask ----------------------------------------------------------------------------------------------------------


def test_mask_is_a_linear_map_with_a_bias() -> None:
    mask = Mask(random(7, 3), random(7))
    u = random(2, 5, 3)
    np.testing.assert_allclose(mask.apply(u), u @ mask.matrix.T + mask.bias, atol=1e-15)
    assert (mask.nodes, mask.inputs) == (7, 3)
    assert not np.signbit(MaskConfig().build(7, 3).bias).any()
    assert mask.apply(u.astype(np.float32)).dtype == np.float32
    np.testing.assert_array_equal(Mask([[1, 2]]).apply([3, 4]), [11])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_masking_in_pieces_gives_the_same_bits(dtype: str) -> None:
    mask = MaskConfig(bias_scaling=0.3).build(400, 24)
    u = random(300, 24).astype(dtype)
    whole = mask.apply(u)
    np.testing.assert_array_equal(np.stack([mask.apply(row) for row in u]), whole)
    np.testing.assert_array_equal(np.concatenate([mask.apply(u[:77]), mask.apply(u[77:])]), whole)


def test_mask_goes_through_a_file_and_is_known_by_its_digest(tmp_path: Path) -> None:
    mask = MaskConfig(bias_scaling=1).build(20, 2, seed=1)
    mask.save(tmp_path / "mask.safetensors")
    loaded = MaskConfig(file=str(tmp_path / "mask.safetensors")).build(20, 2)
    np.testing.assert_array_equal(loaded.matrix, mask.matrix)
    np.testing.assert_array_equal(loaded.bias, mask.bias)
    assert loaded.digest() == mask.digest() != MaskConfig().build(20, 2, seed=1).digest()
    assert Mask(np.ones((2, 3))).digest() != Mask(np.ones((3, 2))).digest()
    with pytest.raises(ConfigurationError, match="takes 2 inputs to 20 nodes, not 3 inputs to 20 nodes"):
        MaskConfig(file=str(tmp_path / "mask.safetensors")).build(20, 3)
    with pytest.raises(ValueError, match="read-only"):
        mask.matrix[0, 0] = 1


@pytest.mark.parametrize("kind", ["uniform", "binary", "maximum_length", "chirp"])
def test_drawn_masks(kind: Any) -> None:
    mask = MaskConfig(kind=kind).build(100, 24)
    again = MaskConfig(kind=kind, seed=0).build(100, 24, seed=5)
    np.testing.assert_array_equal(again.matrix, mask.matrix)
    assert (MaskConfig(kind=kind).build(100, 24, seed=5).matrix != mask.matrix).any()
    assert np.abs(mask.matrix).max() <= 1
    assert np.linalg.matrix_rank(mask.matrix) == 24
    if kind in ("binary", "maximum_length"):
        assert set(np.unique(mask.matrix)) == {-1.0, 1.0}
    assert not mask.bias.any()
    scaled = MaskConfig(kind=kind, scaling=[0.5] * 23 + [2.0], bias_scaling=0.1).build(100, 24)
    np.testing.assert_allclose(scaled.matrix, mask.matrix * ([0.5] * 23 + [2.0]))
    assert 0.05 < np.abs(scaled.bias).max() <= 0.1


def test_the_mask_of_an_input_does_not_depend_on_how_many_there_are() -> None:
    for kind in ("uniform", "binary"):
        few, many = (MaskConfig(kind=kind).build(30, inputs).matrix for inputs in (1, 4))
        np.testing.assert_array_equal(many[:, 0], few[:, 0])


def test_a_whole_period_of_a_maximum_length_sequence_has_the_ideal_autocorrelation() -> None:
    mask = MaskConfig(kind="maximum_length").build(127, 1).matrix[:, 0]
    autocorrelation = [mask @ np.roll(mask, shift) for shift in range(127)]
    assert autocorrelation == [127] + [-1] * 126
    # The inputs take consecutive sections of one sequence.
    both = MaskConfig(kind="maximum_length").build(127, 2).matrix.T.ravel()
    bits = both > 0
    np.testing.assert_array_equal(bits[8:], bits[:-8] ^ bits[2:-6] ^ bits[3:-5] ^ bits[4:-4])


def test_every_shift_register_has_the_greatest_period() -> None:
    """Its polynomial is primitive: the order of x modulo it is 2^m - 1 (Lidl & Niederreiter 1994, theorem 3.16)."""
    for bits, taps in _TAPS.items():
        polynomial = 1 << bits | sum(1 << (bits - tap) for tap in taps)
        period = 2**bits - 1
        assert _power_of_x(period, polynomial, bits) == 1
        assert all(_power_of_x(period // prime, polynomial, bits) != 1 for prime in _prime_factors(period))
    with pytest.raises(ConfigurationError, match="more than 24 bits"):
        maximum_length_sequence(2**24, 0.0)


def _power_of_x(exponent: int, polynomial: int, bits: int) -> int:
    result, base = 1, 2
    while exponent:
        if exponent & 1:
            result = _product(result, base, polynomial, bits)
        base = _product(base, base, polynomial, bits)
        exponent >>= 1
    return result


def _product(a: int, b: int, polynomial: int, bits: int) -> int:
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a >> bits:
            a ^= polynomial
        b >>= 1
    return product


def _prime_factors(number: int) -> set[int]:
    found, divisor = set(), 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.add(divisor)
            number //= divisor
        divisor += 1
    return found | ({number} if number > 1 else set())


def test_a_chirp_oscillates_as_often_as_it_is_told() -> None:
    wave = MaskConfig(kind="chirp", chirp_cycles=(2, 10)).build(1000, 1).matrix[:, 0]
    crossings = np.flatnonzero(np.diff(np.sign(wave)))
    assert abs(len(crossings) - 12) <= 1
    assert crossings[1] - crossings[0] > 2 * (crossings[-1] - crossings[-2])


# ---- timing --------------------------------------------------------------------------------------------------------


def test_sample_and_hold() -> None:
    values = random(2, 6, 5).astype(np.float32)
    hold = SampleAndHold(points_per_node=4, sample_rate_hz=1e6)
    samples = hold.apply(values)
    assert samples.shape == (2, 6 * 5 * 4)
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(samples[0, :8], [values[0, 0, 0]] * 4 + [values[0, 0, 1]] * 4)


# ---- averaging -----------------------------------------------------------------------------------------------------


def test_average_of_repetitions_that_come_one_by_one() -> None:
    repetitions = 1e6 + random(16, 4, 3)
    result = average(iter(repetitions))
    np.testing.assert_allclose(result.mean, repetitions.mean(axis=0), rtol=1e-14)
    assert result.standard_deviation is not None
    np.testing.assert_allclose(result.standard_deviation, repetitions.std(axis=0, ddof=1), rtol=1e-8)
    assert result.n == 16
    alone = average(repetitions[:1])
    np.testing.assert_array_equal(alone.mean, repetitions[0])
    assert alone.standard_deviation is None


# ---- as a chain ----------------------------------------------------------------------------------------------------


def test_a_mask_of_one_to_one_scales_and_shifts() -> None:
    mask = MaskConfig(kind="one_to_one", scaling=[0.5, 2.0], offset=0.25).build(2, 2)
    np.testing.assert_array_equal(mask.apply([[1.0, -1.0]]), [[0.75, -1.75]])
