"""Files that are valid by the schema, drawn at random: each runs, or is refused by an error of the package.

Every file has a seed. `RESERVOIR_HW_SEEDS=17` or `1000-1300` draws others than the usual ones.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from drawn_files import draw_file, furnish

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError, ReservoirError

FILES = 18
"""As many in one test."""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with what drawn files name."""
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("lab", None)


def outcome(seed: int, folder: Path) -> str:
    """What became of a file: "ran", "refused", or what is wrong with it."""
    document = draw_file(Random(seed))
    file = folder / "experiment.yaml"
    file.write_text(json.dumps(document))
    try:
        result = Experiment.from_file(file, environment={}).run(report=False)
    except ReservoirError as error:
        said = str(error)
        if said.strip() and "Traceback" not in said:
            return "refused"
        return f"seed {seed}: {document}\nsays {said!r}"
    except Exception:
        return f"seed {seed}: {document}\n{traceback.format_exc()}"
    return "ran" if result.status == "complete" else f"seed {seed}: {document}\nended as {result.status}"


def blocks() -> list[Any]:
    """Seeds, and whether they are the usual ones, of which some run and some are refused."""
    given, _, last = os.environ.get("RESERVOIR_HW_SEEDS", "").partition("-")
    if given:
        return [pytest.param(range(int(given), int(last or given) + 1), False)]
    usual = [range(first, first + FILES) for first in range(0, 14 * FILES, FILES)]
    return [pytest.param(one, True, marks=[pytest.mark.slow] * (number > 1)) for number, one in enumerate(usual)]


@pytest.mark.parametrize(
    ("seeds", "usual"), blocks(), ids=lambda one: f"from {one.start}" if isinstance(one, range) else None
)
def test_a_file_runs_or_is_refused_in_a_sentence(lab: Path, seeds: range, usual: bool) -> None:
    found = [outcome(seed, lab) for seed in seeds]
    wrong = [one for one in found if one not in ("ran", "refused")]
    assert not wrong, "\n\n".join(wrong)
    if usual:
        assert {*found} == {"ran", "refused"}


@pytest.mark.parametrize(
    ("document", "fragment"),
    [
        (
            {"task": {"kind": "mackey_glass", "tau": 0.3, "train_steps": 104, "test_steps": 52}},
            "task: its test cannot be scored: the targets do not vary",
        )
    ],
)
def test_what_was_neither_once(tmp_path: Path, document: dict[str, Any], fragment: str) -> None:
    rest = {"reservoir": {"kind": "esn", "nodes": 3}, "readout": {"kind": "ridge"}, "run": {"folder": str(tmp_path)}}
    with pytest.raises(ConfigurationError, match=fragment):
        Experiment({**rest, **document}).run(report=False)
