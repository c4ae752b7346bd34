"""Functions of a lab that a configuration names: "package.module:function"."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from reservoir_hw.core.current_folder import look_in_current_folder
from reservoir_hw.core.errors import ConfigurationError

FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
"""What names a function."""


def import_function(target: str, key: str) -> Callable[..., Any]:
    """The function `target`, looked for in the current folder first.

    Raises `ConfigurationError` that names `key`, the place of `target` in the configuration.
    """
    module, _, name = target.partition(":")
    look_in_current_folder()
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        # Whatever the module does on import: a syntax error, a division by zero, a missing driver.
        raise ConfigurationError(
            f"{key}: {target!r} cannot be imported: {type(error).__name__}: {error} "
            "(looked in the current folder and in sys.path)"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"{key}: {target!r} is not a function")
    return found
