"""`reservoir-hw schema`."""

from __future__ import annotations

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import print_json


def schema(json: JsonOption = True) -> None:
    """Print the JSON schema of experiment files, with every kind that is installed, for editors."""
    from reservoir_hw.experiment.configuration.experiment import schema as experiment_schema

    print_json(experiment_schema())
