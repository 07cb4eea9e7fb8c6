"""Averages over optimizer steps of what the weights of the shrinkers depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._arrays import check_shape
from paper_figures.shrinkers._blend_weights import NAMES, Floats, Moments

_FORMAT = 1


class LayerKey(NamedTuple):
    """A layer is another one if its shape changes."""

    name: str
    shape: tuple[int, int]


class BlendMemory:
    """Memory of `blend_layers`: earlier steps, exponentially forgotten.

    One noisy matrix tells little about how much signal there is, and the best of several estimates is chosen in
    part by their noise. Spectra change slowly over a run, so sums of the estimates over steps, in which each step
    counts ``decay`` times as much as the next one, choose better.

    Parameters
    ----------
    decay : float
        In [0, 1); about ``1/(1 - decay)`` steps count. 0 forgets everything.

    Raises
    ------
    ParameterError
        If ``decay`` is out of range.

    Formal guarantees
    -----------------
    The memory is a function of the noisy gradients it has been shown. If these are the outputs of a
    differentially private mechanism, it may be saved and published with them at no further cost. It must not be
    shown a clean gradient.

    References
    ----------
    ``docs/theory/sure_denoiser.md``, with the simulation that the default comes from.

    Examples
    --------
    >>> import json
    >>> from paper_figures.shrinkers._blend_layers import blend_layers
    >>> rng, memory = np.random.default_rng(0), BlendMemory()
    >>> for _ in range(3):
    ...     blended, report = blend_layers({"w": rng.standard_normal((4, 9))}, sigma=1.0, memory=memory)
    >>> resumed = BlendMemory()
    >>> resumed.load_state_dict(json.loads(json.dumps(memory.state_dict())))
    >>> resumed.state_dict() == memory.state_dict()
    True
    """

    def __init__(self, decay: float = 0.9) -> None:
        self.decay = check_real("decay", decay, low=0.0, high=1.0, high_open=True)
        self._sums: dict[LayerKey, Moments] = {}

    def __repr__(self) -> str:
        return f"BlendMemory(decay={self.decay}, layers={len(self)})"

    def __len__(self) -> int:
        """The number of layers seen."""
        return len(self._sums)

    def pooled(self, keys: Sequence[LayerKey], moments: Moments) -> Moments:
        """The sums over steps as they will be after this one; the memory stays as it is.

        Parameters
        ----------
        keys : sequence of LayerKey
            The layers.
        moments : Moments
            Of this step, one row per layer.

        Returns
        -------
        Moments
            The same rows.
        """
        fresh = Moments(*(np.zeros_like(array[0]) for array in moments))
        earlier = [self._sums.get(key, fresh) for key in keys]
        return Moments(
            self.decay * np.stack([sums.inner_products for sums in earlier]) + moments.inner_products,
            self.decay * np.stack([sums.gram for sums in earlier]) + moments.gram,
            self.decay**2 * np.stack([sums.variances for sums in earlier]) + moments.variances,  # independent errors
        )

    def update(self, keys: Sequence[LayerKey], pooled: Moments) -> None:
        """Keep what `pooled` has returned.

        Parameters
        ----------
        keys : sequence of LayerKey
            The layers.
        pooled : Moments
            One row per layer.
        """
        for i, key in enumerate(keys):
            self._sums[key] = Moments(*(array[i].copy() for array in pooled))

    def state_dict(self) -> dict[str, Any]:
        """The memory in lists, strings and numbers, from which it can be restored to the last bit.

        Returns
        -------
        dict
            For JSON, or for `torch.save`.
        """
        layers = [
            {"name": key.name, "shape": list(key.shape), **{k: v.tolist() for k, v in sums._asdict().items()}}
            for key, sums in self._sums.items()
        ]
        return {"format": _FORMAT, "decay": self.decay, "members": list(NAMES), "layers": layers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the memory, decay included, by a saved one.

        Parameters
        ----------
        state : mapping
            From `state_dict`.

        Raises
        ------
        ParameterError
            If it is not such a state, or one with other shrinkers. The memory is then left as it was.
        """
        if not isinstance(state, Mapping):
            raise ParameterError("state", type(state), "a mapping from BlendMemory.state_dict()")
        if state.get("format") != _FORMAT:
            raise ParameterError("state['format']", state.get("format"), f"{_FORMAT}")
        if state.get("members") != list(NAMES):
            raise ParameterError("state['members']", state.get("members"), f"{list(NAMES)}")
        decay = check_real("state['decay']", state.get("decay"), low=0.0, high=1.0, high_open=True)
        layers = state.get("layers")
        if not isinstance(layers, list):
            raise ParameterError("state['layers']", layers, "a list of layers")
        sums = dict(_restored(f"state['layers'][{i}]", layer) for i, layer in enumerate(layers))
        if len(sums) < len(layers):
            raise ParameterError("state['layers']", [layer["name"] for layer in layers], "without duplicates")
        self.decay, self._sums = decay, sums


def _restored(label: str, layer: Any) -> tuple[LayerKey, Moments]:
    if not isinstance(layer, Mapping) or not isinstance(layer.get("name"), str):
        raise ParameterError(label, layer, "a mapping with the name of a layer")
    try:
        rows, columns = check_shape(layer.get("shape"))
    except ParameterError as error:
        raise ParameterError(f"{label}['shape']", layer.get("shape"), error.allowed) from None
    k = len(NAMES)
    moments = Moments(
        inner_products=_numbers(f"{label}['inner_products']", layer.get("inner_products"), (k,), signed=True),
        gram=_numbers(f"{label}['gram']", layer.get("gram"), (k, k), signed=False),
        variances=_numbers(f"{label}['variances']", layer.get("variances"), (k,), signed=False),
    )
    return LayerKey(layer["name"], (rows, columns)), moments


def _numbers(label: str, value: Any, shape: tuple[int, ...], signed: bool) -> Floats:
    allowed = f"finite numbers, in lists of shape {shape}" + ("" if signed else ", not negative")
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(label, value, allowed) from None
    if array.shape != shape or not np.isfinite(array).all() or not (signed or (array >= 0).all()):
        raise ParameterError(label, value, allowed)
    return array
