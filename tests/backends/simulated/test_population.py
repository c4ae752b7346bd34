"""Populations: each member is what its own runs would have made of it."""

import numpy as np
import pytest

pytest.importorskip("numba")

from reservoir_hw.backends.simulated import population, reservoir
from reservoir_hw.backends.simulated.delay_loop.delay_loop import DelayLoopConfig
from reservoir_hw.backends.simulated.esn import cpu_loop
from reservoir_hw.backends.simulated.esn.esn import EsnConfig
from reservoir_hw.backends.simulated.gated.gated_esn import GatedEsnConfig
from reservoir_hw.backends.simulated.population import Population, run_population
from reservoir_hw.core import threads
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, InputRangeError, NotOpen, ShapeError, StateLost

NOISE = {"loop": {"noise": 0.01, "drift": 0.01}, "readout": {"noise": 0.01, "lost_samples": 0.02, "bits": 6}}


def esn(**settings):
    return lambda seed: EsnConfig(kind="esn", inputs=2, seed=seed, **{"nodes": 30, **settings})


def gated(**settings):
    return lambda seed: GatedEsnConfig(kind="gated_esn", inputs=2, seed=seed, **{"nodes": 30, **settings})


def delay_loop(**settings):
    return lambda seed: DelayLoopConfig(kind="delay_loop", nodes=20, inputs=2, seed=seed, **settings)


KINDS = {
    "esn": esn(),
    "esn of settings of their own": lambda seed: esn(spectral_radius=0.5 + 0.1 * seed, leak_rate=1 - 0.2 * seed)(seed),
    "esn whose steps take two threads": esn(nodes=500, spectral_radius=None),
    "sparse esn": esn(connections_per_node=4),
    "esn with noise": esn(nonidealities=NOISE),
    "esn in float64": esn(dtype="float64", activation="relu"),
    "gated_esn": gated(),
    "sparse gated_esn": gated(connectivity=0.1),
    "delay_loop": delay_loop(),
    "delay_loop with noise": delay_loop(nonidealities=NOISE),
}


def opened(config, members=4):
    return [config(seed).build().open() for seed in range(members)]


def drive(*shape):
    return np.random.default_rng(7).uniform(-1, 1, shape).astype(np.float32)


@pytest.fixture
def two_threads(monkeypatch):
    """As on a machine of two cores, whichever this one has, and however short the runs are."""
    monkeypatch.setattr(threads, "cores", lambda: 2)
    monkeypatch.setattr(cpu_loop, "cores", lambda: 2)
    monkeypatch.setattr(population, "_THREADED", 0)


@pytest.mark.parametrize("batch", [1, 3, 5, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_members_are_what_single_runs_make_of_them(kind, batch, two_threads):
    together, alone = opened(KINDS[kind]), opened(KINDS[kind])
    for one in (*together, *alone):
        one.reset(batch)
    for steps in (7, 1, 12):
        u = drive(batch, steps, 2)
        states = run_population(together, u)
        assert states.shape == (4, batch, steps, together[0].spec.nodes)
        for number, one in enumerate(alone):
            np.testing.assert_array_equal(states[number], one.run(u))
    assert len(np.unique(states[:, 0, -1], axis=0)) == 4
    for one, other in zip(together, alone, strict=True):
        assert one.counters == other.counters
        assert one.steps_driven == other.steps_driven == 20
        for name, array in other.snapshot().items():
            np.testing.assert_array_equal(one.snapshot()[name], array)


def test_inputs_of_their_own_and_given_memory(two_threads):
    together, alone = opened(esn()), opened(esn())
    u = drive(4, 1, 10, 2)
    out = np.empty((4, 1, 10, 30), np.float32)
    assert run_population(together, u, out) is out
    for number, one in enumerate(alone):
        np.testing.assert_array_equal(out[number], one.run(u[number]))


def test_torch_members():
    torch = pytest.importorskip("torch")
    together, alone = opened(esn(gradients=True)), opened(esn(gradients=True))
    u = torch.from_numpy(drive(1, 10, 2)).requires_grad_()
    states = run_population(together, u)
    for number, one in enumerate(alone):
        torch.testing.assert_close(states[number], one.run(u), rtol=0, atol=0)
    states.sum().backward()
    assert u.grad is not None
    assert u.grad.abs().min() > 0
    given = run_population(together, u.detach().numpy())
    assert isinstance(given, np.ndarray)
    # Tensors are taken by members that compute in numpy, too.
    compiled = run_population(opened(esn()), u.detach())
    torch.testing.assert_close(compiled, torch.as_tensor(states).detach(), rtol=0, atol=2e-6)


@pytest.fixture
def launches(monkeypatch):
    """How many steps each launch of batched products in torch has computed."""
    torch_loop = pytest.importorskip("reservoir_hw.backends.simulated.esn.torch_loop")
    run, seen = torch_loop.run_members, []

    def counted(weights, u, *arguments, **more):
        seen.append(u.shape[2])
        return run(weights, u, *arguments, **more)

    monkeypatch.setattr(torch_loop, "run_members", counted)
    return seen


@pytest.mark.parametrize("own", [False, True], ids=["the same inputs", "inputs of their own"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"nonidealities": NOISE}, {"leak_rate": 0.5, "dtype": "float64"}],
    ids=["ideal", "noise", "float64"],
)
def test_tensors_take_one_launch(settings, own, launches, monkeypatch):
    # Noise is drawn, and so the engine asked, in pieces of 5 steps.
    monkeypatch.setattr(reservoir, "_CHUNK", 5 * 3 * 30)
    config = esn(engine="torch", **settings)
    members, alone = opened(config), opened(config)
    together = Population(members)
    for one in (*members, *alone):
        one.reset(3)
    for steps in (12, 3):
        u = drive(*([4] if own else []), 3, steps, 2)
        states = together.run(u)
        for number, one in enumerate(alone):
            expected = one.run(u[number] if own else u)
            if "nonidealities" in settings:
                # An ADC of 6 bits may round what differs by rounding to the next level.
                assert np.isclose(states[number], expected, rtol=0, atol=1e-5).mean() > 0.99
            else:
                np.testing.assert_allclose(states[number], expected, rtol=0, atol=2e-6)
    assert launches == ([5, 5, 2, 3] if "nonidealities" in settings else [12, 3])


def test_a_launch_goes_on_without_members_that_fail(launches):
    members, alone = opened(esn(engine="torch"), 3), opened(esn(engine="torch"), 3)
    u = drive(3, 1, 5, 2)
    bad = u.copy()
    bad[1, 0, 3] = np.nan
    several = Population(members)
    with pytest.raises(InputRangeError, match="not a number"):
        several.run(bad)
    assert [one.steps_driven for one in members] == [5, 0, 5]
    states = several.run(u)
    for number in (0, 2):
        alone[number].run(u[number])
    for number, one in enumerate(alone):
        np.testing.assert_allclose(states[number], one.run(u[number]), rtol=0, atol=2e-6)
    assert launches == [5, 5]


def test_a_launch_of_members_that_diverge(launches):
    linear = esn(activation="identity", engine="torch")
    members = [linear(0), esn(activation="identity", engine="torch", spectral_radius=1e30)(1), linear(2)]
    members = [one.build().open() for one in members]
    with pytest.raises(DeviceFault, match="not finite"):
        run_population(members, drive(1, 20, 2))
    with pytest.raises(StateLost, match="call reset"):
        run_population(members, drive(1, 20, 2))
    assert [one.steps_driven for one in members] == [40, 0, 40]


def test_members_without_a_common_launch_take_turns(launches):
    for configs in (
        [esn(engine="torch")(0), esn(engine="torch", nonidealities=NOISE)(1)],
        [esn(engine="torch")(0), esn(engine="torch", activation="relu")(1)],
        [esn(engine="torch", nodes=200, connections_per_node=3)(seed) for seed in range(2)],
        [gated(engine="torch")(seed) for seed in range(2)],
    ):
        u = drive(1, 6, 2)
        states = run_population([config.build().open() for config in configs], u)
        for number, config in enumerate(configs):
            np.testing.assert_array_equal(states[number], config.build().open().run(u))
    assert not launches


def test_new_weights_are_taken(launches):
    members = opened(esn(engine="torch"), 2)
    several = Population(members)
    u = drive(1, 6, 2)
    several.run(u)
    other = esn()(9).build().weights
    members[1].upload({"W": other.recurrent(), "W_in": other.W_in})
    members[1].reset()
    np.testing.assert_allclose(several.run(u)[1], esn()(9).build().open().run(u)[0][None], rtol=0, atol=2e-6)
    assert len(launches) == 2


def test_members_that_do_not_fit_are_refused_before_anything_is_driven():
    first = esn()(0).build().open()
    for other, what in (
        (esn(nodes=31)(1), "nodes 31 instead of 30"),
        (gated()(1), "kind gated_esn instead of esn"),
        (esn(dtype="float64")(1), "dtype float64 instead of float32"),
    ):
        with pytest.raises(ConfigurationError, match=f"reservoir 1 of the population does not fit the first: {what}"):
            run_population([first, other.build().open()], drive(1, 5, 2))
    longer = esn()(1).build().open()
    longer.reset(3)
    with pytest.raises(ConfigurationError, match="sequences 3 instead of 1"):
        run_population([first, longer], drive(1, 5, 2))
    with pytest.raises(ConfigurationError, match="stands twice"):
        run_population([first, first], drive(1, 5, 2))
    with pytest.raises(ConfigurationError, match="at least one"):
        run_population([], drive(1, 5, 2))
    with pytest.raises(NotOpen):
        run_population([first, esn()(1).build()], drive(1, 5, 2))
    for wrong in (drive(5, 2), drive(3, 1, 5, 2)):
        with pytest.raises(ShapeError, match="inputs of 1 reservoirs must be"):
            run_population([first], wrong)
    with pytest.raises(ShapeError, match="members, batch, time, nodes"):
        run_population([first], drive(1, 5, 2), np.empty((1, 5, 30), np.float32))
    assert first.at_rest


def test_a_member_that_fails_is_named_and_the_others_are_driven(two_threads):
    grow = {"activation": "identity", "spectral_radius": 1e30}
    members = [esn(activation="identity")(0), esn(**grow)(1), esn(**grow)(2), esn(activation="identity")(3)]
    members = [one.build().open() for one in members]
    with pytest.raises(DeviceFault, match="not finite") as caught:
        run_population(members, drive(1, 20, 2))
    assert caught.value.__notes__[-1] == "this was reservoir 1 of 4 that were driven together"
    assert [one.steps_driven for one in members] == [20, 0, 0, 20]
    assert [one.state_lost is None for one in members] == [True, False, False, True]


def test_short_runs_go_on_in_turn(monkeypatch):
    """Threads would wait for the interpreter longer than they compute."""
    used = []
    share_out = threads.share_out

    def counted(work, parts, most):
        used.append(most)
        share_out(work, parts, most)

    monkeypatch.setattr(threads, "cores", lambda: 2)
    monkeypatch.setattr(threads, "share_out", counted)
    members = opened(esn(), 2)
    for steps in (100, 2000):
        run_population(members, drive(1, steps, 2))
    assert used == [1, 2]
    assert [one.steps_driven for one in members] == [2100, 2100]
