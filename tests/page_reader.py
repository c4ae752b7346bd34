"""A reader who goes down a page and does what it says.

All blocks of a page share a folder that looks like a clone of the repository, the environment of a shell, and the
names of Python. Servers are processes of their own. They run until the page says that they end, until the next one of
their kind, or to the end of the page.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest import mock

from filelock import FileLock
from page_blocks import Marks, blocks, marks_of
from sybil import Example
from sybil.evaluators.python import PythonEvaluator

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]

# What a server prints when it is ready.
SERVERS = {
    r"reservoir-hw serve (?!.*--check)": "Ctrl-C ends the server",
    r"reservoir-hw emulate bench\b": "Ctrl-C ends the bench",
    r"reservoir-hw emulate board\b": "Ctrl-C ends the board",
    r"\S*/board_pty\b": r"\n",
    r"\S*/board_server\b": r"\n",
    r"dask scheduler\b": "Scheduler at",
    r"dask worker\b": "Registered to",
}
# Of these, several run at once; of the others, one at each address.
TOGETHER = r"dask worker\b"
THE_READER_ENDS = re.compile(r"# now end the server")

# Packages are not installed anew: pip looks whether they are there, and whether the extras exist.
PIP = """#!/bin/sh
shift
{python} -m pip install --dry-run --no-index --no-build-isolation --disable-pip-version-check "$@" >pip.log 2>&1
code=$?
cat pip.log
! grep -q 'does not provide the extra' pip.log && exit $code
"""
# What an environment is made of, the same programs again.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3" && cp -an .venv/bin "$3"; else exec {python} "$@"; fi
"""


class Reader:
    """Runs the blocks of one page; `failures` has what went wrong, with page and line."""

    def __init__(self, page: Path, folder: Path, *, slow: bool) -> None:
        self._page, self._folder, self._slow = page, folder, slow
        self._here = folder  # A page may say `cd`.
        self._document = blocks(page)
        self._servers: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
        self._environment = self._prepare()
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()

    def read(self) -> None:
        """Down the page. What comes after a failure is tried all the same."""
        with self._addresses():
            try:
                for example in self._document:
                    marks = marks_of(example.region)
                    if self._skipped(marks):
                        continue
                    if not marks.hidden:
                        self.counts["run"] += 1
                    started = time.perf_counter()
                    try:
                        with self._smaller(marks):
                            self._run(example, marks)
                    except Exception as error:
                        self._note(example, error)
                    if os.environ.get("RESERVOIR_HW_TIMES"):
                        taken = time.perf_counter() - started
                        sys.stderr.write(f"{taken:6.1f} s {self._name(example.line)} {example.parsed.strip()[:60]!r}\n")
            finally:
                for name in list(self._servers):
                    self._end(name)

    def _skipped(self, marks: Marks) -> bool:
        return (
            marks.not_run is not None
            or (marks.slow and not self._slow)
            or (marks.needs == "data" and "RESERVOIR_HW_DATA" not in os.environ)
            or (marks.needs not in (None, "data") and shutil.which(marks.needs) is None)
        )

    def _name(self, line: int) -> str:
        return f"{os.path.relpath(self._page, ROOT)}:{line}"

    def _note(self, example: Example, error: Exception) -> None:
        line = example.line
        if isinstance(error, LineFailed):
            line += error.line
            said = str(error)
        else:
            for frame in traceback.extract_tb(error.__traceback__):
                if frame.filename == example.path and frame.lineno:
                    line = frame.lineno
            said = f"{type(error).__name__}: {error}"
        self.failures.append(f"{self._name(line)}: {said}")

    def _prepare(self) -> dict[str, str]:
        """A folder like a clone; examples and hardware are copies, as commands write there."""
        ignore = shutil.ignore_patterns("__pycache__", "build", ".venv", ".git", ".*_cache", "*.egg-info", "runs")
        for source in ROOT.iterdir():
            target = self._folder / source.name
            if source.name in ("examples", "hardware"):
                shutil.copytree(source, target, ignore=ignore)
            elif source.name not in ignore(str(ROOT), [source.name]) and not source.name.startswith("."):
                target.symlink_to(source)
        programs = self._folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        for program in ("reservoir-hw", "pytest", "torchrun", "dask"):
            (programs / program).symlink_to(Path(sys.executable).parent / program)
        for program, text in (("python", PYTHON), ("python3", PYTHON), ("pip", PIP)):
            (programs / program).write_text(text.format(python=sys.executable))
            (programs / program).chmod(0o755)
        return {
            # A page is read by a person: on CI the plugin for pytest refuses what it shows.
            **{name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            # Threads of so little work cost more than they bring.
            "OMP_NUM_THREADS": "1",
            "RESERVOIR_HW_LOCKS": str(self._folder / ".locks"),
        }

    @contextlib.contextmanager
    def _addresses(self) -> Iterator[None]:
        """Pages name the addresses of their servers: of two pages with servers, one waits for the other."""
        texts = [example.parsed for example in self._document if not self._skipped(marks_of(example.region))]
        if any(_server(line) for text in texts for _, line in _lines(text)):
            with FileLock(Path(tempfile.gettempdir()) / f"reservoir_hw_pages_{os.getuid()}.lock"):
                yield
        else:
            yield

    @contextlib.contextmanager
    def _smaller(self, marks: Marks) -> Iterator[None]:
        keys = [entry.partition("=") for entry in marks.smaller]
        names = {f"RESERVOIR_HW__{key.upper().replace('.', '__')}": value for key, _, value in keys}
        self._environment = self._environment | names
        try:
            yield
        finally:
            for name in names:
                self._environment.pop(name, None)

    def _run(self, example: Example, marks: Marks) -> None:
        if marks.kind in ("python", "set up in Python"):
            self._python(example)
        elif marks.kind == "file":
            assert marks.file is not None
            file = self._here / marks.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)  # It may be a link to a file of the repository.
            file.write_text(example.parsed)
        else:
            lines = _together(example.parsed) if marks.hidden else list(_lines(example.parsed))
            for number, (offset, line) in enumerate(lines):
                wanted = marks.exits_with if number == len(lines) - 1 and not marks.hidden else 0
                self._shell(line, offset - (example.parsed.line_offset < 0) + int(not marks.hidden), wanted)

    def _python(self, example: Example) -> None:
        known = set(sys.modules)
        try:
            with (
                contextlib.chdir(self._here),
                mock.patch.object(sys, "path", [str(self._here), *sys.path]),
                mock.patch.dict(os.environ, self._environment),
            ):
                # Classes say in which module they are.
                example.namespace["__name__"] = "page"
                PythonEvaluator()(example)
        finally:
            for name in set(sys.modules) - known:
                # A folder without __init__.py has no file.
                spec = getattr(sys.modules[name], "__spec__", None)
                places = (
                    []
                    if not isinstance(spec, ModuleSpec)
                    else [spec.origin or "", *(spec.submodule_search_locations or ())]
                )
                if any(place.startswith(str(self._folder)) for place in places):
                    del sys.modules[name]

    def _shell(self, line: str, offset: int, wanted: int) -> None:
        if THE_READER_ENDS.search(line):
            for name in list(self._servers):
                self._end(name)
            return
        line = self._with_names(line)
        kind = _server(line)
        if kind is not None:
            self._begin(kind, line, offset)
            return
        script = f"set -a -e -o pipefail\ntrap 'env -0 >&$kept' EXIT\n{line}"
        with tempfile.TemporaryFile() as kept:
            environment = {**self._environment, "kept": str(kept.fileno())}
            done = subprocess.run(
                ["bash", "-c", script], cwd=self._here, env=environment, pass_fds=[kept.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, check=False,
            )  # fmt: skip
            kept.seek(0)
            after = dict(entry.split("=", 1) for entry in kept.read().decode().split("\0") if "=" in entry)
        self._here = Path(after["PWD"])
        self._environment = {name: after[name] for name in after if name not in ("_", "kept", "SHLVL", "PWD")}
        if done.returncode != wanted:
            raise LineFailed(offset, line, f"exit code {done.returncode}, not {wanted}", done.stdout)

    def _with_names(self, line: str) -> str:
        """The line with what a reader puts in the place of RUN and of other words."""
        line = line.replace("/path/to/data", os.environ.get("RESERVOIR_HW_DATA", ""))
        for word, pattern, has in (
            ("runs/sweeps/NAME", "runs/sweeps/*", "study.db"),
            ("SWEEP", "runs/sweeps/*", "study.db"),
            ("RUN", "runs/*", "experiment.yaml"),
        ):
            if re.search(rf"(?<![\w$-]){word}\b", line):
                # Other commands write folders with numbers, too.
                numbers = self._folder.glob(f"{pattern}/metrics.json")
                folders = [file.parent for file in numbers if file.with_name(has).exists()]
                last = max(folders, key=lambda folder: folder.stat().st_mtime_ns, default=None)
                assert last is not None, f"{line}: there is no {pattern} yet"
                line = re.sub(rf"(?<![\w$-]){word}\b", str(last.relative_to(self._folder)), line)
        return line

    def _begin(self, kind: str, line: str, offset: int) -> None:
        if kind == TOGETHER:
            name = f"{kind} {len(self._servers)}"
        else:
            name = " ".join([kind, *re.findall(r"--bind \S+", line)])
        if name in self._servers:
            self._end(name)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".server", delete=False) as file:
            process = subprocess.Popen(
                # In the background of a shell Ctrl-C is ignored, and so would it be by what is started there.
                ["env", "--default-signal=INT", "bash", "-c", f"exec {line}"], cwd=self._here, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._servers[name] = process, line
        end = time.monotonic() + 60
        while not re.search(SERVERS[kind], said := Path(file.name).read_text()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
            if process.poll() is not None or time.monotonic() > end:
                raise LineFailed(offset, line, "it does not become ready", said.encode())

    def _end(self, name: str) -> None:
        """By Ctrl-C, as a reader does."""
        process, line = self._servers.pop(name)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        # dask dies of Ctrl-C.
        if code not in (0, 130, -signal.SIGINT if line.startswith("dask") else 0):
            self.failures.append(f"{os.path.relpath(self._page, ROOT)}: {line}: exit code {code} at its end")


class LineFailed(Exception):
    """A line of a block, counted from its first."""

    def __init__(self, line: int, command: str, problem: str, said: bytes) -> None:
        super().__init__(f"{command}\n{problem}\n{said.decode(errors='replace')[-3000:]}")
        self.line = line


def _server(line: str) -> str | None:
    return next((kind for kind in SERVERS if re.match(rf"(\w+=\S+ )*{kind}", line)), None)


def _together(text: str) -> list[tuple[int, str]]:
    """The lines of a set-up, which may hold documents of several lines: only servers stand alone."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines()):
        if found and not _server(line) and not _server(found[-1][1]):
            found[-1] = found[-1][0], f"{found[-1][1]}\n{line}"
        elif line:
            found.append((number, line))
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Each command with the number of its line; those that a backslash continues are one."""
    whole, first = "", 0
    for number, line in enumerate(text.splitlines()):
        if not whole:
            first = number
        whole += line.removeprefix("$ ") + "\n"
        if not line.endswith("\\"):
            if whole.strip():
                yield first, whole.strip()
            whole = ""
