"""For all tests."""

from __future__ import annotations

import os

# pytest-xdist sets it for its workers; tables that are not for a terminal are as wide as they need to be.
os.environ.pop("COLUMNS", None)
