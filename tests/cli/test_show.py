"""What is printed is whole at 80 columns, in a file and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time

import pytest

from reservoir_hw.cli.show import print_facts, print_tables
from reservoir_hw.experiment.states import progress as bars
from reservoir_hw.tasks.task import Table

REMARK = "Seen from 16 initial states: one that more than 17 % of all lead to would have been found."
ROW = ["memory", "10.74", "[10.63, 10.86]", REMARK]
HEADER = ["measure", "value", "95% interval", "remark"]
MANY = [f"spectral_radius_{number}" for number in range(8)]


def test_tables_are_whole_at_any_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(table: Table, columns: int | None) -> list[str]:
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", str(columns))
        print_tables([table])
        return capsys.readouterr().out.splitlines()

    measures = Table("Measures", HEADER, [ROW], "a note")
    wide = printed(measures, 200)
    assert any("memory" in line and REMARK in line for line in wide)
    for lines in (printed(measures, 80), printed(measures, None)):
        assert max(map(len, lines)) <= 80
        # The remark is in the last column, one part of it in each line.
        assert " ".join(line.split("│")[-2].strip() for line in lines if "│" in line).strip() == REMARK
    assert any("[10.63, 10.86]" in line for line in printed(measures, 80))
    intervals = printed(Table("Pairs", ["name", *"ABC"], [["x", *["0.1234 [0.1230, 0.1238]"] * 3]], ""), 80)
    assert [line.count("0.1234") for line in intervals if "│" in line] == [3, 0]
    assert [line.count("[0.1230, 0.1238]") for line in intervals if "│" in line] == [0, 3]
    lines = printed(Table("Trials", MANY, [[*"12345678"], [*"abcdefgh"]], ""), 80)
    assert [line.split() for line in lines] == [
        ["Trials"], *map(list, zip(MANY, "12345678", strict=True)), [], *map(list, zip(MANY, "abcdefgh", strict=True)),
    ]  # fmt: skip
    print_facts([("names", "first " * 20 + "/a/path/" + "long/" * 20), ("next", "one")])
    names, *others = capsys.readouterr().out.splitlines()
    assert len(names) <= 80
    assert all(line.startswith("       ") for line in others[:-1])
    assert "       /a/path/" + "long/" * 20 in others


def test_lines_in_a_file_have_the_time_that_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "LINE_EVERY_S", 0.0)
    with bars.progress_bar() as bar:
        # An earlier run has done the first half.
        bar("driving", 500, 1000)
        time.sleep(1.0)
        bar("driving", 600, 1000)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "500 of 1,000 steps after 0:00:00: driving"
    assert last == "600 of 1,000 steps after 0:00:01, 0:00:04 left: driving"


def test_a_bar_at_80_columns_shows_everything() -> None:
    what = "trial 12 of 60, best 0.4347: ESN(200) [reservoir.nodes=200, task.dataset=1]: step 1,000 of 5,000: loss 2.3"
    script = f"""
import time
from reservoir_hw.experiment.states.progress import progress_bar
with progress_bar() as bar:
    for done in range(20):
        bar({what!r}, 1000 + done, 10_000_000)
        time.sleep(0.03)
"""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", script], stderr=theirs, env=env) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                written += os.read(ours, 1 << 16)
            except OSError:
                break
    os.close(ours)
    assert process.returncode == 0
    frames = [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", frame) for frame in written.decode().split("\x1b[2K")]
    text = "\n".join(frame for frame in frames if frame.strip())
    *_, first, second, bar = [line.strip("\r") for line in text.splitlines() if line.strip()]
    assert f"{first.strip()} {second.strip()}" == what
    assert re.fullmatch(
        r"  0% ━+ 0:00:0\d [\d,.]+ steps/s, ([\d,]+ days?, )?\d+:\d\d:\d\d left *", bar.replace("╺", "━")
    )
    assert max(map(len, (first, second, bar))) <= 80
