"""Whether a torch module still computes what its export says: nobody replaced a method, or hooked into it."""

from __future__ import annotations

from typing import Any

from reservoir_hw.core.errors import ConfigurationError


def is_unchanged(module: Any, statement: str | None = None) -> bool:
    """Whether a torch module computes what its method `statement` says; without one, what its class computes."""
    return _change(module, type(module) if statement is None else _defining(module, statement)) is None


def refuse_changes(model: Any) -> None:
    """Raise `ConfigurationError` where a part of a torch module computes other things than its graphs would.

    Readouts and embeddings are not looked at: `Graph.emit` does that.
    """
    for name, part in model.named_modules():
        stating = _defining(part, "exported_methods")
        change = None if stating is None else _change(part, stating)
        if change is not None:
            raise ConfigurationError(f"{type(part).__name__} ({name or 'the model'}) {change}")


def _defining(part: Any, name: str) -> Any:
    """The class of a module that defines a name."""
    return next((kind for kind in type(part).__mro__ if name in vars(kind)), None)


def _change(module: Any, stating: Any) -> str | None:
    for method in getattr(stating, "exported_methods", ("forward",)):
        if method in vars(module):
            return f"had its {method} replaced, which no graph computes: undo it"
        if getattr(type(module), method) is not getattr(stating, method):
            return (
                f"has its own {method}, which the graphs of a {stating.__name__} would not compute: export a "
                f"{stating.__name__}, or its parts by export_module"
            )
    if module._forward_hooks or module._forward_pre_hooks:
        return "has a hook, which its graphs would not compute: remove it"
    return None
