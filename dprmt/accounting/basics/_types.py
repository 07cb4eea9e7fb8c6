"""Array types of this room."""

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""float64 throughout; stated in docstrings rather than in types, which scipy's untyped results would lose."""
