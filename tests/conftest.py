"""For all tests."""

from __future__ import annotations

import os

# pytest-xdist sets it for its workers. Tables then have the same width with and without workers.
os.environ.pop("COLUMNS", None)
