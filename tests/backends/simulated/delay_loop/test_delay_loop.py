"""The simulated delay loop: its equations as the papers write them, and behind the contract."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from reservoir_hw import RidgeReadout, open_reservoir
from reservoir_hw.backends.simulated.delay_loop.delay_loop import DelayLoop, DelayLoopConfig
from reservoir_hw.backends.simulated.delay_loop.physics import Ikeda, MackeyGlass, Paquot
from reservoir_hw.backends.simulated.engines import EngineName
from reservoir_hw.backends.simulated.nonidealities.configuration import Nonidealities
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, MissingExtra, NotSupported
from reservoir_hw.core.reservoir_config import parse_reservoir
from reservoir_hw.core.signal import Mask, MaskConfig, Quantiser
from reservoir_hw.tasks.channel_equalisation import ChannelEqualisation
from reservoir_hw.tasks.narma import Narma

PHYSICS = {
    "mackey_glass": {"kind": "mackey_glass", "feedback_gain": 0.9, "input_gain": 0.7, "exponent": 7},
    "mackey_glass, any exponent": {"kind": "mackey_glass", "feedback_gain": 1.3, "input_gain": 0.7, "exponent": 2.6},
    "ikeda": {"kind": "ikeda", "feedback_gain": 0.8, "input_gain": 0.6, "phase": 0.3},
    "paquot": {"kind": "paquot", "feedback_gain": 0.8, "input_gain": 0.5, "phase": 0.2},
}
ENGINES = pytest.mark.parametrize("engine", ["numba", "torch"])
CONFIG: dict[str, Any] = {
    "kind": "delay_loop", "inputs": 3, "nodes": 23, "theta": 0.2, "mask": {"bias_scaling": 0.1}, "seed": 5,
}  # fmt: skip
NOISY = {"loop": {"noise": 0.01, "bandwidth": 0.7, "saturation": 0.8, "bits": 12}, "readout": {"noise": 0.01}}


def inputs(batch: int = 2, time: int = 30, width: int = 3) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, (batch, time, width)).astype(np.float32)


def delay_loop(**over: Any) -> DelayLoop:
    loop = open_reservoir({**CONFIG, **over})
    assert isinstance(loop, DelayLoop)
    return loop


def nonlinearity(physics: MackeyGlass | Ikeda | Paquot) -> Callable[[Any, Any], Any]:
    a, b = physics.feedback_gain, physics.input_gain
    if isinstance(physics, MackeyGlass):
        return lambda x, J: a * (x + b * J) / (1 + np.abs(x + b * J) ** physics.exponent)
    if isinstance(physics, Ikeda):
        return lambda x, J: a * np.sin(x + b * J + physics.phase) ** 2
    return lambda x, J: np.sin(a * x + b * J + physics.phase)


def reference(loop: DelayLoop, u: np.ndarray, theta: float = 0.2, shift: int = 0) -> np.ndarray:
    """Node after node in float64, for a delay of `shift` nodes more than a round.

    Node i is driven by node i - shift of the round before, where there is none by node N + i - shift of the round
    before that (or i - shift - N of its own); the first node follows the last one of the round before.
    """
    f = nonlinearity(loop.physics)
    decay = 0.0 if isinstance(loop.physics, Paquot) else np.exp(-theta)
    J = u @ loop.mask.matrix.T + loop.mask.bias
    batch, steps, nodes = J.shape
    x = np.zeros((batch, steps + 2, nodes))
    for n in range(2, steps + 2):
        for i in range(nodes):
            rounds, source = divmod(i - shift, nodes)
            before = x[:, n, i - 1] if i else x[:, n - 1, nodes - 1]
            x[:, n, i] = decay * before + (1 - decay) * f(x[:, n - 1 + rounds, source], J[:, n - 2, i])
    return x[:, 2:]


@ENGINES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("physics", PHYSICS)
@pytest.mark.parametrize("shift", [0, 1, 5, -4])
def test_states_follow_the_equation(physics: str, dtype: str, shift: int, engine: str) -> None:
    with delay_loop(physics=PHYSICS[physics], dtype=dtype, tau=0.2 * (23 + shift), engine=engine) as loop:
        loop.reset(2)
        states = np.asarray(loop.run(inputs()))
        truth = reference(loop, inputs().astype(float), shift=shift)
    assert states.dtype == dtype
    assert truth.std() > 0.04
    assert np.abs(states - truth).max() <= (2e-6 if dtype == "float32" else 1e-13)


@pytest.mark.slow
@ENGINES
def test_paquots_map_as_it_is_written(engine: EngineName) -> None:
    """x_i(n) = sin(α x_(i-1)(n-1) + β m_i u(n) + φ), the first node takes x_N(n-2): the default of this physics."""
    m = np.random.default_rng(0).uniform(-1, 1, 7)
    u = inputs(1, 12, 1).astype(float)
    x = np.zeros((14, 7))
    for n in range(2, 14):
        before = np.concatenate([x[n - 2, -1:], x[n - 1, :-1]])
        x[n] = np.sin(0.8 * before + 0.3 * m * u[0, n - 2, 0] + 0.1)
    with DelayLoop(Mask(m[:, None]), Paquot(phase=0.1), dtype="float64", engine=engine) as loop:
        np.testing.assert_allclose(np.asarray(loop.run(u))[0], x[2:], atol=1e-14)


def test_a_loop_with_a_response_time_is_the_solution_of_its_differential_equation() -> None:
    """Against a fine Euler integration of x' = -x + f(x(t - τ), J), J held for theta."""
    fine, theta, nodes = 2000, 0.2, 5
    u = inputs(1, 4, 1).astype(float)
    with DelayLoop(Mask(np.ones((nodes, 1))), Ikeda(), theta=theta, dtype="float64") as loop:
        states = np.asarray(loop.run(u))[0].ravel()
        f = nonlinearity(loop.physics)
    # The loop holds the value of a node for its theta, so the delayed value is that of the window's end.
    delayed, x, path = np.zeros(nodes), 0.0, []
    for step in u[0, :, 0]:
        ends = []
        for i in range(nodes):
            drive = f(delayed[i], step)
            for _ in range(fine):
                x += (drive - x) * theta / fine
            ends.append(x)
        delayed = np.array(ends)
        path += ends
    np.testing.assert_allclose(states, path, atol=1e-4)


@ENGINES
@pytest.mark.parametrize(("batch", "shift"), [(3, 0), (1, 1), (3, -4)])
@pytest.mark.parametrize("physics", PHYSICS)
def test_one_piece_equals_chunks_equals_steps_bit_for_bit(physics: str, batch: int, shift: int, engine: str) -> None:
    u = inputs(batch, 30)
    for nonidealities in ({}, NOISY):
        over = {
            "physics": PHYSICS[physics],
            "tau": 0.2 * (23 + shift),
            "nonidealities": nonidealities,
            "engine": engine,
        }
        with delay_loop(**over) as loop:
            loop.reset(batch)
            whole = np.asarray(loop.run(u))
        with delay_loop(**over) as loop:
            loop.reset(batch)
            chunks = np.concatenate([loop.run(u[:, a:b]) for a, b in ((0, 11), (11, 12), (12, 30))], axis=1)
        with delay_loop(**over) as loop:
            loop.reset(batch)
            steps = np.stack([np.asarray(loop.step(u[:, t])) for t in range(30)], axis=1)
        np.testing.assert_array_equal(chunks, whole)
        np.testing.assert_array_equal(steps, whole)


@ENGINES
def test_sequences_on_two_threads_have_the_bits_of_one_alone(engine: str) -> None:
    u = inputs(5, 1000)
    with delay_loop(engine=engine) as loop:
        loop.reset(5)
        together = np.asarray(loop.run(u))
        for row, states in zip(u, together, strict=True):
            loop.reset(1)
            np.testing.assert_array_equal(np.asarray(loop.run(row[None]))[0], states)


@ENGINES
@pytest.mark.parametrize("shift", [0, 1, 23])
@pytest.mark.parametrize("nonidealities", [{}, NOISY])
def test_a_restored_snapshot_goes_on_bit_for_bit(shift: int, nonidealities: dict[str, Any], engine: str) -> None:
    u = inputs()
    with delay_loop(nonidealities=nonidealities, tau=0.2 * (23 + shift), engine=engine) as loop:
        loop.reset(2)
        loop.run(u[:, :9])
        frozen = loop.snapshot()
        assert frozen["device.state"].shape == (2, 23 + shift)
        rest = np.asarray(loop.run(u[:, 9:]))
        loop.reset(1)
        loop.restore(frozen)
        np.testing.assert_array_equal(np.asarray(loop.run(u[:, 9:])), rest)


@ENGINES
@pytest.mark.parametrize("shift", [0, -4])
def test_transition_where_the_node_states_are_all_that_the_loop_holds(shift: int, engine: str) -> None:
    u = inputs()
    with delay_loop(tau=0.2 * (23 + shift), engine=engine) as loop:
        loop.reset(2)
        states = np.asarray(loop.run(u))
        np.testing.assert_array_equal(np.asarray(loop.transition(u[:, 9], states[:, 8])), states[:, 9])
        np.testing.assert_array_equal(np.asarray(loop.run(u[:, :1]))[:, 0], loop.transition(u[:, 0], states[:, -1]))


def test_no_transition_where_the_loop_holds_more() -> None:
    with delay_loop(physics="paquot") as loop, pytest.raises(NotSupported, match="holds 24 values, more than the 23"):
        loop.transition(inputs(1)[:, 0], np.zeros((1, 23)))


@ENGINES
@pytest.mark.parametrize("physics", ["mackey_glass", "paquot"])
def test_the_loop_s_non_idealities_act_on_each_virtual_node_in_turn(physics: str, engine: str) -> None:
    """y_j = (1 - b) y_(j-1) + b L tanh(x_j / L), rounded; x_j is made from the y before it."""
    b, limit, lsb = 0.6, 0.4, 2 / 2**10
    loop_terms = {"bandwidth": b, "saturation": limit, "bits": 10}
    with delay_loop(
        physics=PHYSICS[physics], dtype="float64", nonidealities={"loop": loop_terms}, engine=engine
    ) as loop:
        states = np.asarray(loop.run(inputs(1)))[0].ravel()
        f = nonlinearity(loop.physics)
        decay = 0.0 if physics == "paquot" else np.exp(-0.2)
        delay = 24 if physics == "paquot" else 23
        J = (inputs(1).astype(float) @ loop.mask.matrix.T + loop.mask.bias).ravel()
    y = np.zeros(delay + J.size)
    for j in range(J.size):
        x = decay * y[delay + j - 1] + (1 - decay) * f(y[j], J[j])
        new = (1 - b) * y[delay + j - 1] + b * limit * np.tanh(x / limit)
        y[delay + j] = np.floor(new / lsb + 0.5) * lsb
    # A state next to a rounding threshold may fall on the other side of it; none did in 690.
    np.testing.assert_allclose(states, y[delay:], atol=1e-12)


def test_sine_is_that_of_numpy() -> None:
    from reservoir_hw.backends.simulated.delay_loop.cpu_loop import sine

    for scale in (1.0, 30.0, 1e6):
        x = np.random.default_rng(0).uniform(-scale, scale, 5000)
        assert max(abs(sine(value) - np.sin(value)) for value in x) < 3e-16
    assert np.isnan(sine(np.inf))


@ENGINES
def test_bandwidth_of_the_loop_is_a_one_pole_low_pass(engine: str) -> None:
    share = -np.expm1(-2 * np.pi * 0.1)  # of a tenth of the sample rate
    open_loop = {"kind": "paquot", "feedback_gain": 0.0, "input_gain": 1.0}
    u = inputs(1)
    with delay_loop(physics=open_loop, dtype="float64", engine=engine) as loop:
        fast = np.asarray(loop.run(u))
    with delay_loop(
        physics=open_loop, dtype="float64", engine=engine, nonidealities={"loop": {"bandwidth": share}}
    ) as loop:
        slow = np.asarray(loop.run(u))
    np.testing.assert_allclose(slow.ravel(), lfilter([share], [1, share - 1], fast.ravel()), atol=1e-12)


@ENGINES
@pytest.mark.parametrize("batch", [1, 3])
def test_dac_bits_act_on_the_masked_input(batch: int, engine: str) -> None:
    open_loop = {"kind": "paquot", "feedback_gain": 0.0, "input_gain": 1.0}
    mask = {"scaling": 0.3}
    drive = {"bits": 5, "range": [-1.0, 1.0]}
    u = inputs(batch)
    with delay_loop(
        physics=open_loop, mask=mask, nonidealities={"drive": drive}, dtype="float64", engine=engine
    ) as loop:
        loop.reset(batch)
        assert loop.spec.input_range is None
        assert loop.spec.input_bits == 5
        states = np.asarray(loop.run(u))
        rounded, _ = Quantiser(bits=5).apply(loop.mask.apply(u.astype(float)))
        np.testing.assert_allclose(states, np.sin(rounded), atol=1e-14)
        assert loop.counters.clipped == 0


@ENGINES
def test_beyond_the_range_of_the_dac(engine: str) -> None:
    over: dict[str, Any] = {
        "engine": engine,
        "mask": {"scaling": 1.0},
        "nonidealities": {"drive": {"bits": 8, "range": [-1.0, 1.0]}},
    }
    small, large = 0.2 * inputs(), 3 * inputs()
    with delay_loop(**over) as loop:
        loop.reset(2)
        loop.run(small)
        frozen = loop.snapshot()
        with pytest.raises(InputRangeError, match=r"\(sequence, step, node\) = \(0, 0, \d+\) is .* lower mask.scaling"):
            loop.run(np.concatenate([large[:, :1], small], axis=1))
        with pytest.raises(InputRangeError, match="beyond the range"):
            loop.transition(large[:, 0], np.zeros((2, 23)))
        # It refused before the loop saw any of it.
        after = loop.snapshot()
        assert after.keys() == frozen.keys()
        for name, array in frozen.items():
            np.testing.assert_array_equal(after[name], array)
    with delay_loop(**over, out_of_range="clip") as loop:
        loop.reset(2)
        loop.run(large)
        outside = np.abs(loop.mask.apply(large)) > 1
        assert loop.counters.clipped == np.count_nonzero(outside) > 100
        loop.transition(large[:, 0], np.zeros((2, 23)))
        assert loop.counters.clipped == np.count_nonzero(outside) + np.count_nonzero(outside[:, 0])


@ENGINES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 3, 24])
def test_the_loop_masks_as_the_mask_does_to_the_bit(dtype: str, width: int, engine: str) -> None:
    """Driven by what `Mask.apply` makes of the inputs, one input for each node, it does the same."""
    u = inputs(1, 400, width).astype(dtype)
    u[:, ::3, 0] = 0
    mask = MaskConfig(bias_scaling=0.3, seed=4).build(50, width)
    masked = mask.apply(u)
    for batch in (1, 3):
        states = []
        for drive, matrix in ((u, mask), (masked, Mask(np.eye(50)))):
            with DelayLoop(matrix, Ikeda(), dtype=dtype, engine=engine) as loop:  # pyright: ignore[reportArgumentType]
                loop.reset(batch)
                states.append(np.asarray(loop.run(np.repeat(drive, batch, axis=0))))
        np.testing.assert_array_equal(states[0], states[1])
    with DelayLoop(mask, Ikeda(), dtype=dtype, engine=engine) as loop:  # pyright: ignore[reportArgumentType]
        bits = np.dtype(f"u{masked.itemsize}")
        ours = np.asarray(loop._masked(u if engine == "numba" else torch.from_numpy(u)))
        np.testing.assert_array_equal(ours.view(bits), masked.view(bits))


def test_one_hot_inputs_pick_columns_of_the_mask() -> None:
    open_loop = {"kind": "paquot", "feedback_gain": 0.0, "input_gain": 1.0}
    u = np.eye(24)[np.random.default_rng(0).integers(0, 24, 50)][None]
    with delay_loop(inputs=24, physics=open_loop, mask={"kind": "binary"}, dtype="float64") as loop:
        states = np.asarray(loop.run(u))
        np.testing.assert_allclose(states[0], np.sin(loop.mask.matrix[:, u[0].argmax(axis=1)].T), atol=1e-15)


@ENGINES
def test_out_is_filled_and_the_provenance_tells_the_loop(engine: str) -> None:
    u = inputs(2)
    with delay_loop(engine=engine) as loop:
        loop.reset(2)
        out = np.empty((2, 30, 23), np.float32)
        assert loop.run(u, out=out) is out
        loop.reset(2)
        np.testing.assert_array_equal(np.asarray(loop.run(u)), out)
        settings = loop.provenance()
    assert settings["engine"] == engine
    assert settings["delay_loop"] == {"theta": 0.2, "delay_nodes": 23, "mask": loop.mask.digest()}


def test_the_fingerprint_is_that_of_everything_that_makes_the_states() -> None:
    changes: list[dict[str, Any]] = [
        {}, {"seed": 6}, {"tau": 4.8}, {"theta": 0.1}, {"physics": "ikeda"}, {"physics": PHYSICS["mackey_glass"]},
        {"nonidealities": NOISY},
    ]  # fmt: skip
    found = set()
    for change in changes:
        with delay_loop(**change) as loop:
            found.add(loop.spec.identity.fingerprint)
    assert len(found) == len(changes)


def test_the_seed_of_the_mask_goes_before_that_of_the_loop() -> None:
    for over, seed in (({}, 5), ({"seed": 6}, 6), ({"seed": 6, "mask": {"seed": 5}}, 5)):
        with delay_loop(**{"mask": {}, **over}) as loop:
            np.testing.assert_array_equal(loop.mask.matrix, MaskConfig(seed=seed).build(23, 3).matrix)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"physics": "mackey"}, "expected tags: 'mackey_glass', 'ikeda', 'paquot'"),
        ({"physics": {"kind": "paquot", "exponent": 2}}, r"unknown key 'physics\.exponent'"),
        ({"tau": 4.7}, r"tau 4\.7 is 23\.5 times theta 0\.2, but must be a multiple of it, such as 4\.8"),
        ({"tau": 0.01}, "must be a multiple of it, such as 0.2"),
        ({"theta": 0}, "theta = 0: input should be greater than or equal to"),
        ({"mask": {"kind": "random"}}, r"mask\.kind = 'random'"),
        (
            {"physics": {"kind": "paquot", "input_gain": 1e39}},
            r"physics\.input_gain = 1e\+39 is more than float32 holds",
        ),
        ({"physics": {"kind": "mackey_glass", "exponent": 1e39}}, r"physics\.exponent = 1e\+39 is more than float32"),
    ],
)
def test_a_wrong_configuration_is_refused(over: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_reservoir(Document.from_mapping({**CONFIG, **over}, "here"))


def test_refused_when_it_is_built_or_meets_its_task() -> None:
    config = DelayLoopConfig(kind="delay_loop", nodes=5, mask=MaskConfig(scaling=[1.0, 2.0]))
    assert config.name == "mackey_glass(5)"
    with pytest.raises(ConfigurationError, match="2 numbers for 3 input channels"):
        config.for_inputs(3)
    with pytest.raises(ConfigurationError, match="needs `inputs`"):
        config.build()
    with pytest.raises(ConfigurationError, match="a delay loop has no weights"):
        DelayLoop(Mask([[1.0]]), Ikeda(), nonidealities=Nonidealities.model_validate("fixed_point_fpga"))
    with pytest.raises(ConfigurationError, match=r"physics\.feedback_gain = -1e\+39 is more than float32 holds"):
        DelayLoop(Mask([[1.0]]), Ikeda(feedback_gain=-1e39))
    with pytest.raises(ConfigurationError, match=r"mask reaches 1e\+39, more than float32 holds"):
        DelayLoop(Mask([[1.0], [-1e39]]), Ikeda())
    DelayLoop(Mask([[1e39]]), Ikeda(input_gain=1e39), dtype="float64")
    with pytest.raises(ConfigurationError, match="a delay and a theta above 0"):
        DelayLoop(Mask([[1.0]]), Ikeda(), delay_nodes=0)


def test_without_numba_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingExtra, match=r"numba, which is not installed: pip install 'reservoir-hw\[sim\]'"):
        delay_loop(engine="numba")
    with delay_loop() as loop:
        assert loop.provenance()["engine"] == "torch"


# ---- what the loops are worth --------------------------------------------------------------------------------------


def narma10(dataset: int, **over: Any) -> float:
    """NMSE of a linear readout, 1000 steps for learning and 1000 for the test as in Paquot et al. 2012."""
    task = Narma(dataset=dataset, train_steps=1000, test_steps=1000)
    with delay_loop(**{"inputs": 1, "seed": dataset, "mask": {}, "physics": "paquot", "nodes": 50, **over}) as loop:
        train, test = np.asarray(loop.run(task.train.inputs)), np.asarray(loop.run(task.test.inputs))
    readout = RidgeReadout(1e-9, solver="qr", washout=100).fit(train, task.train.targets)
    return task.evaluate(np.asarray(readout.predict(test))).metrics["nmse"]


def test_narma10_is_as_published() -> None:
    """0.168 ± 0.015 for 50 nodes (Paquot et al. 2012)."""
    errors = [narma10(dataset) for dataset in range(6)]
    assert 0.14 < np.mean(errors) < 0.20


def test_float32_costs_nothing_in_narma10() -> None:
    assert narma10(0) == pytest.approx(narma10(0, dtype="float64"), rel=0.01)


def test_channel_equalisation() -> None:
    """Below 1e-3 at 24 dB with 50 nodes, worse the fewer bits the ADC has."""
    task = ChannelEqualisation(snr_db=24, test_steps=50_000)
    physics = {"kind": "paquot", "feedback_gain": 0.2, "input_gain": 0.1, "phase": 0.6}
    errors = []
    for bits in (None, 12, 10, 8):
        with delay_loop(
            inputs=1, nodes=50, mask={}, physics=physics, nonidealities={"readout": {"bits": bits}}
        ) as loop:
            train, test = np.asarray(loop.run(task.train.inputs)), np.asarray(loop.run(task.test.inputs))
        readout = RidgeReadout(1e-6, washout=100).fit(train, task.train.targets)
        errors.append(task.evaluate(np.asarray(readout.predict(test))).metrics["symbol_error_rate"])
    assert errors[0] < 1e-3
    assert (np.diff(errors) > 0).all()
