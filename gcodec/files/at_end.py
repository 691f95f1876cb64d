"""Calls at the end of an object that nobody closes, in which no Python runs: an interrupt in that would be lost.

CPython drops whatever is raised in a finalizer, also the exception of a signal's handler. Handlers run between two
bytecodes, so they never do in calls of functions that are written in C.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

#: What refers to objects whose end is awaited. Of objects that end together, in a cycle, only such calls are made as
#: are referred to from elsewhere.
_references: dict[object, weakref.ref[Any]] = {}


def call_at_end(owner: object, *calls: Callable[[], Any]) -> None:
    """Have calls made, in order, at the end of an object.

    Args:
        owner: The object.
        calls: Functions in C, such as ``file.close``, that return None, and do not refer to ``owner``. One that raises
            is the last.
    """
    key, call = object(), cast(Any, operator.call)
    results: Iterator[Any] = map(call, (partial(operator.delitem, _references, key), *calls))
    # The reference calls with itself: ``next(iterator, reference)``. The iterator's one value is ``any(results)``, for
    # which all calls are made, as None is false.
    _references[key] = weakref.ref(owner, partial(next, map(any, (results,))))
