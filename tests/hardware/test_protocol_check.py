"""The C server, looked at by `serve --check`."""

from __future__ import annotations

import pytest
from board_server import built, running
from served import ipc_address

from reservoir_hw.testing.protocol.check import check, rules_for

# As in the other tests of the server: compiled once.
DEFINES = "-DVN_NODES=50 -DVN_INPUTS=2"


@pytest.mark.parametrize("scheme", ["ipc", "unix"])
def test_the_server_in_c_keeps_the_page(scheme: str) -> None:
    with ipc_address() as path, running(built(DEFINES=DEFINES), address=path.replace("ipc", scheme)) as (address, _):
        report = check(address, rules=[rule for rule in rules_for(address) if rule.group != "lease"])
    assert [(row.rule.title, row.detail) for row in report.broken] == []
    assert report.counts["held"] > 150


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_it_keeps_its_leases(scheme: str) -> None:
    with ipc_address() as path:
        listens = "tcp://127.0.0.1:0" if scheme == "tcp" else path.replace("ipc", scheme)
        with running(built(DEFINES=DEFINES), "-l", "1", address=listens) as (address, _):
            report = check(address, rules=[rule for rule in rules_for(address) if rule.group == "lease"])
    assert [(row.rule.title, row.detail) for row in report.broken] == []
