"""The blocks of a page that a reader runs, with the marks that a reader does not see: a parser for sybil.

A mark is a comment before a block:

    <!-- not run: a GPU -->         one of REASONS; more words may follow behind a comma
    <!-- slow -->                   only `make test-slow` runs it
    <!-- smaller: run.point=0 -->   with these keys in its environment, as RESERVOIR_HW__RUN__POINT=0
    <!-- needs data -->             only where RESERVOIR_HW_DATA is set
    <!-- needs ssh-keygen -->       only where there is this program
    <!-- file: lab.yaml -->         the block is written to this file, whose name the page says
    <!-- exits with 3 -->           its last command fails so
    <!-- page: slow, needs data --> these hold for all blocks of the page that follow

Two kinds of comments are run themselves, in their place. They prepare what the next block takes for granted:

    <!-- set up: cp examples/remote/bench.yaml . -->        lines of a shell
    <!-- set up in Python: u = np.zeros((1, 100, 1)) -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from markdown_it import MarkdownIt
from sybil import Document, Lexeme, Region

REASONS = ("two hosts", "an instrument", "an hour", "a GPU")
# What a fence may be called. Anything else would be a block that nobody looks at.
LANGUAGES = {"", "bash", "c", "console", "python", "text", "toml", "yaml"}
COMMAND = re.compile(
    r"^(\$ )?(\w+=\S+ )*(\S*/)?"
    r"(reservoir-hw|python3?|pytest|make|pip|torchrun|sbatch|dask|sudo|board_pty|board_server|export)\b",
    re.MULTILINE,
)
COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
MARK = re.compile(
    r"(?P<what>page|not run|slow|smaller|needs|file|exits with|set up in Python|set up)\b:?\s*(?P<words>.*)", re.DOTALL
)


@dataclass(frozen=True)
class Marks:
    """What the comments before a block say of it."""

    kind: Literal["python", "shell", "file", "set up", "set up in Python"] = "shell"
    not_run: str | None = None
    slow: bool = False
    smaller: tuple[str, ...] = ()
    needs: str | None = None
    file: str | None = None
    exits_with: int = 0

    @property
    def hidden(self) -> bool:
        """Whether it is a comment itself, and no block."""
        return self.kind.startswith("set up")


def regions(document: Document) -> Iterator[Region]:
    """For sybil: text and marks of each block, in the order of the page."""
    starts = [0]
    for line in document.text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    marks = page = Marks()
    for token in MarkdownIt().parse(document.text):
        if token.map is None or token.type not in ("html_block", "fence", "code_block"):
            continue
        first = token.map[0]
        where = f"{document.path}:{first + 1}"
        if token.type == "html_block":
            for comment in COMMENT.finditer(token.content):
                found = MARK.fullmatch(comment[1])
                if found is None:
                    continue
                line = first + token.content[: comment.start()].count("\n")
                what, words = found["what"], found["words"]
                if what == "page":
                    for mark in words.split(", "):
                        name, _, more = mark.partition(" ")
                        page = _with_mark(page, name, more, where)
                    marks = page
                elif what in ("set up", "set up in Python"):
                    start = starts[line] + comment.start() - (token.content.rfind("\n", 0, comment.start()) + 1)
                    hidden = replace(marks, kind=what)
                    yield Region(start, start + len(comment[0]), Lexeme(words, 0, 0), lexemes={"marks": hidden})  # type: ignore[arg-type]
                else:
                    marks = _with_mark(marks, what, words, where)
            continue
        language = token.info.strip()
        assert language in LANGUAGES, f"{where}: a block in {language}, which nobody looks at"
        is_fence = token.type == "fence"
        if marks.file is not None:
            seen = COMMENT.sub("", document.text)
            shown = marks.file in seen or str(Path(marks.file).parent) in seen
            assert shown, f"{where}: a reader does not see the name {marks.file}"
            marks = replace(marks, kind="file")
        elif language == "python":
            marks = replace(marks, kind="python")
        elif language in ("", "bash", "console") and COMMAND.search(token.content):
            marks = replace(marks, kind="shell")
        else:
            assert marks == page, f"{where}: a mark before a block that is not run"
            continue
        # Of a fence, what is run begins a line later.
        text = Lexeme(token.content, 0, int(is_fence) - 1)
        yield Region(starts[first], starts[token.map[1]], text, lexemes={"marks": marks})  # type: ignore[arg-type]
        marks = page
    assert marks == page, f"{document.path}: its last mark has no block"


def _with_mark(marks: Marks, what: str, words: str, where: str) -> Marks:
    if what == "not run":
        reason = words.partition(",")[0]
        assert reason in REASONS, f"{where}: {reason!r} is none of the reasons {REASONS}"
        return replace(marks, not_run=reason)
    if what == "slow":
        return replace(marks, slow=True)
    if what == "smaller":
        return replace(marks, smaller=tuple(words.split()))
    if what == "needs":
        return replace(marks, needs=words)
    if what == "file":
        return replace(marks, file=words)
    return replace(marks, exits_with=int(words))


def blocks(page: Path) -> Document:
    """The page as sybil sees it."""
    return Document.parse(str(page), regions)


def marks_of(region: Region) -> Marks:
    """What the comments before it say."""
    found = region.lexemes["marks"]
    assert isinstance(found, Marks)
    return found
