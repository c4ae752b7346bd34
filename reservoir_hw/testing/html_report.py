"""A page about the tests on devices: outcome, attempts, first error, device (`--reservoir-html`)."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from reservoir_hw.core.files import replace_file


@dataclass
class _Test:
    name: str
    outcome: str = "passed"
    properties: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    reason: str = ""


def register(config: pytest.Config) -> None:
    """Write the page at the end of this session.

    Raises `pytest.UsageError` where jinja2 is not installed, or no file can be written there.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise pytest.UsageError("--reservoir-html needs jinja2: pip install 'reservoir-hw[report]'") from None
    path = config.invocation_params.dir / config.option.reservoir_html
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise pytest.UsageError(
            f"--reservoir-html {config.option.reservoir_html}: no file can be written there: {error.strerror}"
        ) from None
    config.pluginmanager.register(_HtmlReport(path))


class _HtmlReport:
    """Collects what JUnit is told, too. With `pytest -n` the reports of the workers come by here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, _Test] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The report of one phase of a test; those of earlier attempts come first."""
        properties = dict(report.user_properties)
        if "attempts" not in properties:
            return
        test = self._tests.setdefault(report.nodeid, _Test(report.nodeid))
        if report.when == "setup":
            test.outcome, test.reason = "passed", ""
        test.properties = properties
        test.seconds += report.duration
        if "outcome" in properties and not report.failed:
            # A statement of the conformance suite says more than pytest can.
            test.outcome = str(properties["outcome"])
        elif report.failed:
            test.outcome = "failed"
        elif report.skipped:
            test.outcome = "expected failure" if hasattr(report, "wasxfail") else "skipped"
            test.reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""

    def pytest_sessionfinish(self) -> None:
        """Write the page, also where the session was interrupted."""
        from jinja2 import Environment

        template = files("reservoir_hw.testing").joinpath("tests.html.j2").read_text(encoding="utf-8")
        tests = list(self._tests.values())
        counts = Counter(test.outcome for test in tests)
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "no tests"
        page = Environment(autoescape=True).from_string(template).render(tests=tests, summary=summary)
        replace_file(self._path, page)
