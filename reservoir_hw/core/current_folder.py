"""Where a lab's own modules are looked for first."""

from __future__ import annotations

import os
import sys


def look_in_current_folder() -> None:
    """Let modules named in a configuration ("package.module:function") be found in the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
