"""URLs of databases as everybody may read them."""

from __future__ import annotations

import re

# As SQLAlchemy reads it: any character but @. One that was not encoded belongs to it up to the next slash.
_BEFORE_HOST = re.compile(r"(://[^:/@]*:)[^@]*@(?:[^@/?]*@)*")
_IN_QUERY = re.compile(r"([?&](?:ssl)?(?:password|passwd|pwd)=)[^&]*", re.IGNORECASE)


def without_password(text: str) -> str:
    """`text`, with *** for the password in its URL."""
    return _IN_QUERY.sub(r"\1***", _BEFORE_HOST.sub(r"\1***@", text))
