"""Arguments of the kernels that choose levels, ``source/levels.cu``: rows and kinds of arrays.

A block of the grid does 2**14 values of one tensor; a table has a row for each tensor, so that a launch does many. All
kernels take the same arguments:

* the five arrays that rules read, from which all tensors' are reached: gradient, parameter, and state: momentum (SGD),
  squares (AdaGrad, RMSProp), or mean (Adam); momentum (RMSProp), or squares (Adam); the squares' maximum (Adam);
* the :class:`FloatKinds` that they hold;
* ``rows``: int64[n, 10], columns below, and ``owner``: int32[n_blocks], the row of each block;
* ``constants``: float32[m, ...], as ``k`` of :mod:`gcodec.kernels.levels.terms`; ``thresholds``: float32[m, 15], padded
  with infinity;
* ``out``: uint8, results.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

THRESHOLDS = 15
#: Columns of the table: where gradient, parameter and state begin, in elements of their arrays, -1 where there is none;
#: how many values; number of the first block in the launch; which constants; where the levels go; the highest level.
GRAD, PARAM, FIRST, SECOND, THIRD, COUNT, BLOCK_AT, WHICH, OUT, TOP = range(10)


class RuleArrays(NamedTuple):
    """The arrays that rules read, from which all tensors' are reached: uint16 or uint32, as :class:`FloatKinds` says.

    Attributes:
        grads: Gradients.
        params: Parameters.
        first: State: momentum (SGD), squares (AdaGrad, RMSProp, Adadelta), or mean (Adam, Adamax).
        second: State: momentum (RMSProp), squares (Adam) or those of updates (Adadelta), or max magnitude (Adamax).
        third: State: the squares' maximum (Adam).
    """

    grads: Any
    params: Any
    first: Any
    second: Any
    third: Any


class FloatKinds(NamedTuple):
    """Kinds of floats that the :class:`RuleArrays` hold, as :class:`~gcodec.dtypes.DType` numbers them; all uint32.

    Attributes:
        grads: Kind of the gradients.
        params: Kind of the parameters.
        first: Kind of the first state array.
        second: Kind of the second state array.
        third: Kind of the third state array.
    """

    grads: np.uint32
    params: np.uint32
    first: np.uint32
    second: np.uint32
    third: np.uint32
