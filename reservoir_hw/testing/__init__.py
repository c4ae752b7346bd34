"""Tests with hardware in the loop: the conformance suite, and a plugin for pytest."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.testing.conformance import conform as conform
    from reservoir_hw.testing.report import Report as Report
    from reservoir_hw.testing.task import task_metrics as task_metrics

__getattr__, __dir__ = lazy_names(__name__)
