"""Denoising between noise and optimizer: the released gradient of a DP step, with its layers' noise shrunk away.

A `DenoisingStep` replaces ``.grad`` of the parameters by the result of `dprmt.spectra.denoise_layers`. You call it, or
attach it to an Opacus optimizer. That is post-processing of released values and costs no privacy.
`DenoisingEvaluation` reads the clean gradient, which is private.
"""

import dprmt.training._needs_train  # noqa: F401
from dprmt._lazy import public_names as _public_names
from dprmt.training.denoising._options import Denoising as Denoising
from dprmt.training.denoising._options import DenoisingReport as DenoisingReport
from dprmt.training.denoising._step import DenoisingEvaluation as DenoisingEvaluation
from dprmt.training.denoising._step import DenoisingStep as DenoisingStep
from dprmt.training.denoising._step import PrivateDataWarning as PrivateDataWarning
from dprmt.training.denoising._step import gradient_noise_std as gradient_noise_std

__all__ = _public_names(vars())
