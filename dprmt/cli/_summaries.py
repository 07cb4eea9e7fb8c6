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
    "plan": "measure what a recipe's steps cost by every norm method: time, memory, ε; and recommend one",
    "train": "train a model as a recipe says, with differential privacy, and write down what it cost",
    "recipes": "the recipes that come with the package, or one of them in full",
    "report": "theory against measurement on real gradients, and the price of randomized clipping: one HTML page",
    "verify": "prove or refute statements of ε in ball arithmetic, ours or anybody's",
}
MEANING = """\
what the answer means:
  An attacker who sees everything that training releases can tell a run with any one sample from the same run in which
  it has no gradient only as well as (ε, δ) allows: zero-out neighbours, the number of samples being public;
  --neighbours and --group ask about others. The larger of both directions counts. It holds for Poisson sampling, or
  for random allocation where --sampling says so, if gradients are clipped as stated and sums are divided by the
  expected batch size. For batches from a shuffled order use --sampling fixed-order: it gives no credit for the shuffle.
"""
