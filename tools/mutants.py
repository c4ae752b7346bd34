"""Measure tests by mutants: small faults planted in the code, each run against the tests that reach its place.

    python tools/mutants.py draw --mutants FOLDER/mutants.json --seed 2026 --count 120
    python tools/mutants.py cover --mutants FOLDER/mutants.json --tests CHECKOUT --into FOLDER/old
    python tools/mutants.py run --mutants FOLDER/mutants.json --tests CHECKOUT --into FOLDER/old
    python tools/mutants.py table --mutants FOLDER/mutants.json --into FOLDER/old

The source is that of `--source`, a commit of this repository (HEAD). Only the folder `tests/` comes from CHECKOUT, so
that two sets of tests are compared on one source. FOLDER lies outside of the repository. Where the source has changed
between two sets of tests, `draw --also OLD` takes only functions that read the same in the checkout OLD, and writes the
same mutants of its files beside the others, as `FOLDER/mutants.also.json`.

- `draw`: at most one mutant a function, rooms in proportion to their lines. Left out are compiled kernels, messages,
  annotations and whatever lies outside of functions.
- `cover`: runs the quick tests once in a copy in which a call stands before each place. `hits.jsonl` says which test
  ran which place, in any process. What runs while a test is set up counts for all tests of its file, as fixtures and
  servers are shared. Tests that fail here twice are left out, and listed. It goes on where it was interrupted.
- `run`: tests of the folder that mirrors the code come first, then quick files; `--seconds` of a processor for each
  mutant. It is caught if a test fails with it, passes without it and fails with it again. A test that hangs has failed.
  `results.jsonl` gets one line a mutant: the command can be interrupted and started again.

With `-p mutants` this module is also the plugin of pytest that these runs use.
"""

from __future__ import annotations

import argparse
import ast
import copy
import faulthandler
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

Record = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("core", "backends", "drivers", "readout", "experiment", "measures")
_COMPILED = re.compile(r"jit|intrinsic|overload|triton")
_ERROR = re.compile(r"\w*(Error|Fault|Timeout|Extra|OutOfMemory|NotOpen|NotSupported|StateLost|Busy|Stopped)|warn")
_ONE, _OTHER = (
    ["Add", "And", "BitAnd", "LShift", "Lt", "Gt", "Eq", "Is", "In", "Mult"],
    ["Sub", "Or", "BitOr", "RShift", "LtE", "GtE", "NotEq", "IsNot", "NotIn", "Div"],
)
SWAPS: dict[str, str] = dict(zip(_ONE + _OTHER, _OTHER + _ONE, strict=True))
SWAPS |= dict.fromkeys(("FloorDiv", "Mod", "Pow"), "Mult")
_HIT = """import json, os
_seen = set()
def hit(number):
    pair = (number, os.environ.get("MUTANTS_TEST"))
    if pair[1] and pair not in _seen:
        _seen.add(pair)
        file = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, (json.dumps({{"mutant": number, "test": pair[1]}}) + "\\n").encode())
        os.close(file)
"""


def _variants(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Kind, the node to replace and its new text, for each way to change this node."""
    new: Any = copy.deepcopy(node)
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and (other := SWAPS.get(type(node.op).__name__)):
        new.op = getattr(ast, other)()
        yield "operator", node, ast.unparse(new) if isinstance(node, ast.AugAssign) else f"({ast.unparse(new)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "operator", node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            new.ops = [*node.ops[:index], getattr(ast, SWAPS[type(op).__name__])(), *node.ops[index + 1 :]]
            yield "comparison", node, f"({ast.unparse(new)})"
    elif isinstance(node, ast.Constant) and isinstance(value := node.value, bool | int | float):
        other = not value if isinstance(value, bool) else value * 2 if isinstance(value, float) and value else value + 1
        yield "constant", node, repr(other)
    for test in [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else getattr(node, "ifs", []):
        yield "condition", test, f"(not ({ast.unparse(test)}))"
    stored = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if stored or called or isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break):
        yield "dropped", node, "pass"


def _silent(node: ast.AST) -> bool:
    """Whether nothing below a node is changed: messages, declarations, functions and classes of their own."""
    if isinstance(node, ast.Call):
        return bool(_ERROR.fullmatch(ast.unparse(node.func).rpartition(".")[2]))
    apart = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr | ast.pattern
    return isinstance(node, apart) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))


def _below(node: ast.AST, statement: int, lines: list[bytes]) -> Iterator[tuple[int, str, ast.AST, str]]:
    """Every change at or below a node, with the line of the statement before which a call can stand."""
    if isinstance(node, ast.stmt) and not lines[node.lineno - 1][node.col_offset :].startswith(b"elif"):
        statement = node.lineno
    yield from ((statement, *variant) for variant in _variants(node))
    for name, value in ast.iter_fields(node) if not isinstance(node, ast.Raise) else ():
        for child in (value if isinstance(value, list) else [value]) if name != "annotation" else []:
            if isinstance(child, ast.AST) and not _silent(child):
                yield from _below(child, statement, lines)


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions below a node that Python runs as they stand, and that do more than word an error."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(_COMPILED.search(ast.unparse(decorator)) for decorator in child.decorator_list):
                continue
            if not (child.returns and _ERROR.match(ast.unparse(child.returns))):
                yield child
        yield from _functions(child)


def _candidates(path: Path) -> Iterator[list[Record]]:
    """The possible mutants of each function of a file. Columns count bytes, as those of `ast` do."""
    lines = (content := path.read_bytes()).splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for function in _functions(ast.parse(content)):
        found: list[Record] = []
        for body in function.body:
            for statement, kind, node, after in _below(body, body.lineno, lines) if not _silent(body) else ():
                at: Any = node
                before = content[starts[at.lineno - 1] + at.col_offset : starts[at.end_lineno - 1] + at.end_col_offset]
                where = {"file": str(path.relative_to(ROOT)), "line": at.lineno, "column": at.col_offset}
                text = {"kind": kind, "before": before.decode(), "after": after}
                whole = {"function": _text(lines, function), "first": function.lineno, "statement": statement}
                found.append({**where, **text, **whole})
        if found:
            yield found


def _text(lines: list[bytes], function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return b"".join(lines[function.lineno - 1 : function.end_lineno]).decode()


def _places(root: Path) -> dict[str, list[tuple[str, int]]]:
    """File and first line of each function of a checkout, by its text."""
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path in sorted((root / "reservoir_hw").rglob("*.py")):
        lines = (content := path.read_bytes()).splitlines(keepends=True)
        for function in _functions(ast.parse(content)):
            places[_text(lines, function)].append((str(path.relative_to(root)), function.lineno))
    return places


def elsewhere(drawn: list[Record], places: dict[str, list[tuple[str, int]]]) -> list[Record]:
    """The same mutants in the files of another checkout."""
    moved = []
    for mutant in drawn:
        ((file, first),) = places[mutant["function"]]
        lines = {name: mutant[name] - mutant["first"] + first for name in ("line", "statement")}
        moved.append({**mutant, **lines, "file": file, "first": first})
    return moved


def draw(seed: int, count: int, places: dict[str, list[tuple[str, int]]] | None) -> list[Record]:
    """Seeded mutants: rooms in proportion to their lines, functions in proportion to what can be changed in them.

    `places` are those of another checkout, if only functions that it has once are to be drawn.
    """
    numbers, drawn = random.Random(seed), []
    paths = {room: sorted((ROOT / "reservoir_hw" / room).rglob("*.py")) for room in ROOMS}
    lines = {room: sum(len(path.read_text("utf-8").splitlines()) for path in paths[room]) for room in ROOMS}
    upto = 0
    for room in ROOMS:
        upto += lines[room]
        # Modules of this name only launch kernels on a GPU.
        functions = [found for path in paths[room] if "triton" not in path.name for found in _candidates(path)]
        if places is not None:
            functions = [found for found in functions if len(places.get(found[0]["function"], [])) == 1]
        while len(drawn) < round(count * upto / sum(lines.values())):
            function = numbers.choices(functions, weights=[len(found) for found in functions])[0]
            functions.remove(function)
            kind = numbers.choice(sorted({mutant["kind"] for mutant in function}))
            drawn.append(numbers.choice([mutant for mutant in function if mutant["kind"] == kind]))
    return drawn


def mutated(content: bytes, mutant: Record) -> bytes:
    """The file with the mutant in it."""
    start = sum(map(len, content.splitlines(keepends=True)[: mutant["line"] - 1])) + mutant["column"]
    before = mutant["before"].encode()
    if not content.startswith(before, start):
        raise SystemExit(f"{mutant['file']}:{mutant['line']} is not as drawn: --source names the commit it is from")
    return content[:start] + mutant["after"].encode() + content[start + len(before) :]


@contextmanager
def _planted(tree: Path, mutant: Record | None) -> Iterator[None]:
    """The mutant in its file. What Python compiled of the file goes: its stamp may be of the same second."""
    path = tree / (mutant["file"] if mutant else "mutants.py")
    content, compiled = path.read_bytes(), Path(importlib.util.cache_from_source(str(path)))
    path.write_bytes(mutated(content, mutant) if mutant else content)
    compiled.unlink(missing_ok=True)
    try:
        yield
    finally:
        path.write_bytes(content)
        compiled.unlink(missing_ok=True)


def _copy(tree: Path, source: str, tests: Path) -> None:
    """A clone of the source with the tests of another checkout, and this module as a plugin."""
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, tree], check=True)
    commit = subprocess.check_output(["git", "-C", ROOT, "rev-parse", source], text=True).strip()
    subprocess.run(["git", "-C", tree, "-c", "advice.detachedHead=false", "checkout", "--quiet", commit], check=True)
    shutil.rmtree(tree / "tests")
    shutil.copytree(tests / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(__file__, tree / "mutants.py")
    (tree / ".venv").symlink_to(sys.prefix)


def _read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def _append(path: str | Path, record: Record) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def _pytest(tree: Path, noted: Path, only: dict[str, float], *arguments: str) -> dict[str, str]:
    """How each test ended. `only` holds the tests, best file first, and their seconds; if it is empty, all are run."""
    known, wanted = len(_read(noted)), noted.with_name("only.json")
    wanted.write_text(json.dumps(only))
    files = dict.fromkeys(test.partition("::")[0] for test in only)
    command = [sys.executable, "-m", "pytest", "-p", "mutants", "-q", "-m", "not slow", *arguments, *files]
    own = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "MUTANTS_NOTED": str(noted), "MUTANTS_ONLY": str(wanted)}
    with open(noted.with_suffix(".log"), "w", encoding="utf-8") as log:
        pipes: Record = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process = subprocess.Popen(command, cwd=tree, env={**os.environ, **own}, start_new_session=True, **pipes)
        try:
            process.wait(1800 if only else None)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not only and process.returncode not in (0, 1, 5):
        raise SystemExit(f"pytest was interrupted ({process.returncode}): start the command again, and it goes on")
    return {record["test"]: record["ended"] for record in _read(noted)[known:]}


def _left_out(into: Path) -> list[str]:
    last = {record["test"]: record["ended"] for record in _read(into / "tests.jsonl")}
    return sorted(test for test, ended in last.items() if ended not in ("passed", "skipped"))


def cover(mutants: list[Record], source: str, tests: Path, into: Path, workers: int) -> None:
    """Note in `hits.jsonl` which test runs which place, and in `tests.jsonl` how each test ended."""
    tree = into / "instrumented"
    if not tree.exists():
        _copy(tree, source, tests)
        _call(tree, mutants)
    _pytest(tree, into / "tests.jsonl", {}, "-n", str(workers))
    if failed := _left_out(into):
        print(len(failed), "failed once:", *failed, sep="\n  ", flush=True)
        _pytest(tree, into / "tests.jsonl", dict.fromkeys(failed, 60.0))
        print("left out, as they failed again:", *_left_out(into), sep="\n  ")


def _call(tree: Path, mutants: list[Record]) -> None:
    """Put a call before the statement of each mutant."""
    for file in {mutant["file"] for mutant in mutants}:
        lines = (tree / file).read_text("utf-8").splitlines(keepends=True)
        here = [(mutant["statement"], number) for number, mutant in enumerate(mutants) if mutant["file"] == file]
        for line, number in sorted(here, reverse=True):
            indent = lines[line - 1][: -len(lines[line - 1].lstrip())]
            lines.insert(line - 1, f'{indent}__import__("mutants_hit").hit({number})\n')
        (tree / file).write_text("".join(lines), "utf-8")
    (tree / "mutants_hit.py").write_text(_HIT.format(path=str(tree.parent / "hits.jsonl")), "utf-8")


def _chosen(mutant: Record, hits: set[str], seconds: dict[str, float], budget_s: float) -> dict[str, float]:
    """The tests for a mutant within the budget, best file first. `seconds` holds the tests that pass."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in seconds:
        files[test.partition("::")[0]].append(test)
    shared = {hit.partition("::")[0].removesuffix(" (setup)") for hit in hits if hit.endswith(" (setup)")}
    direct = {hit.removesuffix(" (setup)") for hit in hits} & seconds.keys()
    place = Path(mutant["file"]).with_suffix("").parts[1:]

    def rank(file: str) -> tuple[int, float]:
        parts = Path(file.replace("test_", "")).with_suffix("").parts[1:]
        apart = [one != other for one, other in zip(place, parts, strict=False)]
        return -[*apart, True].index(True), sum(seconds[test] for test in files[file] if test in direct)

    ranked = sorted((shared & files.keys()) | {test.partition("::")[0] for test in direct}, key=rank)
    wanted = [test for file in ranked for test in files[file] if test in direct]
    wanted += [test for file in ranked if file in shared for test in files[file] if test not in direct]
    chosen: dict[str, float] = {}
    for test in wanted:
        if sum(chosen.values()) + seconds[test] <= budget_s:
            chosen[test] = seconds[test]
    return {test: chosen[test] for file in ranked for test in files[file] if test in chosen}


def _failure(tree: Path, mutant: Record | None, tests: dict[str, float]) -> str | None:
    """The first of these tests that fails, hangs or cannot be collected."""
    noted = tree.parent / "noted.jsonl"
    noted.unlink(missing_ok=True)
    with _planted(tree, mutant):
        ended = _pytest(tree, noted, tests, "-x")
    bad = [test for test, end in ended.items() if end not in ("passed", "skipped")]
    return bad[0] if bad else None if ended else next(iter(tests))


def run(mutants: list[Record], source: str, tests: Path, into: Path, budget_s: float) -> None:
    """Judge each mutant that `results.jsonl` does not have yet."""
    tree, usable = into / "plain", dict[str, float]()
    _copy(tree, source, tests)
    for record in _read(into / "tests.jsonl"):
        usable.pop(record["test"], None)
        if record["ended"] == "passed":
            usable[record["test"]] = record["seconds"]
    hits: dict[int, set[str]] = defaultdict(set)
    for record in _read(into / "hits.jsonl"):
        hits[record["mutant"]].add(record["test"])
    done = {record["mutant"] for record in _read(into / "results.jsonl")}
    for number, mutant in enumerate(mutants):
        if number in done:
            continue
        shutil.rmtree(tree / ".hypothesis", ignore_errors=True)
        left = _chosen(mutant, hits[number], usable, budget_s)
        result: Record = {"mutant": number, "outcome": "survived" if left else "not covered", "tests": len(left)}
        while left and (failed := _failure(tree, mutant, left)):
            alone = {failed: left[failed]}
            if not _failure(tree, None, alone) and _failure(tree, mutant, alone):
                result |= {"outcome": "caught", "by": failed}
                break
            names = list(left)
            left = {test: left[test] for test in names[names.index(failed) + 1 :]}
        _append(into / "results.jsonl", result)
        print(mutant["file"], mutant["line"], json.dumps(result), flush=True)


def table(mutants: list[Record], into: Path) -> str:
    """What became of the mutants by room, and those that survived."""
    outcomes = {record["mutant"]: record["outcome"] for record in _read(into / "results.jsonl")}
    kinds = ("caught", "survived", "not covered", "not run")
    rows: dict[str, Counter[str]] = {room: Counter() for room in (*ROOMS, "all")}
    for number, mutant in enumerate(mutants):
        for room in (mutant["file"].split("/")[1], "all"):
            rows[room][outcomes.get(number, "not run")] += 1
    said = ["| room | mutants | " + " | ".join(kinds) + " | share caught |", "|---|" + "---|" * (len(kinds) + 2)]
    for room, row in rows.items():
        share = row["caught"] / max(1, row.total() - row["not run"])
        said.append(f"| {room} | {row.total()} | {' | '.join(str(row[kind]) for kind in kinds)} | {share:.0%} |")
    for kind in ("survived", "not covered"):
        said += ["", f"{kind}:"]
        for number in sorted(number for number, outcome in outcomes.items() if outcome == kind):
            mutant = mutants[number]
            before, after = (" ".join(mutant[name].split()) for name in ("before", "after"))
            said.append(f"{number} {mutant['file']}:{mutant['line']} {mutant['kind']}: {before} -> {after}")
    left_out = _left_out(into)
    return "\n".join([*said, "", f"{len(left_out)} tests were left out, as they fail without a mutant:", *left_out])


_outcomes: dict[str, str] = {}


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What the import of a test file runs counts for all its tests."""
    os.environ["MUTANTS_TEST"] = collector.nodeid.partition("::")[0] + " (setup)"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only the wanted tests, the best file first; where all are wanted, those that have not ended yet."""
    if only := json.loads(Path(os.environ["MUTANTS_ONLY"]).read_text()):
        files = list(dict.fromkeys(test.partition("::")[0] for test in only))
        items[:] = [item for item in items if item.nodeid in only]
        items.sort(key=lambda item: files.index(item.nodeid.partition("::")[0]))
    else:
        ended = {record["test"] for record in _read(Path(os.environ["MUTANTS_NOTED"])) if record["ended"] != "hung"}
        items[:] = [item for item in items if item.nodeid not in ended]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """From here on a place counts for all tests of the file."""
    os.environ["MUTANTS_TEST"] = item.nodeid + " (setup)"


def pytest_runtest_call(item: pytest.Item) -> None:
    """From here on a place counts for this test alone."""
    os.environ["MUTANTS_TEST"] = item.nodeid


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what did not pass in any phase."""
    if report.outcome != "passed":
        _outcomes[report.nodeid] = "failed" if "failed" in (report.outcome, _outcomes.get(report.nodeid)) else "skipped"


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the test before and after it ran: one without an end hung, or took the process with it."""
    noted, only = os.environ["MUTANTS_NOTED"], json.loads(Path(os.environ["MUTANTS_ONLY"]).read_text())
    _append(noted, {"test": item.nodeid, "ended": "hung"})
    if only:
        faulthandler.dump_traceback_later(60 + 20 * only[item.nodeid], exit=True, file=sys.__stderr__ or sys.stderr)
    began = _processor_s()
    ended = yield
    faulthandler.cancel_dump_traceback_later()
    seconds = round(_processor_s() - began, 3)
    _append(noted, {"test": item.nodeid, "ended": _outcomes.get(item.nodeid, "passed"), "seconds": seconds})
    return ended


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["draw", "cover", "run", "table"])
    parser.add_argument("--mutants", type=Path, required=True, help="the file with the list of mutants")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--also", type=Path, help="draw: another checkout, whose functions must read the same")
    parser.add_argument("--source", default="HEAD", help="the commit whose source is measured")
    parser.add_argument("--tests", type=Path, default=ROOT, help="the checkout whose tests are measured")
    parser.add_argument("--into", type=Path, help="the folder of this set of tests")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="run: of a processor, for the tests of a mutant")
    given = parser.parse_args()
    # A shell makes commands in the background deaf to it, and tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if given.what == "draw":
        places = _places(given.also) if given.also else None
        drawn = draw(given.seed, given.count, places)
        given.mutants.write_text(json.dumps(drawn, indent=1))
        if places is not None:
            given.mutants.with_suffix(".also.json").write_text(json.dumps(elsewhere(drawn, places), indent=1))
        print(len(drawn), "mutants:", *(f"{count} {kind}" for kind, count in Counter(m["kind"] for m in drawn).items()))
        return
    mutants, into = json.loads(given.mutants.read_text()), given.into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    if given.what == "cover":
        cover(mutants, given.source, given.tests.resolve(), into, given.workers)
    elif given.what == "run":
        run(mutants, given.source, given.tests.resolve(), into, given.seconds)
    else:
        print(table(mutants, into))


if __name__ == "__main__":
    main()
