"""The torch harness: the theory on real gradients."""
