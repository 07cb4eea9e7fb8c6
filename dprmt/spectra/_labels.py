"""Labels of pandas and xarray objects, kept by functions whose answer has the shape of what they are given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])


def keeps_labels(function: Function) -> Function:
    """The same function; a labelled first argument gives a labelled answer. Neither library is ever imported."""
    first = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def labelled(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get(first)
        answer = function(*args, **kwargs)
        return relabelled(answer, given) if hasattr(given, "to_numpy") else answer

    return cast(Function, labelled)


def relabelled(values: Any, like: Any) -> Any:
    """The values with the labels of a Series, a DataFrame or a DataArray of their shape."""
    if np.shape(values) != like.shape:
        return values
    if hasattr(like, "dims"):  # xarray
        return like.copy(data=values)
    axes = {"columns": like.columns} if hasattr(like, "columns") else {"name": like.name}
    return type(like)(np.asarray(values), index=like.index, **axes)
