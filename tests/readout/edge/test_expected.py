"""The bundle that was sent: what its own hashes find, and what only the digest finds that came another way."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_bundles import GRAPHS, VOCABULARY, Case, case, weights
from safetensors.numpy import load, save
from typer.testing import CliRunner

from reservoir_hw.cli import app
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.readout.edge import Bundle, EdgeRunner
from reservoir_hw.readout.edge.bundle import write_bundle
from reservoir_hw.readout.edge.manifest import WEIGHTS

PAGE = Path(__file__).parents[3] / "docs" / "edge.md"


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def _weights(**changes: np.ndarray) -> dict[str, bytes]:
    return {WEIGHTS: save({**weights(), **changes})}


def _golden(made: Case) -> dict[str, bytes]:
    arrays = load(made.files["golden.safetensors"])
    return {"golden.safetensors": save({**arrays, "segment_1/outputs": arrays["segment_1/outputs"] + 1})}


def _clumsy(path: Path) -> dict[str, Callable[[], Any]]:
    """Changes that leave the hashes as they were: what damages a bundle, and who forges one without care."""
    made = case()
    there = {**made.files, "manifest.json": json.dumps(made.manifest()).encode()}
    places = generator(0, "tamperings")
    found: dict[str, Callable[[], Any]] = {}
    for name, data in there.items():
        for at in map(int, places.integers(0, len(data), 4)):
            found[f"bit {at} of {name}"] = lambda name=name, at=at: (path / name).write_bytes(_flipped(there[name], at))
    first, second = (path / name for name in GRAPHS)
    return found | {
        "two graphs change places": lambda: (first.write_bytes(there[GRAPHS[1]]), second.write_bytes(there[GRAPHS[0]])),
        "another name": lambda: first.rename(path / "graphs/segment_2.onnx"),
        "one file less": lambda: (path / "tokenizer.json").unlink(),
        "one file more": lambda: (path / "graphs/more.onnx").write_bytes(b"x"),
        "an empty file": lambda: (path / "tokenizer.json").write_bytes(b""),
        "a link": lambda: (first.rename(path.parent / "outside.onnx"), first.symlink_to("../../outside.onnx")),
        "another manifest": lambda: (path / "manifest.json").write_text(json.dumps(case(seed=1).manifest())),
        "weights of another model": lambda: (path / WEIGHTS).write_bytes(case(seed=1).files[WEIGHTS]),
    }


FORGED: dict[str, Callable[[Case], Any]] = {
    "one weight": lambda made: made.files.update(_weights(bias=np.eye(VOCABULARY, dtype=np.float32)[0])),
    "no weights": lambda made: made.files.update(_weights(bias=np.zeros(VOCABULARY, np.float32))),
    "golden values": lambda made: made.files.update(_golden(made)),
    "tokenizer": lambda made: made.files.update({"tokenizer.json": b'{"kind": "characters", "characters": "gfedcba"}'}),
    "device": lambda made: made.facts["slots"][0].update(fingerprint="f" * 64),
    "meaning": lambda made: made.facts.update(output_meaning="values"),
    "provenance": lambda made: made.facts.update(provenance={"seed": 7}),
    "name of the model": lambda made: made.facts.update(model="LAERC"),
}


def _refused(path: Path, expect: str | None = None) -> bool:
    try:
        Bundle.open(path, expect).close()
    except ConfigurationError:
        return True
    return False


def test_forty_tamperings(tmp_path: Path) -> None:
    """The page says how many are refused without the digest; with it all are."""
    with Bundle.open(case().forge(tmp_path / "sent")) as sent:
        digest = sent.digest
    found: list[tuple[bool, bool]] = []
    for number, name in enumerate(_clumsy(tmp_path)):
        path = case().forge(tmp_path / f"clumsy{number}")
        _clumsy(path)[name]()
        found.append((_refused(path), _refused(path, digest)))
    clumsy = len(found)
    for name, forge in FORGED.items():
        made = case()
        forge(made)
        found.append((_refused(made.forge(tmp_path / name)), _refused(tmp_path / name, digest)))
    without, expecting = (sum(column) for column in zip(*found, strict=True))
    assert (len(found), without, expecting) == (40, clumsy, 40)
    said = re.search(r"Of\s40\stamperings\s(\d+)\swere\srefused", PAGE.read_text(encoding="utf-8"))
    assert said is not None
    assert int(said[1]) == without


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    made = case()
    write_bundle(tmp_path / "model.rhw", made.facts, made.files)
    write_bundle(tmp_path / "model", made.facts, made.files)
    with Bundle.open(tmp_path / "model.rhw") as one, Bundle.open(tmp_path / "model", one.digest.upper()) as other:
        assert one.digest == other.digest
        with zipfile.ZipFile(tmp_path / "again.zip", "w") as file:
            for name in other.sizes:
                file.write(tmp_path / "model" / name, name)
        Bundle.open(tmp_path / "again.zip", one.digest).close()
        shown = CliRunner().invoke(app, ["bundle", "info", str(tmp_path / "model"), "--json"])
        assert json.loads(shown.stdout)["sha256"] == one.digest
        with pytest.raises(ConfigurationError, match="is another one than expected"):
            EdgeRunner(one, expect="0" * 64)


def test_what_is_expected_is_compared_before_anything_else_is_looked_at(tmp_path: Path) -> None:
    """Neither the manifest nor any other file need be readable for it."""
    bad = case().forge(tmp_path / "bad", b"[" * 100_000)
    with pytest.raises(ConfigurationError, match=r"bad: is another one than expected: its sha256 is [0-9a-f]{64}"):
        Bundle.open(bad, "0" * 64)


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "g" * 64, " " + "0" * 63, "0" * 63 + "٣", "0" * 64 + "\n"])
def test_what_is_no_digest(digest: str, tmp_path: Path) -> None:
    bundle = case().forge(tmp_path / "model")
    done = CliRunner().invoke(app, ["infer", str(bundle), "--expect", digest], input="")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "is no digest of a bundle to expect: take the 64 hexadecimal digits" in line


def test_capitals_are_digits_too(tmp_path: Path) -> None:
    bundle = case().forge(tmp_path / "model")
    done = CliRunner().invoke(app, ["infer", str(bundle), "--expect", "A" * 64], input="")
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.fullmatch(rf"error: .*its sha256 is [0-9a-f]{{64}}, and {'a' * 64} was expected\n", done.stderr)
