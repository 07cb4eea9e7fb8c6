"""Random matrix theory of noisy gradients."""
