"""Implementation of :mod:`dprmt.plots`."""
