"""Alignment between gradients: cosine similarity, Improvement(t), and Theorem E.1 from layers to the whole gradient.

A gradient is one array of any shape, or a collection of blocks (the layers): a mapping of names to arrays or
a list of arrays, which stands for the concatenation of all of them. Sums run in float64 whatever the dtype.

The clean gradient enters here. The numbers are therefore *not* private: they are for evaluation. Releasing
them, or steering training by them, costs privacy that no accountant has counted.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._arrays import Array, array_namespace, as_array, check_finite, detached, is_tensor, to_float64

Blocks: TypeAlias = Array | Mapping[str, Array] | Sequence[Array]
"""One array, a mapping of names to arrays, or a list of arrays."""

NamedBlocks: TypeAlias = dict[Hashable, Array]


def cosine_similarity(a: Blocks, b: Blocks) -> float:
    """Return the cosine of the angle between two arrays, or two sets of layers, as vectors.

    Parameters
    ----------
    a, b : array, mapping of str to array, or sequence of arrays
        NumPy arrays or torch tensors of real dtype and any shape, the same for both; any units. Several
        blocks count as one concatenated vector.

    Returns
    -------
    float
        ``⟨a, b⟩/(‖a‖‖b‖)`` in [-1, 1]; 0 if either vector is zero, since a zero vector has no direction.

    Raises
    ------
    ParameterError
        If names, shapes or libraries differ, or an array is not real or not finite.

    References
    ----------
    Section 3.1 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import numpy as np
    >>> cosine_similarity(np.array([3.0, 4.0]), np.array([6.0, 8.0]))
    1.0
    >>> cosine_similarity({"q": np.ones((2, 2)), "v": np.zeros(4)}, {"q": np.ones((2, 2)), "v": np.ones(4)})
    0.7071067811865475
    """
    return cosine(*matching_blocks(a=a, b=b))


def improvement(denoised: Blocks, noisy: Blocks, clean: Blocks) -> float:
    """Compute Improvement(t): the change of the cosine with the clean gradient by denoising, over all layers together.

    Parameters
    ----------
    denoised, noisy, clean : array, mapping of str to array, or sequence of arrays
        As in `cosine_similarity`; the scale of each does not matter.

    Returns
    -------
    float
        ``cos(denoised, clean) - cos(noisy, clean)`` in [-2, 2]; positive if denoising helped. Not private.

    Raises
    ------
    ParameterError
        As in `cosine_similarity`.

    References
    ----------
    Section 3.1 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import numpy as np
    >>> improvement(np.array([1.0, 0.0]), np.array([0.0, 1.0]), clean=np.array([2.0, 0.0]))
    1.0
    """
    blocks, before, target = matching_blocks(denoised=denoised, noisy=noisy, clean=clean)
    return cosine(blocks, target) - cosine(before, target)


def layer_improvements(denoised: Blocks, noisy: Blocks, clean: Blocks) -> dict[Hashable, float]:
    """Compute the improvement of every single layer.

    Parameters
    ----------
    denoised, noisy, clean : mapping of str to array, or sequence of arrays
        As in `cosine_similarity`.

    Returns
    -------
    dict of float
        Name (or position, for a sequence) to Improvement_i(t), in the order of ``denoised``. Not private.

    Raises
    ------
    ParameterError
        As in `cosine_similarity`.

    References
    ----------
    Appendix E.1 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import numpy as np
    >>> ones, axis = np.ones(4), np.array([1.0, 0.0, 0.0, 0.0])
    >>> layer_improvements({"q": ones, "v": axis}, {"q": ones, "v": ones}, {"q": ones, "v": axis})
    {'q': 0.0, 'v': 0.5}
    """
    blocks, before, target = matching_blocks(denoised=denoised, noisy=noisy, clean=clean)
    return {i: _block_cosine(blocks, target, i) - _block_cosine(before, target, i) for i in blocks}


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
        If the blocks differ in name, shape or library, are not finite or not real, or ``tolerance`` is
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
    if tolerance is None:  # effect of rounding, on a vector stored in its dtype and on results computed in float32
        arrays = [array for blocks in (x, y, y_new) for array in blocks.values()]
        coarsest = max(float(array_namespace(array).finfo(array.dtype).eps) for array in arrays)
        tolerance = 1e-13 if coarsest < 1e-12 else max(coarsest, 1e-6)
    τ = check_real("tolerance", tolerance, low=0.0, high=1.0, high_open=True)
    return BlockCosine(
        before=cosine(y, x),
        after=cosine(y_new, x),
        less_aligned=tuple(i for i in x if _block_cosine(y_new, x, i) < _block_cosine(y, x, i) - τ),
        norm_changed=tuple(i for i in x if abs(norm({i: y_new[i]}) - norm({i: y[i]})) > τ * norm({i: y[i]})),
        tolerance=τ,
    )


def _block_cosine(y: NamedBlocks, x: NamedBlocks, name: Hashable) -> float:
    return cosine({name: y[name]}, {name: x[name]})


def matching_blocks(**arguments: Blocks) -> list[NamedBlocks]:
    """Return the arguments as named blocks of equal names, shapes and libraries."""
    (first_name, first), *others = ((name, _named_blocks(name, value)) for name, value in arguments.items())
    result = [first]
    for name, blocks in others:
        if blocks.keys() != first.keys():
            raise ParameterError(name, list(blocks), f"a set of blocks named as in {first_name}, {list(first)}")
        for key, block in blocks.items():
            label, other, known = _label(name, key), _label(first_name, key), first[key]
            if array_namespace(block) is not array_namespace(known):
                raise ParameterError(label, type(block), f"from the same library as {other}, {type(known)}")
            if block.shape != known.shape:
                raise ParameterError(label, tuple(block.shape), f"of the shape of {other}, {tuple(known.shape)}")
        result.append(blocks)
    return result


def cosine(a: NamedBlocks, b: NamedBlocks) -> float:
    """Compute `cosine_similarity` of matching blocks."""
    a, b = _in_safe_range(a)[0], _in_safe_range(b)[0]
    squares = inner(a, a), inner(b, b)
    if 0 in squares:
        return 0.0
    return max(-1.0, min(1.0, inner(a, b) / math.sqrt(squares[0]) / math.sqrt(squares[1])))


def norm(a: NamedBlocks) -> float:
    """Compute the Euclidean norm of the concatenation."""
    a, unit = _in_safe_range(a)
    return unit * math.sqrt(inner(a, a))


def inner(a: NamedBlocks, b: NamedBlocks) -> float:
    """Return the inner product of the concatenations, summed in float64."""
    return math.fsum(float(to_float64(a[name]).reshape(-1) @ to_float64(b[name]).reshape(-1)) for name in a)


def _named_blocks(name: str, value: Blocks) -> NamedBlocks:
    if isinstance(value, Mapping):
        named = dict(value)
    elif isinstance(value, (list, tuple)) and all(isinstance(x, np.ndarray) or is_tensor(x) for x in value):
        named = dict(enumerate(value))
    else:
        named = {None: value}
    if not named:
        raise ParameterError(name, value, "at least one array")
    arrays = {key: detached(as_array(_label(name, key), block)) for key, block in named.items()}
    for key, array in arrays.items():
        check_finite(_label(name, key), array)
    return arrays


def _label(name: str, key: Hashable) -> str:
    return name if key is None else f"{name}[{key!r}]"


def _in_safe_range(blocks: NamedBlocks) -> tuple[NamedBlocks, float]:
    # The blocks in a unit in which squares neither overflow nor vanish, and that unit.
    peak = max(float(abs(block).max()) if math.prod(block.shape) else 0.0 for block in blocks.values())
    if peak == 0 or 1e-100 < peak < 1e100:
        return blocks, 1.0
    return {name: to_float64(block) / peak for name, block in blocks.items()}, peak
