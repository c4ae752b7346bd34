"""Errors on NARMA that papers print."""

ORDER_10 = (
    ("linear shift register (Appeltant et al. 2011)", "0.4", "0.16"),
    ("optoelectronic loop, 50 nodes (Paquot et al. 2012)", "", "0.168 ± 0.015"),
)
"""What, NRMSE, NMSE. The loop's figure is that of the experiment and of its simulation."""
