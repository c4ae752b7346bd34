"""How something ended before its end, in the words of the run folder."""

from __future__ import annotations


def ending(error: BaseException) -> tuple[str, str]:
    """Status, "interrupted" or "failed", and the problem."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "interrupted by Ctrl-C"
    # What SIGTERM becomes where it is waited for.
    if isinstance(error, SystemExit):
        return "interrupted", "terminated"
    return "failed", f"{type(error).__name__}: {error}"
