"""From layers to the whole gradient: Theorem E.1, with its hypotheses checked rather than assumed."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from dprmt._validation import check_real
from dprmt.spectra._alignment import Blocks, NamedBlocks, cosine, matching_blocks, norm
from dprmt.spectra._arrays import Array, array_namespace

_FLOAT64_ROUNDING, _FLOAT32_ROUNDING = 1e-13, 1e-6  # rounding of a vector's norm in that precision


@dataclass(frozen=True)
class BlockCosine:
    """Cosines of two estimates with one target, and which hypotheses of Theorem E.1 they meet.

    Attributes
    ----------
    before, after : float
        ``cos(y, x)`` and ``cos(y', x)`` of the whole vectors, in [-1, 1].
    less_aligned : tuple
        Names of the blocks that break hypothesis (i): the cosine with the target fell.
    norm_changed : tuple
        Names of the blocks that break hypothesis (ii): the norm is not what it was.
    tolerance : float
        The τ up to which the two hypotheses were checked.
    """

    before: float
    after: float
    less_aligned: tuple[Hashable, ...]
    norm_changed: tuple[Hashable, ...]
    tolerance: float

    @property
    def applies(self) -> bool:
        """True if both hypotheses hold, so that ``after >= before - slack`` is a theorem."""
        return not self.less_aligned and not self.norm_changed

    @property
    def slack(self) -> float:
        """The most that the tolerance τ can cost the conclusion: ``τ + 2 sin(½ arcsin τ)``, nearly 2τ.

        Norms that change by factors in [1 - τ, 1 + τ] turn the vector by an angle φ with sin φ <= τ, hence
        move its cosine by at most 2 sin(φ/2); cosines that fall by τ in every block lower the whole one by at
        most τ.
        """
        return self.tolerance + 2 * math.sin(math.asin(self.tolerance) / 2)


def block_cosine(target: Blocks, before: Blocks, after: Blocks, tolerance: float | None = None) -> BlockCosine:
    """Check Theorem E.1: if every block gains alignment and keeps its norm, the whole vector gains alignment.

    The theorem: let (i) ``cos(y_i, x_i) <= cos(y'_i, x_i)`` and (ii) ``‖y_i‖ = ‖y'_i‖`` for every block i.
    Then ``cos(y, x) <= cos(y', x)``. A block that is zero in x, or in both y and y', has no angle; it adds
    nothing to the inner products, so the theorem holds whatever happens in it, and its cosine counts as 0.

    Parameters
    ----------
    target : mapping of str to array, sequence of arrays, or array
        x: the clean gradient. One array is one block.
    before, after : mapping of str to array, sequence of arrays, or array
        y and y': the two estimates, for instance the noisy and the denoised gradient, in the same blocks.
    tolerance : float, optional
        τ in [0, 1): (i) is checked up to τ, (ii) up to the relative error τ. By default what rounding can do:
        1e-13 for float64 blocks, 1e-6 if one is float32, the machine epsilon of bfloat16 or float16.

    Returns
    -------
    BlockCosine
        Both cosines and the names of the blocks that break a hypothesis. If none does, ``after >= before`` up
        to ``slack``. Not private if ``target`` is not.

    Raises
    ------
    ParameterError
        If the blocks differ in name, shape or library, are not finite or not floating, or ``tolerance`` is
        out of range.

    References
    ----------
    Theorem E.1 of arXiv:2510.01137v3 and its proof in appendix H.1, which leave zero blocks open.

    Examples
    --------
    >>> import numpy as np
    >>> x = {"q": np.array([1.0, 0.0]), "v": np.array([0.0, 2.0])}
    >>> y = {"q": np.array([0.0, 3.0]), "v": np.array([0.0, 1.0])}
    >>> turned = {"q": np.array([3.0, 0.0]), "v": np.array([0.0, 1.0])}
    >>> result = block_cosine(x, before=y, after=turned)
    >>> result.applies, result.after > result.before
    (True, True)
    >>> block_cosine(x, before=turned, after={"q": y["q"], "v": 2 * y["v"]}).less_aligned
    ('q',)
    """
    x, y, y_new = matching_blocks(target=target, before=before, after=after)
    τ = (
        _default_tolerance(x, y, y_new)
        if tolerance is None
        else check_real("tolerance", tolerance, low=0.0, high=1.0, high_open=True)
    )
    return BlockCosine(
        before=cosine(y, x),
        after=cosine(y_new, x),
        less_aligned=tuple(i for i in x if _block_cosine(y_new, x, i) < _block_cosine(y, x, i) - τ),
        norm_changed=tuple(i for i in x if not _same_norm(y[i], y_new[i], τ)),
        tolerance=τ,
    )


def _block_cosine(y: NamedBlocks, x: NamedBlocks, name: Hashable) -> float:
    return cosine({name: y[name]}, {name: x[name]})


def _same_norm(y: Array, y_new: Array, tolerance: float) -> bool:
    before = norm({0: y})
    return abs(norm({0: y_new}) - before) <= tolerance * before


def _default_tolerance(*vectors: NamedBlocks) -> float:
    # Effect of rounding alone: on a vector stored in its dtype, and on results computed in float32.
    epsilons = (array_namespace(b).finfo(b.dtype).eps for blocks in vectors for b in blocks.values())
    coarsest = max(map(float, epsilons))
    return _FLOAT64_ROUNDING if coarsest < _FLOAT32_ROUNDING / 10**6 else max(coarsest, _FLOAT32_ROUNDING)
