"""The mathematics of noise in differentially private training.

Subpackages: :mod:`dprmt.accounting` (certified ε), :mod:`dprmt.spectra` (random matrix theory of noisy
gradients), :mod:`dprmt.training` (the torch harness), :mod:`dprmt.testing` (theorems to test on your own code),
:mod:`dprmt.statements`, :mod:`dprmt.plots`, :mod:`dprmt.report` and :mod:`dprmt.cli`. They raise
:class:`ParameterError`, a ``ValueError``, where an argument is out of its range, and :class:`TrainingStateError`
where training code does what no guarantee covers.
Importing this package imports none of them; ``dprmt.accounting`` does, when it is first used. So do the names that
most scripts need: ``from dprmt import DPSGD, compose, calibrate, make_private, denoise, spike_map``.
"""

from dprmt._lazy import on_demand as _on_demand
from dprmt._validation import ParameterError as ParameterError
from dprmt._validation import TrainingStateError as TrainingStateError

__version__ = "0.1.0"

_SUBPACKAGES = ("accounting", "cli", "plots", "report", "spectra", "statements", "testing", "training")
_NAMES = {
    "accounting": (
        "DPSGD",
        "AddRemove",
        "ExactNorms",
        "FixedOrder",
        "FixedSize",
        "GaussianRelease",
        "Group",
        "HutchPlusPlus",
        "Hutchinson",
        "LaplaceRelease",
        "Poisson",
        "PrivacyBounds",
        "RandomAllocation",
        "ReplaceOne",
        "ZeroOut",
        "calibrate",
        "choose_probes",
        "compose",
    ),
    "spectra": (
        "MarchenkoPastur",
        "bulk_edge",
        "denoise",
        "denoise_layers",
        "detection_threshold",
        "estimate_sigma",
        "shrink",
        "spike_map",
        "vector_overlaps",
    ),
    "training.data": ("per_sample_losses",),
    "training.private_run": ("AdaptiveClipping", "BandedNoise", "PerLayerClipping", "PrivateRun", "make_private"),
}
"""Names for newcomers, by the subpackage that defines them."""

_PACKAGES = (
    *("numpy", "scipy", "matplotlib", "rich", "safetensors", "torch", "opacus", "transformers", "peft", "datasets"),
    *("tomli-w", "cryptography", "prv-accountant", "dp-accounting"),
)
"""Packages that a result may depend on."""

_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__getattr__, _listed = _on_demand(__name__, _SUBPACKAGES, **_HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_listed()})


def show_versions() -> None:
    """Print the versions of dprmt, Python and the packages that a result may depend on, for reports of problems.

    Examples
    --------
    >>> show_versions()  # doctest: +ELLIPSIS
    dprmt           0.1.0
    Python          3...
    """
    import platform
    from importlib.metadata import PackageNotFoundError, version

    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    for name, text in (("dprmt", __version__), ("Python", platform.python_version()), ("system", system)):
        print(f"{name:<16}{text}")
    for name in _PACKAGES:
        try:
            print(f"{name:<16}{version(name)}")
        except PackageNotFoundError:
            print(f"{name:<16}–")
