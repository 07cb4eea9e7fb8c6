"""Theorems that you can test on your own code: hypothesis strategies, and checks of five kinds of implementation.

| your code                        | check                       |
|----------------------------------|-----------------------------|
| a denoiser of matrices           | :func:`check_denoiser`      |
| a shrinker of singular values    | :func:`check_shrinker`      |
| an estimator of gradient norms   | :func:`check_norm_estimator`|
| an accountant of DP-SGD          | :func:`check_accountant`    |
| a step of a private loop         | :func:`check_private_step`  |

A check returns if no violation was found. Otherwise it raises an ``AssertionError`` that names the theorem, the
smallest input that was found, and the amount. Passing is evidence, not a proof. The subpackage needs the extra
``dprmt[testing]``; it imports torch only if a check is asked for tensors.
"""

from dprmt._lazy import public_names as _public_names
from dprmt._validation import require as _require

_require("testing", "hypothesis")

from dprmt.testing._accountant_check import check_accountant as check_accountant  # noqa: E402
from dprmt.testing._spectra_checks import check_denoiser as check_denoiser  # noqa: E402
from dprmt.testing._spectra_checks import check_shrinker as check_shrinker  # noqa: E402
from dprmt.testing._strategies import NoisyMatrix as NoisyMatrix  # noqa: E402
from dprmt.testing._strategies import TradeOffFunction as TradeOffFunction  # noqa: E402
from dprmt.testing._strategies import dpsgd_runs as dpsgd_runs  # noqa: E402
from dprmt.testing._strategies import noisy_matrices as noisy_matrices  # noqa: E402
from dprmt.testing._strategies import norm_laws as norm_laws  # noqa: E402
from dprmt.testing._strategies import phases as phases  # noqa: E402
from dprmt.testing._strategies import spectra_of_rank as spectra_of_rank  # noqa: E402
from dprmt.testing._strategies import trade_offs as trade_offs  # noqa: E402
from dprmt.testing._training_checks import check_norm_estimator as check_norm_estimator  # noqa: E402
from dprmt.testing._training_checks import check_private_step as check_private_step  # noqa: E402

__all__ = _public_names(vars())
