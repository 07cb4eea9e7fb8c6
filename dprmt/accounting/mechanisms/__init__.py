"""Public accounting API: mechanisms, sampling schemes, compositions and calibration."""
