"""The documentation runs: every command and every block of Python of a page, from the page itself.

page_blocks.py says how a block is marked that is not run, or not at once.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from page_blocks import blocks, marks_of
from page_reader import PAGES, ROOT, Reader

MARKS = {page: [marks_of(example.region) for example in blocks(page)] for page in PAGES}
BLOCKS = {page: [marks for marks in of_page if not marks.hidden] for page, of_page in MARKS.items()}
QUICK = [page for page in PAGES if any(not marks.slow and marks.not_run is None for marks in BLOCKS[page])]
SLOW = [page for page in PAGES if any(marks.slow and marks.not_run is None for marks in BLOCKS[page])]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(page: Path, folder: Path, record_property: Any, *, slow: bool) -> None:
    before = os.times()
    reader = Reader(page, folder, slow=slow)
    reader.read()
    after = os.times()
    record_property("blocks of pages", reader.counts["run"])
    record_property("seconds of a processor of pages", sum(after[:4]) - sum(before[:4]))
    if reader.failures:
        pytest.fail("\n\n".join(reader.failures), pytrace=False)


@pytest.mark.parametrize("page", QUICK, ids=name)
def test_the_quick_blocks_of_a_page_run(page: Path, tmp_path: Path, record_property: Any) -> None:
    read(page, tmp_path, record_property, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW, ids=name)
def test_all_blocks_of_a_page_run(page: Path, tmp_path: Path, record_property: Any) -> None:
    read(page, tmp_path, record_property, slow=True)


PAGE = """# A page

<!-- set up: mkdir -p lab; echo 'kind: esn' > lab/esn.yaml -->

    cat lab/esn.yaml; export WORD=7
    reservoir-hw no-such-command

<!-- exits with 3 -->

    sh -c "exit $WORD"; python3 -c ""
    python3 -c "import sys; sys.exit($WORD - 4)"

<!-- file: lab/answer.py -->
```python
ANSWER = 42
```

```python
from lab.answer import ANSWER

assert ANSWER == 43, "a false block"
```

<!-- not run: a GPU -->

    reservoir-hw another-one

`lab/answer.py`
"""


def test_what_is_false_is_named_with_page_and_line(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "folder"
    page.write_text(PAGE)
    folder.mkdir()
    reader = Reader(page, folder, slow=False)
    reader.read()
    places = [failure.partition("page.md:")[2].partition(":")[0] for failure in reader.failures]
    assert places == ["6", "10", "21"], reader.failures
    assert "No such command" in reader.failures[0]
    assert "exit code 7, not 0" in reader.failures[1]
    assert "a false block" in reader.failures[2]
    assert reader.counts["run"] == 4


def test_at_most_a_tenth_of_all_blocks_is_not_run(record_property: Any) -> None:
    everything = [marks for page in PAGES for marks in BLOCKS[page]]
    reasons = Counter(marks.not_run for marks in everything if marks.not_run is not None)
    counted = ", ".join(f"{count} for {reason}" for reason, count in sorted(reasons.items()))
    record_property("all blocks of pages", f"{len(everything)}; not run: {reasons.total()} ({counted})")
    assert reasons.total() <= len(everything) / 10, counted
