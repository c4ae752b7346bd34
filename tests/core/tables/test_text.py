"""Text files: the exact numbers come back, or one sentence says which line is in the way."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tables.configuration import ReadConfig
from reservoir_hw.core.tables.sources import one_of
from reservoir_hw.core.tables.text import TextTable, read_text

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r*?:"), max_size=8)
LABELS = st.sampled_from(["NA", "None", "01", "1,5", "a;b", 'say "x"', "# 1", "two\nlines", "nan", ""]) | WORDS
NUMBERS = st.floats(allow_infinity=False) | st.integers(-9, 9).map(float) | st.just(math.nan)
COLUMN = st.sampled_from(["numbers", "labels", "mixed"])
FAULTS = st.sampled_from(["", "", "", "blank", "more", "fewer", "title"])


def read(content: str | bytes, **config: Any) -> TextTable:
    raw = content if isinstance(content, bytes) else content.encode()
    return read_text(raw, ReadConfig(**config), "a.csv")


def numbers(table: TextTable, column: int | str) -> list[float]:
    at = one_of(column, table.header, table.shape[1], "a.csv")
    return table.read([at], 0, table.shape[0])[:, 0].tolist()


def written(number: float, decimal: str) -> str:
    return "" if math.isnan(number) else repr(number).replace(".", decimal)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_random_table_is_read_to_the_bit_or_refused_in_a_sentence(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(COLUMN, min_size=1, max_size=4), "kinds")
    names = [data.draw(WORDS | st.sampled_from(["u", "t[s]", "ü"]), "name") for _ in kinds]
    count = data.draw(st.integers(0, 6), "rows")
    cell = {"numbers": NUMBERS, "labels": LABELS, "mixed": NUMBERS | LABELS}
    columns = [[data.draw(cell[kind]) for _ in range(count)] for kind in kinds]
    delimiter, decimal = data.draw(st.sampled_from([(",", "."), (";", "."), (";", ","), ("\t", "."), ("\t", ",")]))
    fault = data.draw(FAULTS, "fault")
    if fault == "fewer" and len(kinds) == 1:
        fault = "more"
    rows = [[c if isinstance(c, str) else written(c, decimal) for c in row] for row in zip(*columns, strict=True)]
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=data.draw(st.sampled_from(["\n", "\r\n"])))
    if fault == "title":
        file.write("made by a bench\n")
    writer.writerow(names)
    broken = data.draw(st.integers(0, count - 1), "broken") if count and fault not in ("", "title") else None
    for index, row in enumerate(rows):
        if index == broken and fault == "blank":
            file.write(" \n")
        writer.writerow({"more": [*row, "1"], "fewer": row[:-1]}.get(fault, row) if index == broken else row)
    file.write(data.draw(st.sampled_from(["", "\n", " \n\n"]), "end"))
    said = {"delimiter": delimiter, "decimal": decimal, "header": True, "skip_lines": int(fault == "title")}
    # A name that begins with a comment's sign, at the top of the file, takes its line with it.
    commented = names[0].lstrip(" \n")[:1] in ("#", "%")
    for config in (said, {}):
        table, complaint = tried(lambda config=config: read(file.getvalue(), **config))
        if table is None:
            assert "line" in complaint or "no table" in complaint
            assert not config or broken is not None or commented, complaint
            continue
        if config and commented:
            continue
        for number, (kind, name, column) in enumerate(zip(kinds, names, columns, strict=True)):
            at = number if config else name.strip(" \r\n")
            found, complaint = tried(lambda table=table, at=at: numbers(table, at))
            if found is None:
                assert not config or kind != "numbers", complaint
                continue
            assert broken is None
            assert len(found) == count
            if all(isinstance(cell, float) for cell in column):
                np.testing.assert_array_equal(found, column)
            if kind == "labels":
                assert table.cells(number) == [label.strip(" \r\n") for label in column]


def tried(call: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return call(), ""
    except ConfigurationError as error:
        return None, str(error)


NAMED = "t,u,v\n"


@pytest.mark.parametrize(
    ("content", "config", "message"),
    [
        (NAMED + "0,1,2\n\n1,2,3\n", {}, r"a\.csv, line 3 is empty"),
        (NAMED + "\n0,1,2\n", {}, "line 2 is empty"),
        (NAMED + "0,1,2\n1,2\n", {}, "line 3: 2 cells, there are names for 3"),
        (NAMED + "0,1,2,3\n1,2,3,4\n", {}, r"line 1 has 3 cells, the table in line 2 has 4: .*skip_lines: 1"),
        (NAMED + "abc\n1,2,3\n", {}, "line 2 has 1 cells"),
        ("0,1,2\n1,2\n", {}, "line 2: 2 cells, the first row has 3"),
        ("u\n1,5\n2,5\n", {}, r"line 1 has 1 cells, the table in line 2 has 2: .*`read: \{decimal: ','\}`"),
        ("t,400,500\n0,1,2\n", {}, "line 1: these cells may be names"),
        (",0,1,2\n0,1,2,3\n", {}, "line 1: these cells may be names"),
        ("0,1,2,3,4\n0.5,1,2,3,4\n", {}, "line 1: these cells may be names"),
        (NAMED + '0,1,"2\n1,2,3\n', {}, "line 2: .*is a quote missing"),
        (NAMED + "0,1,2\n1,oh,3\n", {}, "line 3, column 'u': 'oh' is not a number"),
        ("u\n0\n\t1\n", {}, "line 3, column 'u': '\\\\t1' is not a number"),
        (NAMED + "0,1_0,2\n", {}, "line 2, column 'u': '1_0' is not a number"),
        ("t;u\n0;1,5\n1;1.000\n", {"decimal": ","}, "line 3, column 'u': '1.000' is not a number"),
        ("t,u,u\n0,1,2\n", {}, r"several columns 'u': take them by number \(1, 2\)"),
        ("\n \n", {}, "no table in it"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(content: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        numbers(read(content, **config), "u")


@pytest.mark.parametrize(
    ("content", "config", "header", "rows"),
    [
        ("u;v\n1,5;2,5\n", {}, ["u", "v"], [[1.5, 2.5]]),
        ("1,5;2,5\n2;3\n", {}, [], [[1.5, 2.5], [2, 3]]),
        ("u\n1,5\n2,5\n", {"decimal": ","}, ["u"], [[1.5], [2.5]]),
        ("u v\n1,5  2,5\n", {}, ["u", "v"], [[1.5, 2.5]]),
        ("t,400\n0,1\n", {"header": True}, ["t", "400"], [[0, 1]]),
        ("400,401\n0,1\n", {"header": True}, ["400", "401"], [[0, 1]]),
        ("NA,1\n0,1\n", {"header": False, "skip_lines": 1}, [], [[0, 1]]),
        ("made by a bench, in May\n\nu,v,w\n0,1,2\n", {}, ["u", "v", "w"], [[0, 1, 2]]),
        ("Bench 7\nu,v\n0,1\n", {}, ["u", "v"], [[0, 1]]),
        ("# 400 401\n0 1\n", {"header": True}, ["400", "401"], [[0, 1]]),
        ("# 3 June\n# u v\n0 1\n", {}, ["u", "v"], [[0, 1]]),
        ("u,v\n,1\n,\n", {}, ["u", "v"], [[math.nan, 1], [math.nan, math.nan]]),
        ("u\r0\r1", {}, ["u"], [[0], [1]]),
        ("u,v\n", {}, ["u", "v"], []),
    ],
)
def test_how_a_text_is_written_is_seen(
    content: str, config: dict[str, Any], header: list[str], rows: list[list[float]]
) -> None:
    table = read(content, **config)
    assert list(table.header) == header
    width = table.shape[1]
    np.testing.assert_array_equal(table.read(range(width), 0, 9), np.array(rows).reshape(-1, width))
