"""A small generator with two channels, as the tests of the emulators need it."""

import threading

import numpy as np

from reservoir_hw.emulators.scpi.instrument import ScpiDevice
from reservoir_hw.emulators.scpi.messages import (
    Block,
    Boolean,
    Integer,
    Keyword,
    ListOf,
    Number,
    Numbers,
    ScpiError,
    String,
    definite_block,
)
from reservoir_hw.emulators.scpi.tree import command, query

FREQUENCY = Number("HZ", low=1e-6, high=30e6, default=1e3)
LEVEL = Number(("V", "VPP"), low=1e-3, high=lambda device, channel: 20.0 if device.loads[channel] > 1e3 else 10.0)
LOAD = Number("OHM", low=1.0, high=10e3, infinity=True)
# Every 256th byte is a newline.
TRACE = np.arange(2_000_000).astype("u1")


class ToyGenerator(ScpiDevice):
    identity = "Toys,G1,42,1.0"

    def __init__(self):
        super().__init__()
        self.waveforms = {}
        self.idle = threading.Event()
        self.idle.set()
        self.waiting = threading.Event()
        self.triggers = 0
        self.reset()

    def reset(self):
        self.frequencies, self.levels, self.loads = {1: 1e3, 2: 1e3}, {1: 0.1, 2: 0.1}, {1: 50.0, 2: 50.0}
        self.outputs, self.sources, self.rates = {1: False, 2: False}, {1: "IMM", 2: "IMM"}, {1: 4e4, 2: 4e4}
        self.cycles, self.label, self.shown = {1: 1, 2: 1}, "", []

    def trigger(self):
        self.triggers += 1

    def operation_complete(self, timeout_s):
        if timeout_s:
            self.waiting.set()
        return self.idle.wait(timeout_s)

    def settings(self):
        return (self.frequencies, self.levels, self.outputs, self.sources, self.rates, self.label)

    @command("[SOURce{channel:1-2}:]FREQuency[:FIXed|:CW]", FREQUENCY)
    def set_frequency(self, channel, value):
        self.frequencies[channel] = value

    @query("[SOURce{channel:1-2}:]FREQuency[:FIXed|:CW]")
    def frequency(self, channel):
        return self.frequencies[channel]

    @command("[SOURce{channel:1-2}:]VOLTage", LEVEL)
    def set_level(self, channel, value):
        self.levels[channel] = value

    @query("[SOURce{channel:1-2}:]VOLTage", Number(high=LEVEL.high, low=1e-3, words_only=True), required=0)
    def level(self, channel, limit=None):
        return self.levels[channel] if limit is None else limit

    @command("[SOURce{channel:1-2}:]FUNCtion:ARBitrary:SRATe", Number("SA/S", low=1e-6, high=1e9))
    def set_rate(self, channel, value):
        self.rates[channel] = value

    @query("[SOURce{channel:1-2}:]FUNCtion:ARBitrary:SRATe")
    def rate(self, channel):
        return self.rates[channel]

    @command("[SOURce{channel:1-2}:]BURSt:NCYCles", Integer(low=1, high=1000, infinity=True))
    def set_cycles(self, channel, value):
        self.cycles[channel] = value

    @query("[SOURce{channel:1-2}:]BURSt:NCYCles")
    def burst_cycles(self, channel):
        return self.cycles[channel]

    @command("OUTPut{channel:1-2}[:STATe]", Boolean())
    def set_output(self, channel, value):
        self.outputs[channel] = value

    @query("OUTPut{channel:1-2}[:STATe]")
    def output(self, channel):
        return self.outputs[channel]

    @command("OUTPut{channel:1-2}:LOAD", LOAD)
    def set_load(self, channel, value):
        self.loads[channel] = value

    @command("TRIGger{channel:1-2}:SOURce", Keyword("IMMediate", "EXTernal", "BUS"))
    def set_source(self, channel, value):
        self.sources[channel] = value

    @query("TRIGger{channel:1-2}:SOURce")
    def source(self, channel):
        return self.sources[channel]

    @command("(DISPlay|SCReen){1-1}:TEXT", String())
    def set_label(self, value):
        self.label = value

    @query("(DISPlay|SCReen){1-1}:TEXT")
    def text(self):
        return f'"{self.label}"'

    @command("DISPlay:SHOW", ListOf(Keyword("CHANnel1", "CHANnel2")))
    def show(self, channels):
        self.shown = channels

    @command(
        "[SOURce:]DATA:ARBitrary:DAC", String(bare=True, longest=12), Numbers(low=-32767, high=32767, or_block=True)
    )
    def load_waveform(self, name, samples):
        if name in self.waveforms:
            raise ScpiError(780, "The specified arb waveform already exists")
        if isinstance(samples, memoryview):
            if samples.nbytes % 2:
                raise ScpiError(-230)
            samples = np.frombuffer(samples, ">i2")
        self.waveforms[name] = samples

    @command("DATA:RAW", Block())
    def load_raw(self, data):
        self.waveforms["raw"] = bytes(data)

    @query("WAVeform:DATA")
    def trace(self):
        return definite_block(TRACE.data, digits=8)
