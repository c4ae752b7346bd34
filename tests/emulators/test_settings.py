"""Every setting that an instrument declares in one line is there, and takes what its query answers."""

import re

import pytest

from reservoir_hw.emulators.bench import VirtualBench
from reservoir_hw.emulators.keysight.digitizer import InfiniiVision
from reservoir_hw.emulators.keysight.generator import Keysight33512B
from reservoir_hw.emulators.physics.devices import FilmConfig
from reservoir_hw.emulators.red_pitaya import RedPitaya
from reservoir_hw.emulators.scpi.tree import Pair
from reservoir_hw.emulators.smu.source import FilmBench, SourceMeter
from reservoir_hw.emulators.tektronix.digitizer import Mso54
from reservoir_hw.emulators.tektronix.generator import Afg3152C

# The bandwidth is told in hertz and taken as a word.
TOLD_OTHERWISE = {"CH1:BANdwidth"}


def headers(instrument):
    for name in dir(instrument):
        if isinstance(declared := getattr(instrument, name), Pair):
            for one in declared.scpi_headers:
                if not one.is_query:
                    header = re.sub(r"\|[^\])]*|[\[\]()]", "", one.header)
                    yield re.sub(r"\{(?:\w+:)?(\d+)-\d+\}", r"\1", header)


@pytest.mark.parametrize("instrument", [Keysight33512B, InfiniiVision, Afg3152C, Mso54, RedPitaya, SourceMeter])
def test_setting_takes_its_answer(instrument):
    with VirtualBench() as bench:
        device = instrument(FilmBench(FilmConfig()) if instrument is SourceMeter else bench)
        # Of Tektronix, the others do not know it.
        device.execute(b"HEADer OFF")
        device.execute(b"*CLS")
        found = [*headers(instrument)]
        for header in found:
            answer = device.execute(f"{header}?".encode())
            if header not in TOLD_OTHERWISE:
                device.execute(header.encode() + b" " + answer)
            assert device.execute(f"{header}?".encode()) == answer
            assert device.execute(b"*ESR?") == b"0", header
        assert len(found) > 5
