"""URLs of databases as everybody may read them."""

from __future__ import annotations

import re

_BEFORE_HOST = re.compile(r"(://[^:/@\s]*:)[^@/\s]*@")
_IN_QUERY = re.compile(r"([?&]password=)[^&\s]*")


def without_password(text: str) -> str:
    """`text`, with *** for every password in a URL."""
    return _IN_QUERY.sub(r"\1***", _BEFORE_HOST.sub(r"\1***@", text))
