"""The counter for the structure of a package finds what is planted, nothing in clean code, and no private use here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "structure.py"

PLANTED = {
    "__init__.py": "",
    "shapes.py": "class Shape:\n    _size = 1\n\n\nclass Round(Shape):\n    pass\n\n\nBOTH = (Shape, Round)\n",
    "a/__init__.py": "",
    "a/_inner.py": "import typing\n\nif typing.TYPE_CHECKING:\n    from shop.b.use import area\n\nDEPTH = 1\n",
    "b/__init__.py": "",
    "b/use.py": '''"""A docstring."""
from shop.a._inner import DEPTH
from .. import shapes
from ..shapes import BOTH


def area(x):
    """One more."""
    # a comment
    if not isinstance(x, shapes.Round | int):
        raise ValueError(
            "not round"
        )
    try:
        return x._width
    except AttributeError:
        return DEPTH


def kind(x):
    match x:
        case shapes.Shape():
            return isinstance(x, BOTH)
    return type(x) is int or x.kind == "round" or isinstance(x, str)
''',
}


def counted(folder: Path, files: dict[str, str], *options: str) -> str:
    root = folder / "shop"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    command = [sys.executable, str(TOOL), "--root", str(root), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_what_is_planted_is_counted(tmp_path: Path) -> None:
    report: dict[str, Any] = json.loads(counted(tmp_path, PLANTED, "--json"))
    total = report["total"]
    assert (report["rooms_at_top"], report["loose_modules"], report["folders"]) == (3, 1, 3)
    assert report["arrow_list"] == ["shop.a -> shop.b", "shop.b -> shop", "shop.b -> shop.a"]
    assert report["cycles"] == [["shop.a", "shop.b"]]
    assert report["cycles_without_types"] == []
    assert report["arrows_for_types_only"] == 1
    assert report["by_room"]["shop.b"]["code"] == 17
    assert total["guard_kinds"] == {"raise": 1, "except": 1, "if": 1}
    assert total["guard_lines"] == 5
    assert total["dispatch_kinds"] == {"instance": 2, "type": 1, "match": 1, "kind": 1, "dtype kind": 0, "name": 0}
    assert total["private_kinds"] == {"import": 1, "across": 1, "near": 0, "foreign": 0}


@pytest.mark.slow
def test_private_files_and_names_are_used_in_their_own_folder_only() -> None:
    """The rule of docs/architecture.md. Three names of torch have no public form."""
    of_torch = ("module._forward_hooks or module._forward_pre_hooks", "torch.ops.mkldnn._is_mkldnn_bf16_supported()")
    command = [sys.executable, str(TOOL), "--root", str(TOOL.parents[1] / "reservoir_hw"), "--private"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [line for line in found if not any(name in line for name in of_torch)] == []
