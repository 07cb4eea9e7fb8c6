"""The denoising step, between the noise and the optimizer: how large the noise is there, and what it replaced."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

from dprmt._validation import ParameterError, TrainingStateError, check_real
from dprmt.training.clipping import NoisySumOptimizer
from dprmt.training.denoising._options import Denoising, DenoisingReport, Gradients
from dprmt.training.optimizers import DPAdamBC, DPGrape, released_gradient

NamedParameters: TypeAlias = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
Observer: TypeAlias = Callable[[Gradients, Gradients, float], None]

_DENOISED: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # inner optimizers that have a step


def gradient_noise_std(dp_optimizer: DPOptimizer) -> float:
    """Compute the standard deviation σ_DP·C/L of the noise in one entry of ``.grad``, as the inner optimizer sees it.

    The present settings are read from the optimizer, so the value follows schedules of noise multiplier and clipping
    norm.

    Parameters
    ----------
    dp_optimizer : opacus.optimizers.DPOptimizer
        Its variant for ghost clipping works too.

    Returns
    -------
    float
        Noise multiplier times clipping norm, divided by the *expected* batch size times the accumulated iterations for
        ``loss_reduction="mean"``, or by 1 for ``"sum"``.

    Raises
    ------
    ParameterError
        If it is another optimizer, such as Opacus' own ones for adaptive clipping (whose noise depends on the realised
        batch size) and for several processes.

    Formal guarantees
    -----------------
    Public: a function of the settings. The size of the drawn batch is not used.

    References
    ----------
    Algorithm 1 of arXiv:2510.01137v3, where |B| is the batch size; under Poisson sampling this is the expected one.

    Examples
    --------
    >>> import torch
    >>> inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3, 2))], lr=0.1)
    >>> gradient_noise_std(DPOptimizer(inner, noise_multiplier=0.5, max_grad_norm=2.0, expected_batch_size=10))
    0.1
    """
    plain = type(dp_optimizer) in (DPOptimizer, DPOptimizerFastGradientClipping)
    adapts = hasattr(dp_optimizer, "_adjusted_noise_multiplier")
    if adapts or not (plain or isinstance(dp_optimizer, NoisySumOptimizer)):
        allowed = "an Opacus optimizer of one process without adaptive clipping, or one that make_private has made"
        raise ParameterError("dp_optimizer", type(dp_optimizer).__name__, allowed)
    std = check_real("noise_multiplier", dp_optimizer.noise_multiplier, low=0.0)
    std *= check_real("max_grad_norm", dp_optimizer.max_grad_norm, low=0.0)
    return std / released_sum_divisor(dp_optimizer)


def released_sum_divisor(dp_optimizer: DPOptimizer) -> float:
    """Return the divisor of the sum of clipped gradients and noise."""
    if dp_optimizer.loss_reduction == "sum":
        return 1.0
    divisor = check_real("expected_batch_size", dp_optimizer.expected_batch_size, low=0.0, low_open=True)
    sample = next((getattr(p, "grad_sample", None) for p in dp_optimizer.params), None)
    if isinstance(sample, list):  # as many batches; outside a step there are no per-sample gradients to count
        divisor *= dp_optimizer.accumulated_iterations
    return divisor


class DenoisingStep:
    """Replace the noisy gradient of some parameters by a denoised one, before an optimizer moves.

    The step runs whenever an Opacus optimizer passes a noised gradient to its inner optimizer. ``.grad`` is replaced,
    not modified, and parameters without a gradient are skipped. For your own optimizer, call `Denoising.apply`.

    Parameters
    ----------
    dp_optimizer : opacus.optimizers.DPOptimizer
        As ``PrivacyEngine.make_private`` returns it, also for ghost clipping, or ``make_private(...).optimizer``. σ is
        its `gradient_noise_std` at every step. A `dprmt.training.optimizers.DPAdamBC` or `DPGrape` inside receives the
        noise variance of each parameter: 0 for a denoised layer, and σ² for all others. Weights that a `DPGrape`
        projects are denoised in the subspace in which their gradient was released, and others are not.
    named_parameters : mapping, or iterable of (str, Tensor)
        Names for all parameters of the optimizer. Others are ignored: their gradients carry no such noise.
    options : Denoising, optional
        The default is ``Denoising()``.

    Attributes
    ----------
    last_report : DenoisingReport or None
        Report of the last step.
    observers : dict of callable
        Functions that are called after every step, by a key of yours, with the gradients by name before and after, of
        released values, and σ.

    Raises
    ------
    ParameterError
        If a parameter of the optimizer has no name, or as for `gradient_noise_std`; also by an optimizer's step, if a
        matrix is not finite. No gradient is changed then.
    TrainingStateError
        If the optimizer has a step already.

    Formal guarantees
    -----------------
    Post-processing: the new gradient and the report are functions of the released gradient, of σ and of the options.
    With options and σ that do not depend on the private data, the (ε, δ) of the gradient carries over.

    References
    ----------
    Algorithm 1 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import torch
    >>> weights = torch.nn.Parameter(torch.zeros(16, 64))
    >>> inner = torch.optim.SGD([weights], lr=0.1)
    >>> private = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10)
    >>> weights.grad_sample = torch.zeros(0, 16, 64)  # Poisson sampling drew nobody: pure noise
    >>> step = DenoisingStep(private, {"weights": weights}, Denoising(kappa=1.1))
    >>> _ = private.step()
    >>> step.last_report.sigma, step.last_report.replaced
    (0.1, ())
    """

    def __init__(
        self, dp_optimizer: DPOptimizer, named_parameters: NamedParameters, options: Denoising | None = None
    ) -> None:
        gradient_noise_std(dp_optimizer)  # refuses what it does not know
        inner = dp_optimizer.original_optimizer
        if inner in _DENOISED:
            raise TrainingStateError("the optimizer has a denoising step already: denoising twice removes signal")
        self.parameters = named_of(dp_optimizer.params, named_parameters)
        if isinstance(inner, DPGrape):  # its weights are denoised where their noise is; its other parameters are not
            projected = {layer.weight for layer in inner.subspaces}
            self.parameters = {name: p for name, p in self.parameters.items() if p in projected}
        self.options = options if options is not None else Denoising()
        self.last_report: DenoisingReport | None = None
        self.dp_optimizer, self._inner = dp_optimizer, inner
        self.observers: dict[object, Observer] = {}
        self._handle = inner.register_step_pre_hook(lambda *_: self._denoise())
        _DENOISED.add(inner)

    def detach(self) -> None:
        """Take the step off the optimizer."""
        self._handle.remove()
        _DENOISED.discard(self._inner)

    def _denoise(self) -> None:
        sigma = gradient_noise_std(self.dp_optimizer)
        found = {name: released_gradient(p) for name, p in self.parameters.items()}
        noisy = {name: gradient for name, gradient in found.items() if gradient is not None}
        denoised, layers = self.options.apply(noisy, sigma)
        for name, gradient in denoised.items():
            if gradient is not noisy[name]:
                parameter = self.parameters[name]
                setattr(parameter, "grad" if parameter.grad is noisy[name] else "projected_grad", gradient)
        if isinstance(self._inner, (DPAdamBC, DPGrape)):
            shares = {name: layers[name].noisy_share if name in layers else 1.0 for name in noisy}
            self._inner.set_noise_variance({self.parameters[name]: (s * sigma) ** 2 for name, s in shares.items()})
        self.last_report = DenoisingReport(sigma, layers)
        for observe in self.observers.values():
            observe(noisy, denoised, sigma)


class PrivateDataWarning(UserWarning):
    """Warning that numbers are computed from private data which no accountant has counted."""


class DenoisingEvaluation:
    """Read the clean clipped gradient of every step, which the optimizer still holds, to compare with it.

    **Reads private data.** The first call warns with `PrivateDataWarning`.

    Parameters
    ----------
    step : DenoisingStep
        Of an Opacus optimizer in a single process.

    Raises
    ------
    ParameterError
        If the optimizer is a distributed one (no process then holds the clean sum).

    Formal guarantees
    -----------------
    None: the results are functions of the clean gradient. Publishing them, or choosing anything by them, voids the
    (ε, δ) of the run. The run itself, its gradients and its parameters, is not changed.

    References
    ----------
    Section 3.1 and appendix E.1 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import torch
    >>> from opacus.optimizers import DPOptimizer
    >>> weights = torch.nn.Parameter(torch.zeros(16, 64))
    >>> inner = torch.optim.SGD([weights], lr=0.1)
    >>> generator = torch.Generator().manual_seed(0)
    >>> options = dict(noise_multiplier=1.0, max_grad_norm=100.0, expected_batch_size=10, generator=generator)
    >>> private = DPOptimizer(inner, **options)
    >>> private.noise_multiplier = 0.05
    >>> step = DenoisingStep(private, {"weights": weights})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     evaluation = DenoisingEvaluation(step)
    >>> caught[0].category.__name__
    'PrivateDataWarning'
    >>> weights.grad_sample = 3 * torch.ones(10, 16, 64)
    >>> private.step()
    >>> clean = evaluation.private_clean_gradients()["weights"]  # each of norm 96; the sum is over 10 samples
    >>> round(clean.norm().item(), 3)
    96.0
    """

    def __init__(self, step: DenoisingStep) -> None:
        if getattr(step.dp_optimizer, "is_shared", False):
            raise ParameterError("step", type(step.dp_optimizer).__name__, "of an optimizer of one process")
        message = "DenoisingEvaluation reads the clean gradients: its results are private and no ε covers them"
        warnings.warn(message, PrivateDataWarning, stacklevel=2)
        self._step, self._dp_optimizer = step, step.dp_optimizer
        self._dp_optimizer.keeps_sums = True  # private steps free them otherwise

    def private_clean_gradients(self) -> Gradients:
        """Return the clean clipped gradients by parameter, divided as the noisy ones were.

        Returns
        -------
        dict of Tensor
            **Private.** Gradients of the last step, until ``zero_grad`` of the optimizer; for DP-GRAPE's weights in
            their subspaces.

        Raises
        ------
        TrainingStateError
            If the optimizer holds none.
        """
        divisor, clean = released_sum_divisor(self._dp_optimizer), {}
        for name, p in self._step.parameters.items():
            released, total = released_gradient(p), getattr(p, "summed_grad", None)
            if total is None:
                raise TrainingStateError(f"the optimizer holds no clean gradient of {name}: ask before zero_grad")
            clean[name] = total.view_as(p if released is None else released) / divisor
        return clean


def named_of(params: Iterable[torch.Tensor], named_parameters: NamedParameters) -> dict[str, torch.Tensor]:
    """Return the parameters of an optimizer by name, or raise if one has none."""
    names, params = {id(p): name for name, p in dict(named_parameters).items()}, list(params)
    if unnamed := [tuple(p.shape) for p in params if id(p) not in names]:
        allowed = f"names for all that is optimized, for shapes {unnamed} too"
        raise ParameterError("named_parameters", list(names.values()), allowed)
    return {names[id(p)]: p for p in params}
