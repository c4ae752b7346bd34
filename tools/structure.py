"""Count the structure of a Python package: rooms, arrows, cycles, code lines, guards, dispatches, private use.

Run as `python tools/structure.py [--root FOLDER] [--json | --dispatches | --private] [--rooms]`. What is counted:

- A room is a sub-package or a loose module directly below the root; a folder is any directory that holds modules, the
  root among them. A package's `__init__` lies in the package's own folder.
- Code lines hold a token that is neither a comment nor a bare string statement (a docstring); blank lines never count.
- An arrow is a pair of folders A -> B, A != B, where a module in A imports from a module in B, anywhere in its code.
  `from a import b` imports `a.b` where that is a module, else `a`. Imports by `import_module` are not seen.
- A cyclic group is a strongly connected set of two or more direct children of one package. Imports under
  `TYPE_CHECKING` belong to arrows and cycles (as for import-linter) and are counted apart too.
- Guards are `raise` statements, `except` handlers, and `if` or `elif` whose body ends with a `raise`. Guard lines are
  the distinct code lines of those statements: the whole `raise`, the `except` line, the test of the `if`.
- Dispatches: `instance` is isinstance/issubclass over a class of the package (also through module-level names for
  tuples and unions); `type` is type(x) with is, ==, in; `match` is a match statement with a class pattern of the
  package; `kind` is .kind beside text, `dtype kind` the same with numpy's single letters; `name` is an attribute
  __module__, __qualname__ or __name__ in a comparison, startswith or endswith.
- Private use: `import` is an import through an underscored module or of an underscored name from outside the folder it
  lies in; the rest are attributes x._name, x other than self, cls, super(), type(self), where the module itself does
  not define _name: `near` if a module of the same folder or of one above does, `foreign` if x is imported from
  elsewhere than the package, else `across`.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Find = dict[str, Any]
_CHECKING = ("TYPE_CHECKING",)
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_COMPARED = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_NAMED = {"__module__", "__qualname__", "__name__"}
_NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make", "_field_defaults"}
_DISPATCHES = ("instance", "type", "match", "kind", "dtype kind", "name")
_PRIVATE = ("import", "across", "near", "foreign")


@dataclass
class Module:
    """One module: its text, what it imports, what it defines, what was found in it."""

    name: str
    folder: str
    path: Path
    text: str
    tree: ast.Module
    code: set[int]
    classes: set[str] = field(default_factory=set)
    aliases: dict[str, ast.expr] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    imported: set[tuple[str, bool]] = field(default_factory=set)
    private_names: set[str] = field(default_factory=set)
    guards: Counter[str] = field(default_factory=Counter)
    guard_lines: set[int] = field(default_factory=set)
    dispatches: list[Find] = field(default_factory=list)
    private: list[Find] = field(default_factory=list)

    def found(self, line: int, kind: str) -> Find:
        """One place in the code."""
        return {"place": str(self.path), "line": line, "kind": kind, "text": self.text.splitlines()[line - 1].strip()}

    def guard(self, kind: str, first: int, last: int | None) -> None:
        """Count one guard and its lines."""
        self.guards[kind] += 1
        self.guard_lines |= set(range(first, (last or first) + 1)) & self.code


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """The numbers of the lines that hold code."""
    bare: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            bare |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT and not (token.type == tokenize.STRING and token.start[0] in bare):
            lines |= set(range(token.start[0], token.end[0] + 1))
    blank = {number for number, line in enumerate(io.StringIO(text), 1) if not line.strip()}
    return lines - blank


def walk(node: ast.AST, typing_only: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it lies under `if TYPE_CHECKING`."""
    yield node, typing_only
    for name, value in ast.iter_fields(node):
        below = typing_only or (isinstance(node, ast.If) and name == "body" and dotted(node.test)[-1:] == _CHECKING)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from walk(child, below)


def dotted(node: ast.AST | None) -> tuple[str, ...]:
    """The parts of a dotted name; empty for any other expression."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (head := dotted(node.value)):
        return (*head, node.attr)
    return ()


def within(name: str, folder: str) -> bool:
    """Whether a dotted name is the folder or lies below it."""
    return name == folder or name.startswith(folder + ".")


def hidden(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own(node: ast.AST) -> bool:
    """Whether an expression is self, cls, super() or type(self)."""
    if isinstance(node, ast.Call) and dotted(node.func) == ("type",) and node.args:
        return own(node.args[0])
    return dotted(node) in {("self",), ("cls",)} or (isinstance(node, ast.Call) and dotted(node.func) == ("super",))


class Package:
    """All modules below one folder, with what was counted in them."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve().name
        self.modules: dict[str, Module] = {}
        for path in sorted(root.rglob("*.py")):
            parts = (self.root, *path.relative_to(root).with_suffix("").parts)
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text, str(path))
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            module = Module(name, ".".join(parts[:-1]), path, text, tree, code_lines(text, tree))
            self.modules[module.name] = module
        self.folders = sorted({module.folder for module in self.modules.values()})
        for module in self.modules.values():
            self._define(module)
        self.defined: dict[str, set[str]] = defaultdict(set)
        for module in self.modules.values():
            self.defined[module.folder] |= module.private_names
        for module in self.modules.values():
            self._look(module)

    def _define(self, module: Module) -> None:
        for statement in module.tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                module.aliases |= {target.id: statement.value for target in targets if isinstance(target, ast.Name)}
        for node, typing_only in walk(module.tree):
            if isinstance(node, ast.ClassDef):
                module.classes.add(node.name)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                module.private_names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                module.private_names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and own(node.value):
                module.private_names.add(node.attr)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    module.names[alias.asname or first] = alias.name if alias.asname else first
                    self._import(module, alias.name, node.lineno, typing_only)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    above = module.folder.split(".")
                    base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [base])])
                for alias in node.names:
                    module.names[alias.asname or alias.name] = f"{base}.{alias.name}"
                    self._import(module, f"{base}.{alias.name}", node.lineno, typing_only)

    def _import(self, module: Module, target: str, line: int, typing_only: bool) -> None:
        if not within(target, self.root):
            return
        if home := self.home(target):
            module.imported.add((home, typing_only))
        parts = target.split(".")
        at = next((at for at, part in enumerate(parts) if hidden(part)), 0)
        folder = ".".join(parts[:at])
        if folder in self.modules:
            folder = self.modules[folder].folder
        if at and not within(module.folder, folder):
            module.private += [find for find in [module.found(line, "import")] if find not in module.private]

    def home(self, target: str) -> str:
        """The module that a dotted name is, or lies in; empty where there is none."""
        while target and target not in self.modules:
            target = target.rpartition(".")[0]
        return target

    def is_own(self, target: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a dotted name leads to a class of the package."""
        home = self.home(target)
        if not home or home == target or target in seen:
            return False
        module, (head, *rest) = self.modules[home], target[len(home) + 1 :].split(".")
        seen |= {target}
        if head in module.classes:
            return True
        if head in module.names:
            return self.is_own(".".join([module.names[head], *rest]), seen)
        return head in module.aliases and self.holds_own(module, module.aliases[head], seen)

    def holds_own(self, module: Module, node: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Whether an expression for classes (a name, a tuple, a union, a call) holds one of the package."""
        names = [".".join((module.name, *name)) for one in ast.walk(node) if (name := dotted(one))]
        return any(self.is_own(name, seen) for name in names)

    def _look(self, module: Module) -> None:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Raise):
                module.guard("raise", node.lineno, node.end_lineno)
            elif isinstance(node, ast.ExceptHandler):
                module.guard("except", node.lineno, node.type.end_lineno if node.type else None)
            elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
                module.guard("if", node.lineno, node.test.end_lineno)
            if kind := self._dispatch(module, node):
                module.dispatches.append(module.found(getattr(node, "lineno", 0), kind))
            if isinstance(node, ast.Attribute) and hidden(node.attr) and node.attr not in _NAMED_TUPLE:
                self._attribute(module, node)
        module.dispatches.sort(key=lambda find: find["line"])
        module.private.sort(key=lambda find: find["line"])

    def _dispatch(self, module: Module, node: ast.AST) -> str:
        if isinstance(node, ast.Call):
            if dotted(node.func) in {("isinstance",), ("issubclass",)} and len(node.args) == 2:
                return "instance" if self.holds_own(module, node.args[1]) else ""
            if isinstance(node.func, ast.Attribute) and node.func.attr in {"startswith", "endswith"}:
                of = node.func.value
                return "name" if isinstance(of, ast.Attribute) and of.attr in _NAMED else ""
        if isinstance(node, ast.Match):
            patterns = [one for case in node.cases for one in ast.walk(case.pattern) if isinstance(one, ast.MatchClass)]
            return "match" if any(self.holds_own(module, one.cls) for one in patterns) else ""
        if isinstance(node, ast.Compare) and all(isinstance(one, _COMPARED) for one in node.ops):
            sides = [node.left, *node.comparators]
            calls = [one for one in sides if isinstance(one, ast.Call) and len(one.args) == 1]
            if any(dotted(one.func) == ("type",) for one in calls):
                return "type"
            attributes = {one.attr for one in sides if isinstance(one, ast.Attribute)}
            if attributes & _NAMED:
                return "name"
            held = [one for side in sides for one in (getattr(side, "elts", None) or [side])]
            texts = [one.value for one in held if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if "kind" in attributes and texts:
                return "dtype kind" if all(set(text) <= set("biufcmMOSUV") for text in texts) else "kind"
        return ""

    def _attribute(self, module: Module, node: ast.Attribute) -> None:
        if own(node.value) or node.attr in module.private_names:
            return
        head = module.names.get((dotted(node.value) or ("",))[0])
        near = any(node.attr in names for folder, names in self.defined.items() if within(module.folder, folder))
        kind = "foreign" if head and not within(head, self.root) else "near" if near else "across"
        module.private.append(module.found(node.lineno, kind))

    def room(self, module: Module) -> str:
        """The room at the top that a module lies in; the root's own `__init__` lies in the root."""
        return ".".join(module.name.split(".")[:2])

    def edges(self, typed: bool = True) -> set[tuple[str, str]]:
        """Pairs of modules, importing and imported; on request without what only type checkers import."""
        pairs = {(one.name, to) for one in self.modules.values() for to, only in one.imported if typed or not only}
        return {(a, b) for a, b in pairs if a != b}

    def arrows(self, typed: bool = True) -> set[tuple[str, str]]:
        """Pairs of folders, importing and imported."""
        pairs = {(self.modules[a].folder, self.modules[b].folder) for a, b in self.edges(typed)}
        return {(a, b) for a, b in pairs if a != b}

    def cycles(self, typed: bool = True) -> list[list[str]]:
        """The cyclic groups among the direct children of every package."""
        graph: dict[str, set[str]] = defaultdict(set)
        for a, b in self.edges(typed):
            left, right = a.split("."), b.split(".")
            same = next((at for at, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), 0)
            if same:
                graph[".".join(left[: same + 1])].add(".".join(right[: same + 1]))
        reach: dict[str, set[str]] = {}
        for start in graph:
            reach[start], todo = set(), [start]
            while todo:
                new = graph.get(todo.pop(), set()) - reach[start]
                reach[start] |= new
                todo.extend(new)
        groups = {tuple(sorted(to for to in reach[one] if one in reach.get(to, ()))) for one in reach}
        return sorted(list(group) for group in groups if len(group) > 1)

    def count(self, modules: Iterable[Module]) -> dict[str, Any]:
        """The numbers of some modules together."""
        modules = list(modules)
        code = sum(len(one.code) for one in modules)
        guards = sum((one.guards for one in modules), Counter[str]())
        guard_lines = sum(len(one.guard_lines) for one in modules)
        dispatches = Counter(find["kind"] for one in modules for find in one.dispatches)
        private = Counter(find["kind"] for one in modules for find in one.private)
        return {
            "modules": len(modules),
            "lines": sum(len(one.text.splitlines()) for one in modules),
            "code": code,
            "guards": guards.total(),
            "guard_kinds": {kind: guards[kind] for kind in ("raise", "except", "if")},
            "simple_guard_share": round(guards.total() / max(code, 1), 4),
            "guard_lines": guard_lines,
            "guard_share": round(guard_lines / max(code, 1), 4),
            "dispatches": dispatches.total(),
            "dispatch_kinds": {kind: dispatches[kind] for kind in _DISPATCHES},
            "private": private.total(),
            "private_kinds": {kind: private[kind] for kind in _PRIVATE},
        }

    def report(self) -> dict[str, Any]:
        """Every number and every list."""
        every = list(self.modules.values())
        arrows = self.arrows()
        between = {(self.room(self.modules[a]), self.room(self.modules[b])) for a, b in self.edges()}
        rooms = sorted({self.room(one) for one in every})
        loose = [one for one in every if one.folder == self.root and one.name != self.root]
        folders = {name: self.count(one for one in every if one.folder == name) for name in self.folders}
        for name, numbers in folders.items():
            numbers["arrows_out"] = sum(a == name for a, _ in arrows)
            numbers["arrows_in"] = sum(b == name for _, b in arrows)
        longest = sorted(every, key=lambda one: (-len(one.code), one.name))[:10]
        return {
            "root": self.root,
            "total": self.count(every),
            "rooms_at_top": len(set(rooms) - {self.root}),
            "loose_modules": len(loose),
            "folders": len(self.folders),
            "module_imports": len(self.edges()),
            "module_imports_for_types_only": len(self.edges()) - len(self.edges(typed=False)),
            "arrows": len(arrows),
            "arrows_for_types_only": len(arrows - self.arrows(typed=False)),
            "arrows_between_rooms": sum(a != b for a, b in between),
            "cycles": self.cycles(),
            "cycles_without_types": self.cycles(typed=False),
            "by_room": {name: self.count(one for one in every if self.room(one) == name) for name in rooms},
            "by_folder": folders,
            "arrow_list": sorted(f"{a} -> {b}" for a, b in arrows),
            "longest": [{"module": one.name, "code": len(one.code)} for one in longest],
            "dispatch_list": [find for one in every for find in one.dispatches],
            "private_list": [find for one in every for find in one.private],
        }


def table(title: str, rows: dict[str, dict[str, Any]], extra: tuple[str, ...] = ()) -> str:
    """Rows of numbers as plain text."""
    columns = ("modules", "lines", "code", "guards", "guard_lines", "guard_share", "dispatches", "private", *extra)
    wide = max(len(name) for name in (title, *rows)) + 2
    lines = [
        title.ljust(wide)
        + "".join(name.replace("guard_lines", "of lines").replace("guard_share", "share").rjust(12) for name in columns)
    ]
    for name, row in rows.items():
        cells = [f"{row[key]:.1%}" if key.endswith("share") else str(row[key]) for key in columns]
        lines.append(name.ljust(wide) + "".join(cell.rjust(12) for cell in cells))
    return "\n".join(lines)


def summary(report: dict[str, Any]) -> str:
    """The numbers of the whole package in a few lines."""
    total = report["total"]

    def kinds(key: str) -> str:
        return ", ".join(f"{kind} {number}" for kind, number in total[key].items())

    types = report["module_imports_for_types_only"], report["arrows_for_types_only"]
    lines = [
        f"{report['root']}: {total['modules']} modules, {total['lines']} lines, {total['code']} code lines",
        f"rooms at the top: {report['rooms_at_top']}, of them loose modules: {report['loose_modules']}",
        f"folders with modules: {report['folders']}",
        f"module imports: {report['module_imports']}, of them for type checkers only: {types[0]}",
        f"arrows between folders: {report['arrows']}, of them for type checkers only: {types[1]}",
        f"arrows between rooms: {report['arrows_between_rooms']}",
        f"cyclic groups among siblings: {len(report['cycles'])}"
        f" (without imports for type checkers only: {len(report['cycles_without_types'])})",
        *("  " + ", ".join(group) for group in report["cycles"]),
        f"guards: {total['guards']} ({kinds('guard_kinds')}), {total['simple_guard_share']:.1%} of code lines",
        f"guard lines: {total['guard_lines']}, {total['guard_share']:.1%} of code lines",
        f"dispatches: {total['dispatches']} ({kinds('dispatch_kinds')})",
        f"private use: {total['private']} ({kinds('private_kinds')})",
        "longest modules by code lines: " + ", ".join(f"{one['module']} {one['code']}" for one in report["longest"]),
    ]
    return "\n".join(lines)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description="Count the structure of a Python package.")
    parser.add_argument("--root", type=Path, default=Path("reservoir_hw"), help="the folder of the package")
    parser.add_argument("--rooms", action="store_true", help="also a table by every folder")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--json", action="store_true", help="everything as JSON")
    only.add_argument("--dispatches", action="store_true", help="list the dispatches by file and line")
    only.add_argument("--private", action="store_true", help="list the private use by file and line")
    arguments = parser.parse_args()
    report = Package(arguments.root).report()
    if arguments.json:
        print(json.dumps(report, indent=1))
    elif arguments.dispatches or arguments.private:
        for find in report["dispatch_list" if arguments.dispatches else "private_list"]:
            print(f"{find['place']}:{find['line']}: {find['kind']}: {find['text']}")
    else:
        print(table("room", report["by_room"] | {"total": report["total"]}))
        if arguments.rooms:
            print("\n" + table("folder (own modules)", report["by_folder"], ("arrows_out", "arrows_in")))
        print("\n" + summary(report))


if __name__ == "__main__":
    main()
