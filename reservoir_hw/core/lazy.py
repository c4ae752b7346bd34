"""Names of a package that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from reservoir_hw.core.errors import MissingExtra


def lazy_names(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package; `home` gives the module of each name, ".module" for one of the package's own.

    A name whose module needs torch raises `MissingExtra` where torch is not installed.
    """

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(home[name], package), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingExtra(f"{name} needs torch: pip install 'reservoir-hw[train]'") from error

    return find
