"""URLs of databases, and the command that may hold one, as everybody may read them."""

from __future__ import annotations

import re
import sys

# As SQLAlchemy reads it: a user may have an @ (anna@server), a password any character but that. An @ that was not
# encoded belongs to it up to the next slash.
_BEFORE_HOST = re.compile(r"(://[^:/]*:)[^@]*@(?:[^@/?]*@)*")
# A whole ODBC connection hides a password in ways of its own (PWD={a;b}, all of it encoded).
_IN_QUERY = re.compile(r"([?&](?:[^=&]*(?:password|passwd|pwd)[^=&]*|odbc_connect)=)[^&]*", re.IGNORECASE)


def without_password(text: str) -> str:
    """`text`, with *** for the password in its URL, and for an ODBC connection."""
    return _IN_QUERY.sub(r"\1***", _BEFORE_HOST.sub(r"\1***@", text))


def command() -> list[str]:
    """How this program was called."""
    return [without_password(argument) for argument in sys.argv]
