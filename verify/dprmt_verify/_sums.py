"""Sums of independent whole numbers: exact products of integer polynomials, rounded to one side (V3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from flint import fmpz, fmpz_poly


@dataclass(frozen=True)
class Masses:
    """Masses of whole numbers, under one measure or two, in units of 2^-bits.

    Attributes
    ----------
    parts : list of lists
        For each measure the masses of ``first``, ``first + 1``, …
    rounding : tuple of int
        For each measure 1 if its masses are at least the true ones, 0 if at most.
    halve : function
        What of an odd number's mass goes to the even number below and above it when numbers are halved, at a level.
    lost : fmpz
        Mass of the first measure that was left out, at least.
    level : int
        How often numbers were halved.
    """

    parts: list[list[fmpz]]
    rounding: tuple[int, ...]
    first: int
    bits: int
    halve: Callable[[int], tuple[fmpz, fmpz]]
    lost: fmpz = fmpz(0)  # noqa: RUF009
    level: int = 0

    def __len__(self) -> int:
        return len(self.parts[0])

    @cached_property
    def tails(self) -> list[list[fmpz]]:
        """For each measure the masses of all numbers from each one on, and of none."""
        return [[*accumulate(reversed(part), initial=fmpz(0))][::-1] for part in self.parts]

    def times(self, other: Masses) -> Masses:
        """Of the sum of two numbers, at the level of the higher one."""
        if self.level != other.level:
            return self.at_level(other.level).times(other.at_level(self.level))
        parts = []
        for mine, others, up in zip(self.parts, other.parts, self.rounding, strict=True):
            factor = fmpz_poly(mine)
            product = (factor * (factor if others is mine else fmpz_poly(others))).coeffs()
            product += [fmpz(0)] * (len(mine) + len(others) - 1 - len(product))
            parts.append([(mass >> self.bits) + up for mass in product])
        lost = self.lost * sum(other.parts[0], other.lost) + other.lost * sum(self.parts[0], fmpz(0))
        return replace(self, parts=parts, first=self.first + other.first, lost=(lost >> self.bits) + 1)

    def clipped(self, spare: fmpz) -> Masses:
        """Without the numbers at either end that hold up to ``spare`` of the first measure."""
        start, low = _tail(self.parts[0], spare)
        end, high = _tail(self.parts[0][:start:-1], spare)
        parts = [part[start : len(self) - end] for part in self.parts]
        return replace(self, parts=parts, first=self.first + start, lost=self.lost + low + high)

    def coarser(self) -> Masses:
        """Of half the number, an even one next to it."""
        (down, up), start = self.halve(self.level), self.first // 2
        parts = []
        for part, rounding in zip(self.parts, self.rounding, strict=True):
            masses = [fmpz(0)] * ((self.first + len(self)) // 2 + 1 - start)
            for number, mass in enumerate(part, self.first):
                if number % 2:
                    masses[number // 2 - start] += (mass * down >> self.bits) + rounding
                    masses[number // 2 + 1 - start] += (mass * up >> self.bits) + rounding
                else:
                    masses[number // 2 - start] += mass
            parts.append(masses)
        return replace(self, parts=parts, first=start, level=self.level + 1)

    def at_level(self, level: int) -> Masses:
        """At this level or a higher one."""
        return self if self.level >= level else self.coarser().at_level(level)

    def power(self, count: int, spare: fmpz, deviation: float, longest: int, cells: float) -> Masses:
        """Of the sum of so many; up to ``spare`` a number may be clipped, each time, at either end.

        ``deviation``: of one number, at level 0. Numbers are halved where there are more than ``longest`` of them, or
        more than ``cells`` in a standard deviation of the sum: floats choose here, they prove nothing.
        """
        step = result = self.clipped(spare).thinned(deviation, longest, cells)
        for done in (count >> shift for shift in range(count.bit_length() - 2, -1, -1)):
            result = result.times(result)
            if done % 2:
                result = result.times(step)
            result = result.clipped(spare * done).thinned(deviation * math.sqrt(done), longest, cells)
        return result

    def thinned(self, deviation: float, longest: int, cells: float) -> Masses:
        """Halved as long as that is called for."""
        if len(self) > longest or deviation > cells * 2**self.level:
            return self.coarser().thinned(deviation, longest, cells)
        return self


def _tail(masses: list[fmpz], spare: fmpz) -> tuple[int, fmpz]:
    """How many of the first masses sum to at most ``spare``, not all of them, and to what."""
    total = fmpz(0)
    for count, mass in enumerate(masses[:-1]):
        if total + mass > spare:
            return count, total
        total += mass
    return max(len(masses) - 1, 0), total
