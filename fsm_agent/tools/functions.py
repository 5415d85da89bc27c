"""What a callable really is, behind partials and instances."""

from __future__ import annotations

import functools
import inspect
from typing import Any


def innermost(function: Any) -> Any:
    """The callable inside of partials."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def name_of(function: Any) -> str:
    """Its own name, or that of its class."""
    target = innermost(function)
    return str(getattr(target, "__name__", type(target).__name__))


def is_async(function: Any) -> bool:
    """Whether calling it gives something to await: `async def`, or an object called like one."""
    target = innermost(function)
    call = getattr(type(target), "__call__", None)  # noqa: B004 - the function, not whether it is
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(call)
