"""A client that is killed: it takes the device, drives it, and pings until then. `python -m ... ADDRESS CONTROL`."""

from __future__ import annotations

import sys
import time

from reservoir_hw.testing.protocol.device import Device

ATTACHED = "attached\n"


def main(address: str, control: str) -> None:
    """Never ends by itself."""
    with Device(address, control) as device:
        device.connect()
        with device.session("to be killed") as client:
            client.from_rest(device.u(seed=2))
            sys.stdout.write(ATTACHED)
            sys.stdout.flush()
            while client.ping()["valid"]:
                time.sleep(device.lease_s / 3)


if __name__ == "__main__":
    main(*sys.argv[1:])
