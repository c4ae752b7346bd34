"""Backends are written against the public names of the contract, as those of other packages must be."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import reservoir_hw.backends
from reservoir_hw.core.reservoir import Reservoir

HOOKS = {"_run", "_open", "_close", "_reset", "_stream", "_snapshot", "_restore", "_transition", "_upload", "_settings"}
HOOKS |= {"_check_inputs", "_emergency_stop", "_set", "_get", "_begin_monitors", "_close_knobs"}


def private_names_of_the_contract() -> set[str]:
    tree = ast.parse(inspect.getsource(Reservoir))
    methods = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {name for name in methods | attributes if name.startswith("_") and not name.startswith("__")} - HOOKS


def test_no_backend_uses_a_private_name_of_the_contract() -> None:
    private = private_names_of_the_contract()
    assert {"_driving", "_spec", "_accept_spec"} <= private
    used = {
        f"{path.name}:{node.lineno} {node.attr}"
        for path in Path(reservoir_hw.backends.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in private
    }
    assert used == set()
