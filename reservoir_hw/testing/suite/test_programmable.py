"""Weights can be uploaded where that is declared."""

from __future__ import annotations

from reservoir_hw.core.errors import NotSupported
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import failed, not_offered, unverified


def test_upload(bench: Bench) -> None:
    """A device that is not programmable refuses weights, and says why."""
    if bench.spec.programmable:
        unverified("the suite has no weights that it may upload")
    try:
        bench.reservoir.upload({})
    except NotSupported as error:
        not_offered(str(error))
    failed("it is not declared programmable, but took an upload")
