"""Attacks on the training code as it is: ``python -m audits``. Not part of the package that is installed."""
