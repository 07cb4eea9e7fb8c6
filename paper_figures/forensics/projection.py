"""DP-GRAPE's numbers beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from paper_figures._reproduction import Row
from paper_figures._verdict import Reason
from paper_figures.forensics._check import Check, Reader, statement


def gaps(read: Reader) -> Sequence[Row]:
    """12.1 points behind DP-Adam, of which DP-GRAPE is within one: 11.1 to 12.1 behind DP-GRAPE."""
    mean = read("grape-order").number("value", quantity="points")
    within = read("grape-accuracy").number("value", quantity="points")
    words = read("text-grape")
    least, most = (
        words.number("value", quantity=f"naive DP-GaLore behind DP-GRAPE, {end} points") for end in ("least", "most")
    )
    label = "naive DP-GaLore behind DP-Adam on MNIST, less the most that DP-GRAPE is"
    claim = f"{least:g} to {most:g} points behind DP-GRAPE, after Table 6"
    return [statement(label, mean - within, claim, (least, most), [mean, within, least, most], unit="points")]


def savings(read: Reader) -> Sequence[Row]:
    """About 60 % for a ViT, and 63 to 70 % for all."""
    low, high = (
        read("grape-memory").number("value", quantity=f"memory saved, {end}") for end in ("smallest", "largest")
    )
    vit = read("grape-vit").number("value", quantity="memory saved, about")
    claim = f"{low:g} to {high:g} %, to 5 points, since it is said to be about"
    return [statement("ViT-Base on CIFAR-10", vit, claim, (low - 5, high + 5), [vit, low, high], unit="%")]


CHECKS = (
    Check(
        "grape-gaps",
        "Gaps of the naive order",
        "12.1 points behind DP-Adam in section 5.1; DP-GRAPE is within one point of DP-Adam; 5 to 10 points behind"
        " DP-GRAPE are expected after Table 6.",
        gaps,
        (Reason("open", "the notes do not have Table 6; 12.1 is of MNIST, and 5 to 10 of a task that is not named."),),
    ),
    Check("grape-savings", "Memory saved, in two places", "About 60 % beside 63 to 70 %.", savings),
)
