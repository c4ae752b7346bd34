"""The signal chain: each object against its definition, and as a chain against itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.signal import LowPass, Mask, MaskConfig, Quantiser, SampleAndHold, Sampler, Scaling, average
from reservoir_hw.core.signal._mask import _TAPS, maximum_length_sequence


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(-1, 1, shape)


# ---- scaling -------------------------------------------------------------------------------------------------------


def test_scaling_takes_one_range_to_another_and_back() -> None:
    volts = Scaling.between((-1, 1), (0, 3.3))
    np.testing.assert_allclose(volts.apply(np.array([-1.0, 0.0, 1.0])), [0, 1.65, 3.3], atol=1e-15)
    x = random(2, 5)
    np.testing.assert_allclose(volts.invert(volts.apply(x)), x, atol=1e-15)
    assert Scaling.between((0, 1), (2, -2)) == Scaling(gain=-4, offset=2)


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


def test_sample_and_hold_and_back() -> None:
    values = random(2, 6, 5).astype(np.float32)
    hold = SampleAndHold(points_per_node=4, sample_rate_hz=1e6)
    samples = hold.apply(values)
    assert samples.shape == (2, 6 * 5 * 4)
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(samples[0, :8], [values[0, 0, 0]] * 4 + [values[0, 0, 1]] * 4)
    for position in (0.0, 0.5, 0.99):
        sampler = Sampler(theta_s=hold.theta_s, sample_rate_hz=1e6, position=position)
        np.testing.assert_array_equal(sampler.apply(samples, 6, 5), values)


def test_sampler_with_another_rate_and_a_delay_over_a_long_record() -> None:
    values = np.arange(4000.0).reshape(40, 100)
    # A digitizer that takes 3.7 samples per node, and 12.3 sample periods before the first of them.
    theta, rate, delay = 1e-6, 3.7e6, 12.3 / 3.7e6
    sampler = Sampler(theta_s=theta, sample_rate_hz=rate, delay_s=delay)
    time = np.arange(sampler.samples_needed(40, 100)) / rate
    samples = np.floor(np.maximum(time - delay, 0) / theta)
    np.testing.assert_array_equal(sampler.apply(samples, 40, 100), values)
    with pytest.raises(ShapeError, match=r"need \d+ samples at 3\.7e\+06 Hz, the waveform has \d+: acquire for longer"):
        sampler.apply(samples[:-1], 40, 100)


def test_sampler_averages_within_a_window() -> None:
    samples = np.arange(40.0)
    sampler = Sampler(theta_s=10.0, sample_rate_hz=1.0, position=0.7, average=0.4)
    assert sampler.samples_averaged == 4
    np.testing.assert_array_equal(sampler.apply(samples, 2, 2), [[6.5, 16.5], [26.5, 36.5]])
    noisy = samples // 10 + np.random.default_rng(0).standard_normal((500, 40))
    single = Sampler(theta_s=10.0, sample_rate_hz=1.0)
    assert sampler.apply(noisy, 2, 2).std(axis=0).mean() < 0.6 * single.apply(noisy, 2, 2).std(axis=0).mean()


# ---- low-pass ------------------------------------------------------------------------------------------------------


def test_low_pass_in_chunks_gives_the_same_bits() -> None:
    low_pass = LowPass(bandwidth_hz=30, sample_rate_hz=1000)
    x = random(2, 3, 200)
    whole, last = low_pass.apply(x)
    parts, before = [], np.zeros((2, 3))
    for chunk in (x[..., :1], x[..., 1:80], x[..., 80:80], x[..., 80:]):
        filtered, before = low_pass.apply(chunk, before)
        parts.append(filtered)
    np.testing.assert_array_equal(np.concatenate(parts, axis=-1), whole)
    np.testing.assert_array_equal(before, last)
    np.testing.assert_array_equal(last, whole[..., -1])


def test_low_pass_is_an_rc_element() -> None:
    low_pass = LowPass(bandwidth_hz=5, sample_rate_hz=1000)
    step, _ = low_pass.apply(np.ones(300))
    np.testing.assert_allclose(step, 1 - np.exp(-2 * np.pi * 5 * np.arange(1, 301) / 1000), atol=1e-12)
    wave = np.sin(2 * np.pi * 5 * np.arange(2000) / 1000)
    assert abs(low_pass.apply(wave)[0][1000:].max() - 0.5**0.5) < 0.01
    np.testing.assert_allclose(low_pass.apply(np.full(5, 3.0), 3.0)[0], 3.0)


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
