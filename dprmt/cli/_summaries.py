"""What each command is for, in the order of ``dprmt --help``, and what its answers mean."""

from __future__ import annotations

SUMMARIES = {
    "epsilon": "ε of a training run at δ",
    "noise": "the smallest noise multiplier for a target (ε, δ), or for what an attacker may reach",
    "steps": "the largest number of steps for a budget (ε, δ), all of it or what is left of it",
    "delta": "δ of a training run at ε",
    "probes": "how to spend a budget of products per layer on sketch and probes, with the ε of each choice",
    "tradeoff": "the trade-off curve of a training run (f-DP), as csv, JSON or picture",
    "statement": "the privacy card of a run: what may be said, in Markdown or JSON, and what not",
    "spectrum": "the singular values of noisy matrices, and which of them stand out from the noise",
    "plan": "what a recipe's steps cost by every way of taking norms: time, memory, ε; and which one to take",
    "train": "train a model as a recipe says, with differential privacy, and write down what it cost",
    "recipes": "the recipes that come with the package, or one of them in full",
    "report": "theory against measurement on real gradients, and the price of randomized clipping: one HTML page",
    "verify": "prove or refute statements of ε in ball arithmetic, ours or anybody's",
}
MEANING = """\
what the answer means:
  Whoever sees all that training releases can tell a run with any one sample from the same run in which it has no
  gradient only as well as (ε, δ) allows: zero-out neighbours, the number of samples being public; --neighbours and
  --group ask about others. The larger of both directions counts. It holds if every batch is drawn by
  Poisson sampling (each sample enters with probability q, by coins of its own) or, where --sampling says so, by
  random allocation (each sample in one step of every epoch, drawn anew and uniformly); if gradients are clipped as
  said; and if sums are divided by the expected batch size. Batches from a shuffled or any other order are answered by
  --sampling fixed-order, without credit for the shuffle.
"""
