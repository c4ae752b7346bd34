"""Several devices as one: what they do together is what each does alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import TOY, SnapshotToy, Toy

from reservoir_hw import open_reservoir
from reservoir_hw.backends.parallel import Parallel, ParallelConfig, Part
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceBusy,
    DeviceDisconnected,
    DeviceFault,
    DeviceTimeout,
    InputRangeError,
    NotSupported,
    StateLost,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import parse_reservoir
from reservoir_hw.core.spec import Identity
from reservoir_hw.experiment.configuration.experiment import parse_experiment

BENCH = Identity(vendor="tests", model="bench", simulated=False)
ESN: dict[str, Any] = {"kind": "esn", "nodes": 30, "seed": 1, "input_scaling": 0.4, "connections_per_node": 5}
OTHER: dict[str, Any] = {"kind": "esn", "nodes": 20, "seed": 2, "leak_rate": [0.2, 0.9]}


def inputs(batch: int = 1, time: int = 20, channels: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (batch, time, channels)).astype(np.float32)


def parallel(*devices: dict[str, Any], **over: Any) -> dict[str, Any]:
    return {"kind": "parallel", "devices": [d if "reservoir" in d else {"reservoir": d} for d in devices], **over}


def alone(config: dict[str, Any], u: np.ndarray) -> np.ndarray:
    with open_reservoir(config, inputs=u.shape[2]) as reservoir:
        if len(u) > 1:
            reservoir.reset(len(u))
        return np.asarray(reservoir.run(u))


def truth(u: np.ndarray) -> np.ndarray:
    states, x = np.empty(u.shape), np.zeros(u[:, 0].shape)
    for t in range(u.shape[1]):
        x = x / 2 + u[:, t]
        states[:, t] = x
    return states


def toys(*devices: Reservoir, channels: int = 2) -> Parallel:
    return Parallel([Part(device, label=f"toy {name}") for name, device in zip("abc", devices, strict=False)], channels)


# ---- together as alone -----------------------------------------------------------------------------


def test_noise_is_that_of_each_alone() -> None:
    noisy = {**ESN, "nonidealities": {"loop": {"noise": 0.1}, "seed": 3}}
    expected = np.concatenate([alone(noisy, inputs()), alone(OTHER, inputs())], axis=2)
    with open_reservoir(parallel(noisy, OTHER), inputs=2) as both:
        np.testing.assert_array_equal(both.run(inputs()), expected)
        assert not both.spec.deterministic


def test_masks_spread_the_inputs_of_a_device_and_of_the_whole() -> None:
    masked = {**OTHER, "inputs": 4, "input_mask": {"kind": "uniform", "seed": 5}}
    expected = np.concatenate([alone(ESN, inputs()), alone(masked, inputs())], axis=2)
    with open_reservoir(parallel(ESN, masked), inputs=2) as both:
        np.testing.assert_array_equal(both.run(inputs()), expected)
    with open_reservoir(parallel(ESN, OTHER, inputs=4, input_mask={"kind": "uniform", "seed": 5}), inputs=2) as both:
        spread = both.run(inputs())
        assert both.spec.inputs == 2
    np.testing.assert_array_equal(spread[:, :, 30:], alone(masked, inputs()))


def test_parallel_in_parallel() -> None:
    u = inputs()
    nested = parallel({"reservoir": parallel(ESN, OTHER), "channels": [1]}, ESN)
    expected = np.concatenate([alone(ESN, u[:, :, [1]]), alone(OTHER, u[:, :, [1]]), alone(ESN, u)], axis=2)
    with open_reservoir(nested, inputs=2) as all_three:
        np.testing.assert_array_equal(all_three.run(u), expected)
        state = all_three.snapshot()
        following = all_three.run(u)
        all_three.restore(state)
        np.testing.assert_array_equal(all_three.run(u), following)
    broken = Parallel([Part(toys(Toy(), Toy(fails_at=3)), label="inner"), Part(Toy(), label="toy c")], 2)
    with broken, pytest.raises(DeviceFault, match=r"device 0 \(inner\): device 1 \(toy b\): toy fault") as caught:
        broken.run(inputs())
    assert caught.value.states.shape == (1, 3, 6)


def test_gradients_pass_through_where_all_devices_let_them() -> None:
    u = torch.from_numpy(inputs()).requires_grad_()
    with open_reservoir(parallel({**ESN, "gradients": True}, {**OTHER, "gradients": True}), inputs=2) as both:
        both.run(u)[:, -1].sum().backward()
        assert u.grad is not None
        assert u.grad.abs().sum() > 0
        with torch.no_grad():
            assert not torch.as_tensor(both.run(u)).requires_grad
    with open_reservoir(parallel({**ESN, "gradients": True}, OTHER), inputs=2) as both:
        assert "device 1 (ESN(20))" in both.spec.not_supported["differentiable"]
        with pytest.raises(NotSupported, match="not differentiable"):
            both.run(u)
        assert isinstance(both.run(u.detach()), torch.Tensor)


# ---- continuity ------------------------------------------------------------------------------------


def test_held_and_replayed_devices_make_a_held_one() -> None:
    u = inputs(time=40).astype(np.float64)
    replayed = SnapshotToy(continuity="replayed", memory_steps=30, max_batch=1)
    with toys(SnapshotToy(), replayed) as both:
        assert both.spec.continuity == "held"
        assert both.spec.max_batch == 1
        parts = [both.run(u[:, :25]), both.run(u[:, 25:])]
        expected = np.concatenate([truth(u), truth(u)], axis=2)
        np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, atol=1e-8)
        # The second call replayed what the first drove.
        assert [d.shape[1] for d in replayed.driven] == [25, 40]
        both.reset(3)
        three = inputs(3, 40).astype(np.float64)
        parts = [both.run(three[:, :25]), both.run(three[:, 25:])]
        np.testing.assert_allclose(np.concatenate(parts, axis=1)[..., :2], truth(three), atol=1e-8)


def test_one_free_running_device_makes_the_whole_free_running() -> None:
    with toys(SnapshotToy(), Toy(continuity="free_running")) as both:
        assert both.spec.continuity == "free_running"
        assert not both.spec.snapshot
        both.run(inputs())
        with pytest.raises(StateLost, match="free running"):
            both.run(inputs())
        both.reset(1)
        with pytest.raises(NotSupported, match="without a gap"):
            both.stream([inputs()])


def test_more_sequences_than_the_narrowest_device_takes() -> None:
    u = inputs(5).astype(np.float64)
    with toys(SnapshotToy(max_batch=2), SnapshotToy()) as both:
        both.reset(5)
        states = np.concatenate([both.run(u[:, :9]), both.run(u[:, 9:])], axis=1)
        np.testing.assert_allclose(states, np.concatenate([truth(u), truth(u)], axis=2))
    with toys(Toy(max_batch=2), SnapshotToy()) as both:
        both.reset(5)
        both.run(u)
        with pytest.raises(StateLost, match="cannot snapshot"):
            both.run(u)


# ---- at the same time ------------------------------------------------------------------------------


class Bench(Toy):
    """Notes the threads of its calls; in `_run` it waits for another device."""

    def __init__(self, meet: threading.Barrier | None = None, **declared: Any) -> None:
        super().__init__(**{"identity": BENCH, **declared})
        self.meet = meet
        self.threads: set[int] = set()

    def _open(self) -> None:
        self.threads.add(threading.get_ident())

    def _run(self, u: np.ndarray, out: Any) -> Any:
        self.threads.add(threading.get_ident())
        if self.meet is not None:
            self.meet.wait(timeout=10)
        return super()._run(u, out)

    def _close(self) -> None:
        self.threads.add(threading.get_ident())
        super()._close()


def test_devices_are_driven_at_the_same_time_each_in_a_thread_of_its_own() -> None:
    meet = threading.Barrier(2)
    one, other = Bench(meet), Bench(meet)
    with toys(one, other) as both:
        np.testing.assert_allclose(both.run(inputs())[..., 2:], truth(inputs()))
        both.step(inputs()[:, 0])
    assert len(one.threads) == len(other.threads) == 1
    assert one.threads != other.threads
    assert threading.get_ident() not in one.threads | other.threads
    assert not [t for t in threading.enumerate() if t.name.startswith("parallel-")]


def test_locks_are_taken_and_given_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RESERVOIR_HW_LOCKS", str(tmp_path))
    both = toys(Bench(resource="left"), Bench(resource="right"))
    for _ in range(2):
        with both, pytest.raises(DeviceBusy, match="'left' is in use"):
            Bench(resource="left").open()
    with pytest.raises(DeviceBusy, match=r"device [01] \(toy [ab]\): 'left' is in use"):
        toys(Bench(resource="left"), Bench(resource="left")).open()
    with both:
        both.run(inputs())


def test_simulations_run_in_the_callers_thread() -> None:
    here = Bench(identity=TOY)
    with toys(here, Toy()) as both:
        both.run(inputs())
    assert here.threads == {threading.get_ident()}


def test_opening_resets_each_device_once() -> None:
    one = Toy()
    with toys(one, Toy()) as both:
        assert one.resets == [1]
        both.run(inputs())
        both.reset(1)
        assert one.resets == [1, 1]


# ---- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Toy, Bench])
def test_a_fault_of_one_device_says_which_and_keeps_what_all_have(kind: Any) -> None:
    u = inputs().astype(np.float64)
    fine, broken = kind(), kind(fails_at=5)
    with toys(fine, broken) as both:
        with pytest.raises(DeviceFault, match=r"^device 1 \(toy b\): toy fault at step 5$") as caught:
            both.run(u)
        assert caught.value.steps_done == 5
        np.testing.assert_allclose(caught.value.states, np.concatenate([truth(u), truth(u)], axis=2)[:, :5])
        assert fine.driven[0].shape[1] == 20
        assert both.counters.faults == 1
        with pytest.raises(StateLost, match="last run failed"):
            both.run(u)
        broken.fails_at = None
        both.reset(1)
        np.testing.assert_allclose(both.run(u)[..., 2:], truth(u))


class Failing(Bench):
    """Raises what it is told to, where it is told to."""

    def __init__(self, error: BaseException, at: str, **declared: Any) -> None:
        super().__init__(**declared)
        self.error, self.at = error, at

    def _open(self) -> None:
        self._perhaps("open")

    def _reset(self, batch: int) -> None:
        self._perhaps("reset")
        super()._reset(batch)

    def _run(self, u: np.ndarray, out: Any) -> Any:
        self._perhaps("run")
        return super()._run(u, out)

    def _close(self) -> None:
        super()._close()
        self._perhaps("close")

    def _perhaps(self, at: str) -> None:
        if at == self.at:
            raise self.error


def test_faults_of_several_devices_come_as_a_list() -> None:
    cable, slow = DeviceDisconnected("unplugged", steps_done=3), DeviceTimeout("no answer\nsince 3 s", steps_done=4)
    with toys(Failing(cable, "run"), Bench(), Failing(slow, "run")) as three:
        with pytest.raises(DeviceDisconnected) as caught:
            three.run(inputs())
        assert str(caught.value) == (
            "2 of 3 devices failed to run:\n  device 0 (toy a): unplugged\n  device 2 (toy c): no answer\n  since 3 s"
        )
        # Nobody kept the states of these steps.
        assert caught.value.steps_done == 0
        assert caught.value.states is None
        assert caught.value.__cause__ is cable


def test_a_mistake_in_a_backend_stays_what_it_is() -> None:
    other = Bench()
    with toys(Failing(KeyError("gain"), "run"), other) as both:
        with pytest.raises(KeyError, match="gain") as caught:
            both.run(inputs())
        assert caught.value.__notes__ == ["device 0 (toy a): 'gain'"]
        assert len(other.driven) == 1


def test_devices_are_closed_when_one_does_not_open() -> None:
    fine = Bench()
    broken, cable = Failing(DeviceFault("no supply voltage"), "open"), Failing(DeviceTimeout("silent"), "open")
    three = toys(fine, broken, cable)
    with pytest.raises(DeviceFault) as caught:
        three.open()
    assert str(caught.value) == (
        "2 of 3 devices failed to open:\n  device 1 (toy b): no supply voltage\n  device 2 (toy c): silent"
    )
    assert (fine.closed, broken.closed, cable.closed) == (1, 1, 1)
    assert not three.is_open
    assert not fine.is_open


def test_close_closes_all_whatever_happens() -> None:
    broken, fine = Failing(DeviceFault("relay stuck"), "close"), Bench()
    both = toys(broken, fine).open()
    with pytest.raises(DeviceFault, match=r"device 0 \(toy a\): relay stuck"):
        both.close()
    assert (broken.closed, fine.closed) == (1, 1)
    both.close()


def test_a_fault_on_the_way_to_rest_says_so() -> None:
    broken = Failing(DeviceFault("stuck"), "nowhere")
    with toys(Bench(), broken) as both:
        broken.at = "reset"
        with pytest.raises(DeviceFault, match=r"device 1 \(toy b\): stuck") as caught:
            both.reset(2)
        assert any("brought to rest" in note for note in caught.value.__notes__)
        with pytest.raises(StateLost, match="last reset failed"):
            both.run(inputs(2))


def test_parts_are_opened_and_closed_by_the_whole() -> None:
    with Toy() as toy, pytest.raises(ConfigurationError, match=r"device 0 \(toy a\) is open already"):
        toys(toy)
    toy = Toy()
    with pytest.raises(ConfigurationError, match="each only once"):
        toys(toy, toy)
    for channels in ([2], [-1], []):
        with pytest.raises(ConfigurationError, match=r"device 0 \(Toy\): channels .*: there are 2 input channels"):
            Parallel([Part(Toy(), channels)], 2)
    with pytest.raises(ConfigurationError, match=r"device 0 \(Toy\) takes 2 inputs, but gets 1 channels"):
        Parallel([Part(Toy(), [1])], 2).open()


# ---- what the whole declares -----------------------------------------------------------------------


def test_the_spec_is_composed_of_those_of_the_devices() -> None:
    one = SnapshotToy(
        dtype="float32", memory_steps=4, latency_steps=1, step_period_s=1e-3, state_range=(-1, 2), input_bits=8,
        node_names=("left", "right"), reset_time_s=2.0, deterministic=True, input_unit="V",
    )  # fmt: skip
    other = Toy(memory_steps=9, max_batch=7, step_period_s=2e-3, state_range=(-3, 1), identity=BENCH, input_bits=8)
    with toys(one, other) as both:
        spec = both.spec
        assert (spec.inputs, spec.nodes, spec.dtype, spec.max_batch) == (2, 4, "float64", 7)
        assert (spec.memory_steps, spec.latency_steps, spec.step_period_s, spec.reset_time_s) == (9, 1, 2e-3, 2.0)
        assert (spec.state_range, spec.input_bits, spec.output_bits, spec.input_unit) == ((-3, 2), 8, None, "mixed")
        assert spec.node_names == ("0.left", "0.right", "1.0", "1.1")
        assert not spec.deterministic
        assert not spec.identity.simulated
        for capability in ("snapshot", "settable", "programmable"):
            assert not getattr(spec, capability)
            assert spec.not_supported[capability] == "device 1 (toy b) has none: it does not declare it"
        with pytest.raises(NotSupported, match=r"no snapshot: device 1 \(toy b\)"):
            both.snapshot()
    with toys(SnapshotToy(), SnapshotToy(deterministic=True)) as both:
        assert both.spec.identity.simulated
        assert both.spec.memory_steps == 0
        assert both.spec.node_names == ()


def test_the_fingerprint_tells_devices_their_order_and_channels() -> None:
    bench = Identity(vendor="tests", model="bench", simulated=True)
    variants = [
        Parallel([Part(Toy()), Part(Toy(identity=bench))], 2),
        Parallel([Part(Toy(identity=bench)), Part(Toy())], 2),
        Parallel([Part(Toy()), Part(Toy(identity=bench), [1, 0])], 2),
        Parallel([Part(Toy()), Part(Toy())], 2),
    ]
    assert len({both.open().spec.identity.fingerprint for both in variants}) == 4
    again = Parallel([Part(Toy(), label="other name"), Part(Toy(identity=bench))], 2)
    assert again.open().spec.identity.fingerprint == variants[0].spec.identity.fingerprint


def test_provenance_holds_that_of_every_device() -> None:
    with open_reservoir(parallel(ESN, {"reservoir": OTHER, "channels": [0]}), inputs=2) as both:
        both.run(inputs())
        record = json.loads(json.dumps(both.provenance()))
    first, second = record["devices"]
    assert (first["label"], first["channels"], second["label"], second["channels"]) == (
        "ESN(30)", None, "ESN(20)", [0],
    )  # fmt: skip
    assert first["identity"]["model"] == "esn"
    assert first["identity"]["fingerprint"] != second["identity"]["fingerprint"]
    assert first["counters"]["steps"] == record["counters"]["steps"] == 20


# ---- limits ----------------------------------------------------------------------------------------


def test_an_input_that_one_device_refuses_reaches_none() -> None:
    wide, narrow = Toy(input_range=(-2, 2), inputs=2), Toy(input_range=(-0.5, 0.5), inputs=2)
    u = np.full((1, 4, 3), 0.4)
    u[0, 2, 1] = 0.7
    with Parallel([Part(wide, [0, 1]), Part(narrow, [1, 2], "narrow")], 3) as both:
        assert both.spec.input_range is None
        with pytest.raises(
            InputRangeError,
            match=r"device 1 \(narrow\), whose channels are \[1, 2\] of the inputs: .*\(0, 2, 0\) is 0.7",
        ):
            both.run(u)
        assert not wide.driven
        both.run(np.clip(u, -0.5, 0.5))
        assert len(wide.driven) == 1


def test_the_range_of_all_channels_is_declared() -> None:
    with toys(Toy(input_range=(-2, 1)), Toy(input_range=(-1, 3))) as both:
        assert both.spec.input_range == (-1, 1)
        with pytest.raises(InputRangeError, match=r"outside the range \[-1, 1\]"):
            both.run(np.full((1, 1, 2), 1.5))
    with pytest.raises(ConfigurationError, match="no input on channel 0 would suit all devices"):
        toys(Toy(input_range=(0, 1)), Toy(input_range=(2, 3))).open()


def test_a_device_that_clips_does_so_for_itself_and_counts() -> None:
    clips, open_to_all = Toy(input_range=(-1, 1), out_of_range="clip"), Toy()
    u = np.full((1, 3, 2), 1.5)
    with toys(clips, open_to_all) as both:
        assert both.spec.input_range is None
        states = both.run(u)
        np.testing.assert_allclose(states[0, 0], [1, 1, 1.5, 1.5])
        assert both.counters.clipped == 6
        assert both.counters.steps == 3


def test_clip_is_handed_to_every_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "echoes.py").write_text("def same(u):\n    return u\n")
    device = {
        "kind": "python", "mode": "step", "call": "echoes:same", "nodes": 1, "simulated": True, "continuity": "held",
        "reset": {"kind": "none", "reason": "no memory"},
    }  # fmt: skip
    config = parallel(
        {"reservoir": {**device, "input_range": [0, 1]}, "channels": [0]},
        {"reservoir": {**device, "input_range": [5, 6]}, "channels": [0]},
        out_of_range="clip",
    )
    with open_reservoir(config, inputs=1) as both:
        np.testing.assert_array_equal(both.run(np.array([[[3.0], [5.5]]])), [[[1, 5], [1, 5.5]]])
        assert both.counters.clipped == 3


# ---- state -----------------------------------------------------------------------------------------


def test_the_snapshot_of_other_devices_is_refused() -> None:
    with toys(SnapshotToy()) as one, toys(SnapshotToy(), SnapshotToy()) as two:
        before = two.run(inputs())
        with pytest.raises(ConfigurationError, match="another device"):
            two.restore(one.snapshot())
        state = two.snapshot()
        for broken in (
            {name: array for name, array in state.items() if not name.startswith("device.1.")},
            {**state, "device.7.contract.steps": np.zeros(1)},
        ):
            with pytest.raises(ConfigurationError, match="restore"):
                two.restore(broken)
        two.restore(state)
        np.testing.assert_allclose(two.run(inputs())[:, -1], before[:, -1], atol=1e-4)


class Picky(SnapshotToy):
    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        raise ConfigurationError("not mine")

    def _upload(self, weights: Mapping[str, np.ndarray]) -> Any:
        raise ConfigurationError("too large")


def test_a_restore_that_only_some_devices_took_is_a_lost_state() -> None:
    with toys(SnapshotToy(), Picky()) as both:
        state = both.snapshot()
        with pytest.raises(StateLost, match=r"device 1 \(toy b\): not mine"):
            both.restore(state)
        with pytest.raises(StateLost, match="last restore failed"):
            both.run(inputs())
    with toys(Picky(), Picky()) as both:
        with pytest.raises(ConfigurationError, match="2 of 2 devices failed to restore"):
            both.restore(both.snapshot())
        both.run(inputs())


def test_upload_names_the_device() -> None:
    with toys(SnapshotToy(), SnapshotToy()) as both:
        fingerprint = both.spec.identity.fingerprint
        both.upload({"1.gain": np.array(3.0)})
        assert [part.reservoir.gain for part in both.parts] == [1.0, 3.0]  # pyright: ignore[reportAttributeAccessIssue]
        assert both.spec.identity.fingerprint != fingerprint
        for name in ("gain", "2.gain", "x.gain"):
            with pytest.raises(ConfigurationError, match=f"upload: '{name}' belongs to no device"):
                both.upload({name: np.array(1.0)})
    with toys(SnapshotToy(), Picky()) as both:
        with pytest.raises(ConfigurationError, match=r"device 1 \(toy b\): too large"):
            both.upload({"1.gain": np.array(3.0)})
        both.run(inputs())
        with pytest.raises(DeviceFault, match=r"device 1 \(toy b\): too large"):
            both.upload({"0.gain": np.array(2.0), "1.gain": np.array(3.0)})
        with pytest.raises(StateLost, match="upload failed half-way"):
            both.reset(1)


# ---- configuration ---------------------------------------------------------------------------------


def message(text: str, tmp_path: Path) -> str:
    (tmp_path / "lab.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        parse_reservoir(Document.from_file(tmp_path / "lab.yaml"))
    return str(caught.value).replace(f"{tmp_path}/", "")


HEAD = "kind: parallel\ndevices:\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: parallel\n", "lab.yaml:1: devices is missing"),
        ("kind: parallel\ndevices: []\n", "lab.yaml:2: devices: list should have at least 1 item"),
        (HEAD + "  - reservoir: esn\n", "lab.yaml:3: devices.0.reservoir = 'esn': a reservoir needs `kind:`"),
        (HEAD + "  - reservoir: {nodes: 3}\n", "lab.yaml:3: devices.0.reservoir: a reservoir needs `kind:`"),
        (HEAD + "  - reservoir: {kind: esm}\n", "lab.yaml:3: devices.0.reservoir: unknown kind 'esm'; did you mean"),
        (HEAD + "  - chanels: [0]\n    reservoir: {kind: esn, nodes: 9}\n", "lab.yaml:3: unknown key 'devices.0.cha"),
        (HEAD + "  - reservoir: {kind: esn, nodes: 9}\n    channels: []\n", "lab.yaml:4: devices.0.channels: list"),
        (HEAD + "  - reservoir: {kind: esn}\n", "lab.yaml:3: devices.0.reservoir: nodes is missing: how many"),
        (
            HEAD + "  - reservoir:\n      kind: esn\n      nodes: many\n",
            "lab.yaml:5: devices.0.reservoir.nodes = 'many': input should be a valid integer",
        ),
        (
            HEAD + "  - reservoir:\n      kind: esn\n      nodse: 3\n      nodes: 9\n",
            "lab.yaml:5: devices.0.reservoir.nodse = 3: unknown key; did you mean 'nodes'? (known: activation, ",
        ),
        (
            HEAD + "  - reservoir: {kind: parallel, devices: [{reservoir: {kind: esn, nods: 3, nodes: 9}}]}\n",
            "lab.yaml:3: devices.0.reservoir.devices.0.reservoir.nods = 3: unknown key; did you mean 'nodes'?",
        ),
    ],
)
def test_messages_name_the_line_and_the_device(text: str, expected: str, tmp_path: Path) -> None:
    assert message(text, tmp_path).startswith(expected)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    text = HEAD + "  - reservoir:\n      kind: esn\n      nodes: -3\n  - reservoir:\n      kind: python\n"
    found = message(text, tmp_path)
    assert "lab.yaml:5: devices.0.reservoir.nodes = -3: input should be greater than 0" in found
    assert "lab.yaml:6: devices.1.reservoir.simulated is missing" in found


def test_what_the_task_does_not_have_is_refused() -> None:
    two = parallel(ESN, {"reservoir": OTHER, "channels": [0, 2]})
    with pytest.raises(ConfigurationError, match=r"devices\.1\.channels: \[0, 2\], but there are 2 input"):
        open_reservoir(two, inputs=2)
    three = {**OTHER, "inputs": 3}
    with pytest.raises(ConfigurationError, match=r"devices\.1\.reservoir \(ESN\(20\)\): 2 channels for 3 inputs of"):
        open_reservoir(parallel(ESN, {**three, "input_mask": "none"}), inputs=2)
    with open_reservoir(parallel(ESN, three), inputs=2) as spread, open_reservoir(three, inputs=2) as alone:
        u = np.random.default_rng(0).uniform(-1, 1, (1, 9, 2)).astype(np.float32)
        np.testing.assert_array_equal(spread.run(u)[..., -20:], alone.run(u))
    with pytest.raises(ConfigurationError, match="'parallel' needs `inputs` when no task gives it"):
        open_reservoir(parallel(ESN))
    with open_reservoir(parallel(ESN, inputs=3)) as one:
        assert one.spec.inputs == 3


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"input_mask": {}}, r"`input_mask:` needs to know `inputs`"),
        ({"inputs": 3, "input_mask": {"scaling": [1, 2, 3]}}, r"input_mask\.scaling has 3 numbers for 2 input"),
        ({"nonidealities": {"loop": {"weight_bits": 8, "weight_limit": 0.1}}}, r"weights reach .*weight_limit 0\.1"),
    ],
)
def test_what_no_device_is_needed_to_find_names_the_device(device: dict[str, Any], message: str) -> None:
    config = parse_reservoir(Document.from_mapping(parallel(ESN, {**OTHER, **device}), "here"))
    with pytest.raises(ConfigurationError, match=r"^devices\.1\.reservoir \(ESN\(20\)\): .*" + message):
        config.for_inputs(2)


def test_what_only_building_finds_names_the_device() -> None:
    missing = {"kind": "delay_loop", "nodes": 5, "mask": {"file": "nowhere.safetensors"}}
    nested = parallel(OTHER, parallel(ESN, missing))
    with pytest.raises(
        ConfigurationError,
        match=r"^devices\.1\.reservoir \(.*\): devices\.1\.reservoir \(mackey_glass\(5\)\): there is no mask file",
    ):
        open_reservoir(nested, inputs=2)


def test_in_an_experiment_file_all_of_it_is_kept() -> None:
    section = parallel({"reservoir": {**OTHER, "leak_rate": [0.2, 0.9]}, "channels": [0]}, ESN)
    config = parse_experiment(
        Document.from_mapping(
            {"task": {"kind": "elman_grammar"}, "reservoir": section, "readout": {"kind": "ridge"}}, "test"
        )
    )
    assert isinstance(config.reservoir, ParallelConfig)
    assert (config.reservoir.name, config.reservoir.nodes) == ("ESN(20) + ESN(30)", 50)
    kept = json.loads(config.model_dump_json())["reservoir"]["devices"][0]
    assert kept["channels"] == [0]
    assert kept["reservoir"]["nodes"] == 20
    assert kept["reservoir"]["leak_rate"] == [0.2, 0.9]


def test_totals_for_the_estimate_need_those_of_all_devices() -> None:
    bench: dict[str, Any] = {
        "kind": "python", "call": "a:b", "nodes": 4, "simulated": False, "continuity": "held", "reset_call": "a:c",
    }  # fmt: skip
    document = Document.from_mapping(parallel({**bench, "step_period_s": 0.1}, {**bench, "step_period_s": 0.3}), "t")
    config = parse_reservoir(document)
    assert isinstance(config, ParallelConfig)
    assert (config.nodes, config.step_period_s) == (8, 0.3)
    saved = parse_reservoir(Document.from_mapping(parallel({"kind": "esn", "weights": "w.safetensors"}, bench), "t"))
    assert isinstance(saved, ParallelConfig)
    assert (saved.nodes, saved.step_period_s) == (None, None)
