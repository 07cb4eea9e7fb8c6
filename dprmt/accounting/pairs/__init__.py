"""One step, or one epoch of random allocation, as pairs of distributions: what a mechanism composes."""
