from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from reservoir_hw import Experiment
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout import LMSReadout, RidgeReadout, RLSReadout
from reservoir_hw.readout.baselines import FirBaseline
from reservoir_hw.readout.baselines.fir import FirConfig
from reservoir_hw.readout.linear.online import LmsConfig, RlsConfig
from reservoir_hw.readout.linear.ridge import RidgeConfig


@pytest.mark.parametrize(
    ("made", "config"),
    [(RidgeReadout, RidgeConfig), (RLSReadout, RlsConfig), (LMSReadout, LmsConfig), (FirBaseline, FirConfig)],
)
def test_constructor_and_configuration_have_the_same_parameters_and_defaults(made: Any, config: Any) -> None:
    parameters = inspect.signature(made).parameters
    assert set(parameters) == set(config.model_fields) - {"kind", "keep_learning"}
    assert {name: p.default for name, p in parameters.items()} == {
        n: config.model_fields[n].default for n in parameters
    }


@pytest.mark.parametrize("made", [RidgeReadout, RLSReadout, LMSReadout])
def test_what_is_built_has_the_settings_of_the_configuration(made: Any) -> None:
    changed = {"standardise": False, "bias": False, "input_connection": True, "washout": 7}
    config = {RidgeReadout: RidgeConfig, RLSReadout: RlsConfig, LMSReadout: LmsConfig}[made](kind=made.kind, **changed)
    assert repr(config.build()) == repr(made(**changed))


def test_an_experiment_names_the_origin_of_a_wrong_setting() -> None:
    document = Document.from_mapping(
        {"task": {"kind": "narma"}, "reservoir": {"kind": "esn", "nodes": 10}, "readout": {"kind": "ridge"}}, "here"
    )
    document.set_option("readout.washout=-1")
    with pytest.raises(ConfigurationError, match=r"--set readout\.washout: readout\.washout = -1: .* equal to 0"):
        Experiment(document)
    document.set_option("readout.washout=0")
    document.set_option("readout.alpha=loo")
    with pytest.raises(ConfigurationError, match=r"readout\.alpha = 'loo': .* 'gcv' or 'kfold'"):
        Experiment(document)


@pytest.mark.parametrize("made", [RidgeReadout, RLSReadout, LMSReadout])
@pytest.mark.parametrize("bias", [True, False])
def test_the_linear_form_is_what_the_readout_predicts(made: Any, bias: bool) -> None:
    random = np.random.default_rng(0)
    states, inputs = random.normal(2.0, 3.0, (300, 5)), random.normal(size=(300, 2))
    readout = made(bias=bias, input_connection=True).fit(states, states[:, :3] + inputs[:, :1], inputs)
    form = readout.linear_form()
    assert (form.weights.shape, form.bias.shape, form.nodes, form.inputs) == ((3, 7), (3,), 5, 2)
    expected = np.concatenate([states, inputs], axis=1) @ form.weights.T + form.bias
    np.testing.assert_allclose(readout.predict(states, inputs), expected, atol=1e-12)
    assert form.scale is not None
    assert form.scale.spread.shape == (7,)
    # A copy: what is done with it leaves the readout as it is.
    form.weights[:] = 0
    assert readout.weights_.any()
