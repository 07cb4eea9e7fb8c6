"""Why some words of other statements are not covered: for the error that names them."""

_BOUNDED = "; of this release only a bound is known, whose curve is a formula: docs/theory/batches.md"
_WHY = {
    "laplace": "; the curve of Laplace noise is a formula: docs/theory/batches.md",
    **dict.fromkeys(("approximate", "gaussian-dp", "zcdp", "renyi"), _BOUNDED),
    "also": ": a release is a phase with a mechanism of kind gaussian, and other kinds are outside",
    "parallel": ": judge each run on disjoint data by itself, and the largest ε counts",
}


def why(word: object) -> str:
    """The reason, to be put behind the word; nothing where there is none to say."""
    return _WHY.get(str(word), "")
