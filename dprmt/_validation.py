"""Checks shared by all subpackages: argument ranges with one error type, and the packages of an extra."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import SupportsIndex


class ParameterError(ValueError):
    """An argument outside its allowed range.

    Parameters
    ----------
    name : str
        Name of the argument, as the caller spelled it.
    value : object
        The rejected value.
    allowed : str
        The allowed range, in words or interval notation.
    fix : str
        For arguments that conflict: one action that resolves the conflict.

    Examples
    --------
    >>> raise ParameterError("sample_rate", 1.5, "a number in (0, 1]")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: sample_rate must be a number in (0, 1], got 1.5
    """

    def __init__(self, name: str, value: object, allowed: str, fix: str = "") -> None:
        self.name, self.value, self.allowed, self.fix = name, value, allowed, fix
        super().__init__(f"{name} must be {allowed}, got {value!r}" + (f".\nFix: {fix}." if fix else ""))

    def __reduce__(self) -> tuple[type[ParameterError], tuple[str, object, str, str]]:
        """Rebuild the exception in another process from its arguments."""
        return type(self), (self.name, self.value, self.allowed, self.fix)


class TrainingStateError(RuntimeError):
    """Training code does what no guarantee covers, or calls something at the wrong time.

    No argument is to blame, but a model whose layers mix samples, a loss without graph, a step that comes before its
    backward pass. Its text is one sentence: what was seen, and what to do.

    Examples
    --------
    >>> raise TrainingStateError("the losses have no graph: compute them with gradients enabled")
    Traceback (most recent call last):
    ...
    dprmt._validation.TrainingStateError: the losses have no graph: compute them with gradients enabled
    """


def check_real(
    name: str,
    value: object,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """Return ``value`` as a finite float within the interval, or raise."""
    allowed = f"a finite number in {'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
    if math.isinf(low) and math.isinf(high):
        allowed = "a finite number"
    elif math.isinf(high):
        allowed = f"a finite number {'>' if low_open else '>='} {low:g}"
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last from a tensor of several numbers
        raise ParameterError(name, value, allowed) from None
    too_low = number <= low if low_open else number < low
    too_high = number >= high if high_open else number > high
    if isinstance(value, (bool, str)) or not math.isfinite(number) or too_low or too_high:
        raise ParameterError(name, value, allowed)
    return number


def check_count(name: str, value: SupportsIndex, *, low: int = 1, high: int | None = None) -> int:
    """Return ``value`` as an int within ``[low, high]``, or raise."""
    allowed = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    try:
        number = operator.index(value)
    except TypeError:
        raise ParameterError(name, value, allowed) from None
    if isinstance(value, bool) or number < low or (high is not None and number > high):
        raise ParameterError(name, value, allowed)
    return number


def check_choice(name: str, value: str, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``, or raise."""
    if value not in choices:
        raise ParameterError(
            name, value, "one of " + ", ".join(repr(c) for c in choices) + did_you_mean(value, choices)
        )
    return value


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a hint in brackets where a known word is like this one, or this one is a part of it; else nothing.

    Examples
    --------
    >>> did_you_mean("epsilom", ["epsilon", "delta"]), did_you_mean("q", ["epsilon", "delta"])
    (" (did you mean 'epsilon'?)", '')
    >>> did_you_mean("--noise", ["--json", "--noise-multiplier"])
    " (did you mean '--noise-multiplier'?)"
    """
    import difflib  # only where something is refused: an answer takes less time than it does

    asked, names = str(word).lstrip("-"), {name.lstrip("-"): name for name in known}
    parts = [name for name in names if asked in name.replace("_", "-").split("-")]
    like = parts or difflib.get_close_matches(asked, names, n=1)
    return f" (did you mean {names[like[0]]!r}?)" if like and isinstance(word, str) else ""


def differences(then: object, now: object, name: str = "") -> str:
    """List the fields in which two documents differ, with both values.

    Examples
    --------
    >>> differences({"step": {"rate": 0.1, "norms": "exact"}}, {"step": {"rate": 0.2, "norms": "exact"}})
    'step.rate: 0.1 then, 0.2 now'
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        keys = dict.fromkeys((*then, *now))
        found = (differences(then.get(key), now.get(key), f"{name}.{key}".lstrip(".")) for key in keys)
        return "; ".join(filter(None, found))
    return "" if then == now else f"{name}: {then} then, {now} now"


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the extra in the error of an import that fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise _missing((error.name or "").partition(".")[0], extra) from None


def require(extra: str, *packages: str) -> None:
    """Raise if one of the packages is not installed, without importing any."""
    for package in packages:
        if find_spec(package) is None:
            raise _missing(package, extra)


def how_to_install(extra: str) -> str:
    """Return the command that adds an extra, in a checkout: the package is on no index yet.

    Examples
    --------
    >>> print(how_to_install("demo"))
    pip install '.[demo]' in a checkout of dprmt
    """
    return f"pip install '.[{extra}]' in a checkout of dprmt"


def _missing(package: str, extra: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"{package} is not installed: {how_to_install(extra)}", name=package)
