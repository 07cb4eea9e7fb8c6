"""Answers from composed losses: curves of ε and δ, trade-off functions, risks."""
