"""The nonlinear autoregressive moving average system (NARMA)."""
