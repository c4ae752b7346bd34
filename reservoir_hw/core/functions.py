"""Functions and classes of a lab that a configuration names: "package.module:function".

A program can also give the function or the class itself. Its name then ends with a digest of its source, so that a
configuration is text in any case, and tells one version of a function from another.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

from pydantic import AfterValidator

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.words import did_you_mean


def look_in_current_folder() -> None:
    """Let modules named in a configuration ("package.module:function") be found in the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_<][\w.<>]*(@[0-9a-f]{12}(\.\d+)?)?$"
"""What names a function."""


def _checked(name: str) -> str:
    if re.match(FUNCTION, name):
        return name
    module, dot, function = name.rpartition(".")
    hint = f"; did you mean {module}:{function}?" if dot and re.match(FUNCTION, f"{module}:{function}") else ""
    raise ValueError(f"a function is named module:function, for instance mylab.bench:measure{hint}")


FunctionName = Annotated[str, AfterValidator(_checked)]
"""A name of a function as a field of a configuration."""

_GIVEN: dict[str, Callable[..., Any]] = {}
# What a function carries along counts with its value; other objects have none that lasts.
_PLAIN = (bool, int, float, str, type(None))


def name_of(function: Callable[..., Any]) -> str:
    """A name for this function, by which `import_function` finds it in this process.

    It is "module:function@digest". The digest is of the source, and of numbers and texts that the function carries
    along. Functions that carry along different objects get different names. A function that is defined again with the
    same source takes the name over.
    """
    inner, carried = _inside(function)
    module = getattr(inner, "__module__", None) or type(inner).__module__
    first = f"{module}:{_described(inner).__qualname__}@{_digest(function)}"
    name, number = first, 1
    while name in _GIVEN and not _same(_inside(_GIVEN[name])[1], carried):
        number += 1
        name = f"{first}.{number}"
    _GIVEN[name] = function
    return name


def import_function(target: str, key: str, what: str = "function") -> Callable[..., Any]:
    """The function `target`, or another thing that can be called (`what`), looked for in the current folder first.

    Raises `ConfigurationError` that names `key`, the place of `target` in the configuration.
    """
    if target in _GIVEN:
        return _GIVEN[target]
    path, _, digest = target.partition("@")
    module, _, name = path.partition(":")
    look_in_current_folder()
    try:
        found: Any = import_module(module)
    except Exception as error:
        if digest:
            raise _no_longer_given(target, key, what, "this process does not have it") from error
        # Whatever the module does on import: a syntax error, a division by zero, a missing driver.
        raise ConfigurationError(
            f"{key}: {target!r} cannot be imported: {type(error).__name__}: {error} "
            "(looked in the current folder and in sys.path)"
        ) from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        if digest:
            raise _no_longer_given(target, key, what, "this process does not have it") from error
        raise ConfigurationError(f"{key}: {module} has no {what} {name!r}{did_you_mean(name, dir(found))}") from error
    if not callable(found):
        raise ConfigurationError(f"{key}: {target!r} is not a {what}")
    if digest and digest != _digest(found):
        raise _no_longer_given(target, key, what, "its source is another one now")
    return found


def without_digest(target: str) -> str:
    """Module and name of a function."""
    return target.partition("@")[0]


def source_of(target: str, key: str, what: str = "function") -> str:
    """A digest of the source of a function or class, and of its bases in the same package, as they are now.

    What a program has given has its own in its name. Raises `ConfigurationError` as `import_function`.
    """
    if "@" in target:
        return target.partition("@")[2]
    found: Any = import_function(target, key, what)
    package = target.partition(":")[0].partition(".")[0]
    bases = [one for one in getattr(found, "__mro__", ())[1:] if one.__module__.partition(".")[0] == package]
    return hashlib.sha256(" ".join(map(_digest, [found, *bases])).encode()).hexdigest()[:12]


def _no_longer_given(target: str, key: str, what: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{key}: {without_digest(target)!r} was given by a Python program, and {why}; give the {what} again, or "
        "write it into a module and name it in the configuration"
    )


def _inside(function: Any) -> tuple[Any, list[Any]]:
    """The function itself, and what it carries: values of a closure, the object of a method, arguments of a partial."""
    if isinstance(function, functools.partial):
        inner, carried = _inside(function.func)
        return inner, [*carried, *function.args, *function.keywords.values()]
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    own = getattr(function, "__self__", None)
    return function, cells if own is None or inspect.ismodule(own) else [*cells, own]


def _described(function: Any) -> Any:
    """What has a name and a source: the function, or the class of an object that can be called."""
    return function if hasattr(function, "__qualname__") else type(function)


def _digest(function: Any) -> str:
    inner, carried = _inside(function)
    try:
        source = inspect.getsource(_described(inner))
    except (OSError, TypeError):
        # Typed into a prompt or a notebook, or compiled from C.
        described = _described(inner)
        parts = vars(described).items() if isinstance(described, type) else [("", inner)]
        found = [(name, _compiled(part)) for name, part in parts if hasattr(part, "__code__")]
        source = repr(found) if found else repr(described)
    values = [value if isinstance(value, _PLAIN) else type(value).__qualname__ for value in carried]
    return hashlib.sha256(repr((source, values)).encode()).hexdigest()[:12]


def _compiled(function: Any) -> tuple[Any, ...]:
    """What stands for the source of a function where it cannot be read."""
    code = function.__code__
    return code.co_code, code.co_names, [const for const in code.co_consts if isinstance(const, _PLAIN)]


def _same(carried: list[Any], others: list[Any]) -> bool:
    """Whether two functions with one digest carry the same objects. Plain values are in the digest."""
    pairs = zip(carried, others, strict=True)
    return all(one is other or isinstance(one, _PLAIN) for one, other in pairs)
