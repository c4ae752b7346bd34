"""The checker on devices that keep the page, and what it writes."""

from __future__ import annotations

import contextlib
import math
import random
import re
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from board_server import built, running
from served import free_address, served
from serving.page_device import PageDevice, Replies
from serving.test_lost_connections import process
from serving.test_own_clock import Clocked
from toys import Toy

from reservoir_hw.core.errors import ConfigurationError, DeviceBusy, DeviceTimeout
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir, reservoir_config
from reservoir_hw.drivers.codes import Encoding
from reservoir_hw.testing.protocol.check import GONE, RULES, check, rules_for
from reservoir_hw.testing.protocol.codec import (
    I2,
    RESET,
    crc32c,
    from_msgpack,
    pack_control,
    to_msgpack,
    unpack_control,
)
from reservoir_hw.testing.protocol.device import Device

from .planted_faults import LEASE_S, declaring, device

UNIX = "Unix sockets with packets need Linux"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"
QUICK = [rule for rule in rules_for("ipc://device") if rule.group != "lease"]


def in_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_each_rule_quotes_the_page() -> None:
    page = in_one_line(PAGE.read_text(encoding="utf-8"))
    assert [rule.title for rule in RULES if in_one_line(rule.page) not in page] == []
    assert len({rule.title for rule in RULES}) == len(RULES)


def halving(**declared: Any) -> Reservoir:
    """With limits, in float32."""
    return Toy(**{"dtype": "float32", "input_range": (-1.0, 1.0), "deterministic": True, **declared})


def lab_function() -> Reservoir:
    """`kind: python`."""
    bench = [0.0]

    def drive(u: np.ndarray) -> np.ndarray:
        states = np.empty((len(u), 1))
        for t, row in enumerate(u):
            bench[0] = np.tanh(0.5 * bench[0] + row.sum())
            states[t] = bench[0]
        return states

    def rest() -> None:
        bench[0] = 0.0

    declared = {"nodes": 1, "inputs": 2, "continuity": "held", "deterministic": True, "dtype": "float64"}
    section = {"kind": "python", "call": drive, "reset_call": rest, "input_range": [-1, 1], "simulated": True}
    return build_reservoir(reservoir_config({**section, **declared}))


def simulated(kind: str, **keys: Any) -> Callable[[], Reservoir]:
    return lambda: build_reservoir(reservoir_config({"kind": kind, "nodes": 20, "inputs": 1, **keys}))


ESN = simulated("esn", nodes=30, inputs=2, seed=1)
INT16 = {"inputs": Encoding(I2, 2.0**-14), "states": Encoding(I2, 2.0**-14)}
SERVED: dict[str, tuple[Callable[[], Reservoir], dict[str, Any]]] = {
    "esn": (ESN, {}),
    "delay loop": (simulated("delay_loop"), {}),
    "gated esn": (simulated("gated_esn"), {}),
    "a function of a lab": (lab_function, {}),
    "replayed": (lambda: halving(continuity="replayed", memory_steps=60), {}),
    "free running, in chunks": (lambda: Clocked(1e-3), {}),
    "free running, whole runs": (lambda: halving(continuity="free_running"), {}),
    "esn in int16": (ESN, INT16),
    "esn, one credit": (ESN, {"credits": 1}),
    "esn, small frames": (ESN, {"max_frame_bytes": 4096}),
    "two sequences at most": (lambda: halving(max_batch=2), {}),
    "one sequence at a time": (lambda: halving(max_batch=1), {}),
    "not deterministic": (lambda: halving(deterministic=False), {}),
}
IN_MAKE_TEST = {"esn", "delay loop", "a function of a lab", "replayed", "free running, in chunks"}


@contextlib.contextmanager
def in_c(address: str) -> Iterator[str]:
    """The server in C, of the size that the other tests of it compile."""
    with running(built(DEFINES="-DVN_NODES=50 -DVN_INPUTS=2"), address=address) as (bound, _):
        yield bound


@contextlib.contextmanager
def device_of(name: str, address: str) -> Iterator[str]:
    """Whatever answers at an address as the page says."""
    with contextlib.ExitStack() as held:
        if name == "the server in C":
            yield held.enter_context(in_c(address))
            return
        make, options = SERVED[name]
        held.enter_context(served(make(), address, **options))
        yield address


LINUX = pytest.mark.skipif(sys.platform != "linux", reason=UNIX)
KEEP = [
    *(pytest.param(name, "ipc", marks=() if name in IN_MAKE_TEST else pytest.mark.slow) for name in SERVED),
    pytest.param("esn", "unix", marks=LINUX),
    ("the server in C", "ipc"),
    pytest.param("the server in C", "unix", marks=LINUX),
]


@pytest.mark.parametrize(("name", "address"), KEEP, indirect=["address"])
def test_devices_keep_the_page(name: str, address: str) -> None:
    rules = [rule for rule in rules_for(address) if rule.group != "lease"]
    with device_of(name, address) as bound:
        report = check(bound, rules=rules)
    assert [(row.rule.title, row.detail) for row in report.broken] == []
    assert report.counts["held"] > (150 if "in C" in name else 110)
    skipped = [row.rule.title for row in report.rows if row.rule.group == "Unix sockets" and row.outcome != "held"]
    assert skipped == [] or "in C" in name


@pytest.mark.slow
@pytest.mark.parametrize("address", ["tcp", pytest.param("unix", marks=LINUX)], indirect=True)
def test_the_server_in_c_keeps_its_leases(address: str) -> None:
    listens = "tcp://127.0.0.1:0" if address.startswith("tcp") else address
    with running(built(DEFINES="-DVN_NODES=50 -DVN_INPUTS=2"), "-l", "1", address=listens) as (bound, _):
        report = check(bound, rules=[rule for rule in rules_for(bound) if rule.group == "lease"])
    assert [(row.rule.title, row.detail) for row in report.broken] == []


@pytest.mark.slow
def test_serve_keeps_its_leases_over_tcp() -> None:
    address = free_address()
    with served(ESN(), address, lease_s=LEASE_S):
        report = check(address, rules=[rule for rule in RULES if rule.group == "lease"])
    assert report.broken == []
    assert report.counts["held"] >= 4


@pytest.mark.slow
def test_the_device_of_the_page_keeps_all_rules(address: str, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with device(PageDevice, address):
        report = check(address, progress=lambda *what: told.append(what))
    assert report.broken == []
    assert report.counts["held"] > 150
    assert [done for _, done, _ in told] == list(range(len(report.rows)))
    report.write_junit(tmp_path / "junit.xml")
    suite = ET.parse(tmp_path / "junit.xml").getroot()
    assert len(suite.findall("testcase")) == int(suite.get("tests", 0)) == len(report.rows)
    assert len(suite.findall("testcase/skipped")) == report.counts["not offered"]


def test_a_broken_rule_comes_with_the_sentence_and_the_frames(address: str, tmp_path: Path) -> None:
    (rule,) = (rule for rule in RULES if rule.title == "an op that is not listed gets error 4")
    with device(PageDevice, address) as page:
        page.answer = lambda answer: [{**answer, "code": 10} if answer.get("code") == 4 else answer]
        report = check(address, rules=[rule])
    (row,) = report.as_dict()["rules"]
    assert row["outcome"] == "broken"
    assert row["page"] == rule.page
    assert "error 10" in row["detail"]
    assert row["frames"][0].startswith("52485743")
    report.write_junit(tmp_path / "junit.xml")
    (failure,) = ET.parse(tmp_path / "junit.xml").getroot().findall("testcase/failure")
    assert failure.text is not None
    assert rule.page in failure.text
    assert row["frames"][0] in failure.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", ["tcp", pytest.param("unix", marks=pytest.mark.skipif(sys.platform != "linux", reason=UNIX))]
)
def test_a_server_that_is_killed_in_the_middle(
    address: str, scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("reservoir_hw.testing.protocol.client.ANSWER_S", 0.5)
    monkeypatch.setattr("reservoir_hw.testing.protocol.device.ANSWER_S", 0.5)
    address = free_address() if scheme == "tcp" else address.replace("ipc:", "unix:")
    with process("mortal_server.py", address, "1000000") as server:
        report = check(address, rules=QUICK[:40], progress=lambda _, done, of: server.kill() if done == 20 else None)
    outcomes = [row.outcome for row in report.rows]
    broken = outcomes.index("broken")
    assert broken in (20, 21)
    assert {row.detail for row in report.rows[broken + 1 :]} == {GONE}
    assert len(report.rows) == 40
    report.write_junit(tmp_path / "junit.xml")
    assert len(ET.parse(tmp_path / "junit.xml").getroot().findall("testcase/failure")) == 1


def test_a_server_that_ends_because_of_a_damaged_frame(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reservoir_hw.testing.protocol.client.ANSWER_S", 0.5)
    monkeypatch.setattr("reservoir_hw.testing.protocol.device.ANSWER_S", 0.5)

    class Fragile(PageDevice):
        def _payload_fits(self, payload: bytes, crc: int) -> bool:
            if not super()._payload_fits(payload, crc):
                self._ended.set()
            return True

    with device(Fragile, address):
        report = check(address, rules=[rule for rule in QUICK if rule.group == "damaged data messages"])
    assert [row.rule.title for row in report.broken] == ["a bit of the payload turned: error 5, and the state is lost"]
    assert report.rows[-1].detail == GONE


@pytest.mark.parametrize("seed", range(5))
def test_nonsense_is_a_broken_rule(address: str, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever a device sends, the check ends in a report of all rules."""
    for name in ("client.ANSWER_S", "device.ANSWER_S", "client.LOOK_S"):
        monkeypatch.setattr(f"reservoir_hw.testing.protocol.{name}", 0.05)
    chance = random.Random(seed)
    begun = False

    def struck(replies: Replies) -> Replies:
        return [damaged(chance, frames) if begun and chance.random() < 0.2 else frames for frames in replies]

    class Nonsense(PageDevice):
        def _control(self, sender: bytes, frames: list[bytes]) -> Replies:
            return struck(super()._control(sender, frames))

        def _data(self, sender: bytes, frames: list[bytes]) -> Replies:
            return struck(super()._data(sender, frames))

    def start(*_: object) -> None:
        nonlocal begun
        begun = True

    rules = chance.sample(QUICK, 20)
    with device(Nonsense, address, lease_s=0.2):
        report = check(address, rules=rules, on_start=start)
    assert [row.rule for row in report.rows] == rules
    assert all(row.frames for row in report.broken)


def damaged(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    """Another message, or the same with odd fields behind right checksums."""
    kind = chance.randrange(4)
    if kind == 0:
        return [chance.randbytes(chance.randrange(100)) for _ in frames]
    if kind == 1:
        return [frame[: chance.randrange(len(frame) + 1)] for frame in frames]
    if len(frames) == 1:
        return [pack_control(odd(chance, unpack_control(frames[0])))]
    front, payload = frames
    if payload.startswith((b"\x86", b"\x85")):
        payload = to_msgpack(odd(chance, from_msgpack(payload)))
    changed = bytearray(front[:72] + crc32c(payload).to_bytes(4, "little"))
    if kind == 2:
        changed[chance.randrange(5, 72)] = chance.randrange(256)
    return [bytes(changed) + crc32c(bytes(changed)).to_bytes(4, "little"), payload]


def odd(chance: random.Random, said: dict[str, Any]) -> dict[str, Any]:
    name = chance.choice(list(said))
    if isinstance(said[name], dict) and said[name] and chance.random() < 0.8:
        return {**said, name: odd(chance, said[name])}
    return {**said, name: chance.choice(ODD)}


ODD = (None, True, -1, 0, 1 << 63, 0.5, math.nan, math.inf, "text", b"bytes", [], [1, "x"], {}, {"a": {}})


@pytest.mark.slow
def test_a_declaration_that_makes_no_sense(address: str) -> None:
    nonsense = {"input_range": "wide", "max_batch": 1.5, "continuity": 3, "step_period_s": [], "deterministic": "yes"}
    with device(declaring(**nonsense), address):
        report = check(address, rules=QUICK)
    broken = [row.rule.title for row in report.broken]
    # The device still refuses what its true range does not hold.
    assert broken == ["what else the spec says is of the right type", "max_batch sequences are driven at once"]


@pytest.mark.slow
def test_a_device_that_hangs(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reservoir_hw.testing.protocol.client.LONGEST_S", 1.0)
    with device(PageDevice, address) as page:
        page.before = lambda header: time.sleep(3) if header.operation == RESET else None
        report = check(address, rules=[rule for rule in QUICK if rule.group == "operations"])
    assert "busy for 1 s" in report.broken[0].detail
    assert {row.detail for row in report.rows[1:]} == {GONE}


@pytest.mark.parametrize("address", ["bench", "http://bench:80", "tcp://bench", "tcp://*:5555", "tcp://bench:65535"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address of a device"):
        check(address)


def test_a_device_that_somebody_has(address: str) -> None:
    with device(PageDevice, address), Device(address) as other, other.client("somebody") as client:
        client.hello()
        with pytest.raises(DeviceBusy, match="somebody"):
            check(address)
        client.goodbye()


def test_a_device_of_another_protocol_version(address: str) -> None:
    with device(PageDevice, address) as page:
        page.versions = {2}
        report = check(address, rules=RULES[:3])
    assert [row.outcome for row in report.rows] == ["broken"] * 3
    assert "error 1" in report.rows[0].detail


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reservoir_hw.testing.protocol.pipes.CONNECT_S", 0.2)
    with pytest.raises(DeviceTimeout, match="nobody listens there"):
        check(free_address())


def test_the_docs_show_all_groups() -> None:
    shown = (PAGE.parent / "device-kit.md").read_text(encoding="utf-8").partition("## The rules")[2]
    groups = Counter(rule.group for rule in RULES)
    assert [group for group, rules in groups.items() if f"| {group} | {rules} |" not in shown] == []
    assert f"{len(rules_for('tcp://bench:5555'))} rules, " in shown
