"""A small program that proves or refutes privacy statements, in ball arithmetic, and trusts nobody's accountant.

It imports python-flint and the standard library, nothing else. Why it proves what it says: docs/theory/verifier.md,
whose labels the code cites. The chain is short: a statement names pairs of laws that dominate the steps
(``_statement``, ``_gaussians`` and others); each step is asked on a grid (``_table``, ``_ends``); integers are
multiplied exactly (``_sums``); two sums are compared with δ (``_run``, ``_verdict``).
"""

from dprmt_verify._statement import Claim, Statement, read_statement
from dprmt_verify._verdict import Verdict, verify
from dprmt_verify._words import NotCoveredError

__all__ = ["Claim", "NotCoveredError", "Statement", "Verdict", "read_statement", "verify"]
