"""Whose privacy: which data sets count as neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from dprmt._validation import ParameterError, check_count
from dprmt.accounting.basics import Value, value_from_dict

LARGEST_GROUP = 1000
"""Rows of one person that are accounted together."""


@dataclass(frozen=True, repr=False)
class ZeroOut(Value):
    """A sample is present, or replaced by one without a gradient (N0).

    The number of samples n, the sample rate, the divisor of the released sum and the number of steps are public
    constants, the same for both neighbours. The relation that a training run can claim whose rate is B/n.

    Examples
    --------
    >>> ZeroOut()
    ZeroOut()
    """

    kind: ClassVar[str] = "zero-out"
    group_size: ClassVar[int] = 1
    """Samples that change at once."""
    is_replacement: ClassVar[bool] = False
    """True if other samples come in their place."""

    def __str__(self) -> str:
        return "zero-out: one sample present, or without a gradient"


@dataclass(frozen=True, repr=False)
class AddRemove(Value):
    """A sample is present, or absent (N0).

    Formal guarantees
    -----------------
    The numbers are those of :class:`ZeroOut`, and hold *if* the sample rate and the divisor of the released sum are
    constants chosen without the data set's size. With rate B/n, or a sum divided by q·n, of the private n, the
    scale of the noise tells n: no such claim then.

    Examples
    --------
    >>> str(AddRemove())
    'add-remove: one sample present, or absent; rate and divisor chosen without the number of samples'
    """

    kind: ClassVar[str] = "add-remove"
    group_size: ClassVar[int] = 1
    """Samples that change at once."""
    is_replacement: ClassVar[bool] = False
    """True if other samples come in their place."""

    def __str__(self) -> str:
        return "add-remove: one sample present, or absent; rate and divisor chosen without the number of samples"


@dataclass(frozen=True, repr=False)
class ReplaceOne(Value):
    """A sample is present, or any other one in its place, with the same coins (N1), (N2), (N11).

    Examples
    --------
    >>> str(ReplaceOne())
    'replace-one: one sample, or any other in its place'
    """

    kind: ClassVar[str] = "replace-one"
    group_size: ClassVar[int] = 1
    """Samples that change at once."""
    is_replacement: ClassVar[bool] = True
    """True if other samples come in their place."""

    def __str__(self) -> str:
        return "replace-one: one sample, or any other in its place"


@dataclass(frozen=True, repr=False)
class Group(Value):
    """All samples of one person: ``size`` of them, each with a coin of its own, change at once (N4).

    A person whose samples are drawn together and clipped together is one sample: no group.

    Parameters
    ----------
    size : int
        m, the most samples one person has, in [1, 1000].
    of : ZeroOut, AddRemove or ReplaceOne
        What happens to each of them.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Examples
    --------
    >>> Group(4)
    Group(4)
    >>> str(Group(4))
    'zero-out: up to 4 samples of one person present, or without a gradient'
    """

    kind: ClassVar[str] = "group"

    size: int
    of: ZeroOut | AddRemove | ReplaceOne = ZeroOut()

    def __post_init__(self) -> None:
        self._keep(size=check_count("size", self.size, high=LARGEST_GROUP))
        of: object = self.of
        if not isinstance(of, ZeroOut | AddRemove | ReplaceOne):
            raise ParameterError("of", self.of, "ZeroOut(), AddRemove() or ReplaceOne()")

    @property
    def group_size(self) -> int:
        """Samples that change at once."""
        return self.size

    @property
    def is_replacement(self) -> bool:
        """True if other samples come in their place."""
        return self.of.is_replacement

    def __str__(self) -> str:
        return str(self.of).replace("one sample", f"up to {self.size} samples of one person").replace("its", "their")


Neighbours: TypeAlias = ZeroOut | AddRemove | ReplaceOne | Group
_KINDS = (ZeroOut, AddRemove, ReplaceOne, Group)


def checked_neighbours(neighbours: object) -> Neighbours:
    """The relation, checked; the error names the classes there are."""
    if not isinstance(neighbours, ZeroOut | AddRemove | ReplaceOne | Group):
        allowed = "ZeroOut(), AddRemove(), ReplaceOne() or Group(size)"
        raise ParameterError("neighbours", neighbours, allowed)
    return neighbours


def neighbours_from_dict(record: Mapping[str, Any]) -> Neighbours:
    """The value that ``as_dict`` described.

    Parameters
    ----------
    record : mapping
        ``kind``, one of "zero-out", "add-remove", "replace-one" and "group", and the value's fields.

    Returns
    -------
    ZeroOut, AddRemove, ReplaceOne or Group
        The value, checked.

    Raises
    ------
    ParameterError
        If the kind is none of these, a field is not one of the value's, or a field lies outside its range.

    Examples
    --------
    >>> neighbours_from_dict(Group(4, ReplaceOne()).as_dict())
    Group(4, of=ReplaceOne())
    """
    parts = dict(record)
    if isinstance(parts.get("of"), Mapping):
        parts["of"] = neighbours_from_dict(parts["of"])
    value: Neighbours = value_from_dict("neighbours", _KINDS, parts)
    return value
