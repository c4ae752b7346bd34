from reservoir_hw.testing import task_metrics


def test_memory(reservoir):
    assert task_metrics(reservoir, "examples/delay_loop/narma.yaml")["nrmse"] < 0.5
