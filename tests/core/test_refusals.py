"""What the core refuses, in one sentence each, before anything is sent, drawn or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from lab_with_knobs import Lab
from toys import TOY, SnapshotToy, Toy

from reservoir_hw import open_reservoir
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceFault,
    InputRangeError,
    MissingExtra,
    NotOpen,
    NotSupported,
    ShapeError,
    StateLost,
)
from reservoir_hw.core.locks import read_end
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import reservoir_config
from reservoir_hw.core.signal import Mask, MaskConfig, Quantiser, SampleAndHold, Scaling, average
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.store import StateStore
from reservoir_hw.core.tokenizer import BpeTokenizer, CharTokenizer, WordTokenizer, load_tokenizer

U = np.random.default_rng(0).uniform(-1, 1, (1, 20, 2))
MASK = MaskConfig(seed=3)
ONE = {"sequences": 1, "inputs": 1, "nodes": 1, "chunk_steps": 1}
CELL = {
    "kind": "python", "call": "chemical_cell:forgets", "reset_call": "chemical_cell:to_rest", "nodes": 3, "inputs": 1,
    "continuity": "held", "simulated": False, "held_for_s": 0.15,
}  # fmt: skip
LAB = {
    "kind": "python", "call": "numpy:tanh", "nodes": 2, "inputs": 2, "simulated": False, "continuity": "held",
    "reset": {"kind": "none", "reason": "no memory"}, "input_range": [-1, 1],
}  # fmt: skip
ESN = {"kind": "esn", "nodes": 6, "inputs": 2}

Call = Callable[[Any], Any]
Row = tuple[Call, type[Exception], str]


def on(call: Call, first: Call = lambda toy: None, kind: type[Toy] = SnapshotToy, **declared: Any) -> Call:
    """Asks an open toy, behind `first`; nothing is driven by what is refused."""

    def ask(folder: Path) -> None:
        with kind(**declared) as toy:
            first(toy)
            sent = len(toy.driven)
            try:
                call(toy)
            finally:
                assert len(toy.driven) == sent

    return ask


class Short(Toy):
    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        return super()._run(u, out)[:, :-1]


class Odd(SnapshotToy):
    def _transition(self, u: np.ndarray, states: Any) -> np.ndarray:
        return np.full((7, 9), np.nan)

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        return super()._run(u, None) * 1j


class Bare(Reservoir):
    def _run(self, u: Any, out: Any) -> Any: ...


def answering(kind: type[Toy], call: Call) -> Call:
    def ask(folder: Path) -> None:
        with kind() as toy:
            call(toy)

    return ask


RUN: Call = lambda toy: toy.run(U)  # noqa: E731
RESERVOIR: list[Row] = [
    *((lambda _, call=call: call(Toy()), NotOpen, "not open")
      for call in (lambda toy: toy.spec, RUN, lambda toy: toy.reset(1), lambda toy: toy.step(U[:, 0]))),
    (lambda _: Bare().open(), ConfigurationError, "no spec"),
    (lambda _: Toy(snapshot=True).open(), ConfigurationError, r"but does not implement _snapshot, _restore"),
    (on(lambda toy: toy.run(np.zeros(20))), ShapeError, r"must be \(batch, time, inputs\), not \(20,\)"),
    (on(lambda toy: toy.run(np.zeros((1, 20, 3)))), ShapeError, "have 3 channels, tests toy takes 2"),
    (on(lambda toy: toy.run(np.zeros((4, 20, 2)))), ShapeError, r"hold 4 sequences, .* for 1: call reset\(4\)"),
    (on(lambda toy: toy.run(np.array([["a", "b"]]))), ShapeError, "must hold real numbers"),
    (on(lambda toy: toy.run([[1.0], [1.0, 2.0]])), ShapeError, "cannot be read as an array"),
    (on(lambda toy: toy.step(U)), ShapeError, r"step takes inputs \(batch, inputs\)"),
    *((on(lambda toy, bad=bad: toy.reset(bad)), ShapeError, "") for bad in (0, -1, 1.5, True, "2")),
    *((on(call, RUN, Toy, continuity="free_running"), StateLost, "free running")
      for call in (RUN, lambda toy: toy.step(U[:, 0]), lambda toy: toy.stream([]))),
    (on(lambda toy: toy.stream([U]), kind=Toy, continuity="free_running"), NotSupported, "without a gap"),
    (on(RUN, RUN, Toy, input_range=(-0.1, 0.1), out_of_range="clip", continuity="free_running"), StateLost, ""),
    (on(lambda toy: toy.run(np.zeros((3, 4, 2))), lambda toy: (toy.reset(3), toy.run(np.zeros((3, 4, 2)))), Toy,
        max_batch=1), StateLost, "1 at a time"),
    *((on(lambda toy: toy.stream([np.zeros((2, 4, 2))]), lambda toy: toy.reset(2), Toy, max_batch=1, continuity=kind),
       NotSupported, "without a gap|drive it with one run") for kind in ("held", "free_running")),
    (on(lambda toy: toy.restore({"x": np.zeros((1, 2))})), ConfigurationError, "came from snapshot"),
    (on(lambda toy: toy.restore({**toy.snapshot(), "device.x": np.zeros((2, 2))})), ShapeError, r"device\.x"),
    (on(lambda toy: toy.snapshot(), kind=Toy, not_supported={"snapshot": "it is film"}), NotSupported, "it is film"),
    (on(lambda toy: toy.restore({}), kind=Toy), NotSupported, "snapshot"),
    (on(lambda toy: toy.transition(U[:, 0], U[:, 0]), kind=Toy), NotSupported, "settable"),
    (on(lambda toy: toy.upload({}), kind=Toy), NotSupported, "programmable"),
    (on(lambda toy: toy.transition(np.ones((4, 2)), np.ones((3, 2)))), ShapeError, r"states \(4, 2\), not \(3, 2\)"),
    (on(lambda toy: toy.transition(np.ones((1, 2)), np.full((1, 2), np.nan))), InputRangeError, ""),
    (on(lambda toy: toy.spread_inputs(MASK, 5)), ConfigurationError, "before open"),
    (answering(Short, RUN), DeviceFault, r"\(1, 19, 2\) instead of \(1, 20, 2\)"),
    (answering(Odd, lambda toy: toy.transition(U[:, 0], U[:, 0])), DeviceFault, r"\(7, 1, 9\)"),
    (answering(Odd, RUN), DeviceFault, "must be real numbers"),
    *((lambda _, wrong=wrong: ReservoirSpec(**{"inputs": 2, "nodes": 2, "identity": TOY, **wrong}), ValueError, "")
      for wrong in ({"continuity": "replayed"}, {"continuity": "free_running", "snapshot": True},
                    {"input_range": (1, 0)}, {"node_names": ("a",)}, {"nodes": 0})),
]  # fmt: skip


def of(file: dict[str, Any], **changes: Any) -> Call:
    return lambda _: reservoir_config({**file, **changes})


def with_bias(**changes: Any) -> Call:
    def ask(folder: Path) -> None:
        file = Lab().file()
        file["knobs"]["bias_v"] |= changes
        reservoir_config(file)

    return ask


def spread(channels: Channels | int, file: dict[str, Any] = LAB, **changes: Any) -> Call:
    return lambda _: reservoir_config({**file, **changes}).for_inputs(channels)


CONFIGURATION: list[Row] = [
    (of(CELL, step_period_s=0.5), ConfigurationError, r"held_for_s is 0\.15 s, shorter than a step of 0\.5 s"),
    (of(CELL, continuity="free_running"), ConfigurationError, "held_for_s is for continuity held"),
    (of(CELL, continuity="replayed", memory_steps=5), ConfigurationError, "held_for_s is for continuity held"),
    (of(CELL, held_for_s=0), ConfigurationError, "held_for_s"),
    (with_bias(value=3), ConfigurationError, r"value 3 lies beyond limits \[0, 1\.5\]"),
    (with_bias(closing=-1), ConfigurationError, "closing -1 lies beyond limits"),
    (with_bias(limits=[1, 0]), ConfigurationError, r"limits \[1\.0, 0\.0\] must be"),
    (with_bias(read=None), ConfigurationError, "a ramp begins at the value that is there: `read:` must say"),
    (with_bias(value=0.21), ConfigurationError, r"0\.21 is no multiple of its resolution"),
    (lambda _: reservoir_config(Lab().file(params={"bias_v": 1})), ConfigurationError, "bias_v is in two of params"),
    (spread(Channels(5, (-1.0, 1.0)), input_range=None), ConfigurationError, "declares no input_range: nothing says"),
    (spread(Channels(5)), ConfigurationError, "nothing says in which range these channels lie"),
    (spread(Channels(5, one_hot=True)), ConfigurationError, "nothing says in which range these channels lie"),
    (spread(Channels(5, (0.0, 1.0), True), input_mask={"scaling": 9.0}), ConfigurationError, "outside the range"),
    (spread(Channels(2, (0.0, 0.5)), input_mask={"kind": "one_to_one", "scaling": 3.0}), ConfigurationError,
     r"\[0, 1\.5\], outside the range \[-1, 1\] of the device: change its scaling and offset"),
    (spread(5, ESN, input_mask="none"), ConfigurationError, r"5 channels for 2 inputs of .*`input_mask: none` refuses"),
    *((spread(5, {"kind": kind, "nodes": 6, "input_mask": {}}), ConfigurationError, "how many has the device")
      for kind in ("esn", "gated_esn", "delay_loop")),
    (lambda _: open_reservoir({**ESN, "input_mask": {"scaling": [1.0, 2.0]}}, inputs=5), ConfigurationError,
     r"^input_mask\.scaling has 2 numbers for 5"),
    (lambda folder: Document.from_file(folder / "none.yaml"), ConfigurationError, "there is no such file"),
    (lambda folder: Document.from_file(folder), ConfigurationError, "is a folder"),
    (lambda folder: Document.from_file(folder / "binary.yaml"), ConfigurationError, "cannot be read"),
    (lambda _: read_end("2020-01-31 18:00"), ConfigurationError, "has passed: it is"),
    (lambda _: read_end("18 o'clock"), ConfigurationError, "is no time: write 18:00"),
]  # fmt: skip

SIGNAL: list[Row] = [
    (lambda _: Scaling(gain=0), ValueError, "gain of 0"),
    (lambda _: Quantiser(bits=8, range=(1, -1)), ValueError, r"must be \[lowest, highest\]"),
    (lambda _: Mask([1.0, 2.0, 3.0]), ConfigurationError, r"\(nodes, inputs\), its shape is \(3,\)"),
    (lambda _: Mask([[1.0]], [1.0, 2.0]), ConfigurationError, r"bias of a mask must be \(1,\)"),
    (lambda _: Mask([[np.nan]]), ConfigurationError, "not finite"),
    (lambda _: Mask([[1j]]), ConfigurationError, "real numbers"),
    (lambda _: Mask([[1.0, 2.0]]).apply(np.zeros(3)), ShapeError, r"takes inputs \(\.\.\., 2\)"),
    (lambda _: Mask([[1.0, 2.0]]).apply([0.0, np.nan]), InputRangeError, "1 inputs that are not finite"),
    (lambda _: MaskConfig(file="m.safetensors", seed=1, scaling=2.0), ValueError, "decides about scaling, seed"),
    (lambda _: MaskConfig(kind="binary", chirp_cycles=(1, 2)), ValueError, "means nothing to a mask of kind binary"),
    (lambda _: MaskConfig(scaling=[1.0, 2.0]).build(10, 3), ConfigurationError, "2 numbers for 3 input channels"),
    (lambda _: MaskConfig().build(0, 1), ConfigurationError, "at least one node"),
    (lambda _: MaskConfig(kind="one_to_one").build(3, 2), ConfigurationError, "as many nodes as inputs: 3 for 2"),
    (lambda folder: Mask.load(folder / "none"), ConfigurationError, "there is no mask file"),
    (lambda folder: Mask.load(folder / "binary.yaml"), ConfigurationError, "cannot be read as a mask"),
    (lambda _: SampleAndHold(points_per_node=4, sample_rate_hz=1).apply(np.zeros(3)), ShapeError, "steps, nodes"),
    (lambda _: average([]), ShapeError, "nothing to average"),
    (lambda _: average([np.zeros(2), np.zeros(3)]), ShapeError, r"repetition 2 has the shape \(3,\), those before"),
    (lambda _: average([np.array([np.inf])]), InputRangeError, "repetition 1: 1 values are not finite"),
    (lambda _: CharTokenizer.from_text(""), ConfigurationError, "at least one"),
    (lambda _: WordTokenizer.from_text(""), ConfigurationError, "at least one"),
    (lambda _: CharTokenizer.from_text("he").encode("hex"), InputRangeError, "character 'x' at position 2"),
    (lambda _: CharTokenizer.from_text("he").decode([0, 2]), InputRangeError, "token 2 at position 1"),
    (lambda _: WordTokenizer.from_text("the").encode("the fox"), InputRangeError, r"'fox' \(number 1 of the text\)"),
    (lambda folder: load_tokenizer(folder / "none.json"), ConfigurationError, "cannot be read as a tokenizer"),
    (lambda folder: load_tokenizer(folder / "run/metrics.json"), ConfigurationError, "cannot be read as a tokenizer"),
    (lambda folder: load_tokenizer(folder / "deep.json"), ConfigurationError, "cannot be read as a tokenizer"),
    (lambda folder: BpeTokenizer.gpt2(folder), ConfigurationError, r"encoder\.json and vocab\.bpe cannot be read"),
    (lambda _: BpeTokenizer.gpt2(), ConfigurationError, "set RESERVOIR_HW_DATA"),
]


def stored(call: Call) -> Call:
    """Asks a store that can be written; what is refused leaves nothing."""

    def ask(folder: Path) -> None:
        store = StateStore.create(folder / "store", {}, {"train": ONE})
        before = sorted(folder.rglob("*"))
        try:
            call(store)
        finally:
            assert sorted(folder.rglob("*")) == before

    return ask


def of_version_99(folder: Path) -> None:
    StateStore.create(folder / "store", {})
    zarr.open_group(folder / "store", mode="a").attrs["version"] = 99
    StateStore.open(folder / "store")


def without_zarr(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as missing:
        missing.setitem(__import__("sys").modules, "zarr", None)
        StateStore.open(folder)


NAMES = ("", ".", "..", "zarr.json", "journal", ".git", "__x", "a/b", "a\\b", "x.partial", "x" * 300)
STORE: list[Row] = [
    (lambda folder: StateStore.open(folder / "x", writable=True), ConfigurationError, "there is nothing"),
    (lambda folder: StateStore.open(folder / "run"), ConfigurationError, "is not a store of states"),
    (lambda folder: StateStore.create(folder / "run", {}), ConfigurationError, "exists already; name another place"),
    (lambda folder: StateStore.create(folder / ("x" * 300), {}), ConfigurationError, "too long; name another place"),
    (lambda folder: StateStore.create(folder / "link", {}), ConfigurationError, "exists already; name another place"),
    (lambda folder: StateStore.create(folder / "s", {}, {"a": ONE, "..": ONE}), ConfigurationError, "be the name"),
    (stored(lambda store: store.dataset("tran")), ConfigurationError, "no data set 'tran'; there are: train"),
    *((stored(lambda store, name=name: store.add(name, **ONE)), ConfigurationError, "cannot be the name of a data set")
      for name in NAMES),
    (stored(lambda store: store.add("train", **ONE)), ConfigurationError, "has a data set 'train' already"),
    (stored(lambda store: store.add("more", **{**ONE, "nodes": -1})), ValueError, "-1"),
    (stored(lambda store: store.add("wide", sequences=140, inputs=1, nodes=1000, chunk_steps=4096)),
     ConfigurationError, r"4096 steps of 140 sequences .* smaller `run.chunk_steps`"),
    (of_version_99, ConfigurationError, "format version 99"),
    (without_zarr, MissingExtra, r"reservoir-hw\[store\]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        pytest.param(*row, id=f"{group} {number}")
        for group, rows in (("reservoir", RESERVOIR), ("file", CONFIGURATION), ("signal", SIGNAL), ("store", STORE))
        for number, row in enumerate(rows)
    ],
)
def test_what_is_refused(
    call: Call, error: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RESERVOIR_HW_DATA", raising=False)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.json").write_text('{"characters":' + "[" * 200_000)
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(error, match=said or None) as caught:
        call(tmp_path)
    assert error is ValueError or "\n" not in str(caught.value)
