"""The common part of low-rank compressors.

That is a tensor as a matrix, factors that start from those of the step before, and the alternation of sides. A gradient
of shape (d, ...) counts as a matrix of d rows. All ranks must compute the same factors from the same
numbers, bit for bit, so they need the same BLAS with the same number of threads; nothing else here depends on it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..errors import InvalidArgument
from .casts import NARROW_DTYPES, Dense
from .contract import (
    AllReduce,
    Compressor,
    Conversation,
    Memory,
    Outcome,
    Place,
    Request,
    all_reduce_mean,
    check_gradient,
    check_whole,
    random_of,
    wide,
)
from .outcome import Product


@dataclass(frozen=True)
class LowRank(Compressor):
    """Sends a matrix as two factors.

    Attributes:
        rank: Rank of the approximation; a matrix of fewer rows or columns has theirs.
        always: Send factors even where they are no smaller than the matrix, which is sent dense otherwise.
        seed: Seed of what factors start from.
    """

    knob: ClassVar[str | None] = "rank"
    carries_nan: ClassVar[bool] = True  # a value that is not finite leaves none in its row's products
    rank: int
    always: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("rank", self.rank)

    @abstractmethod
    def factorize(self, matrix: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        """Return the conversation about a matrix, float32 or float64[m, n], neither m nor n zero."""

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        check_gradient(gradient)
        if not self.factored(gradient.shape):
            return (yield from Dense().compress(gradient, memory, place))
        matrix = gradient.detach().reshape(matrix_shape(gradient.shape)).to(wide(gradient.dtype))
        outcome = yield from self.factorize(matrix, memory, place)
        return Outcome(outcome.mean, outcome.sent, outcome.floats, gradient.shape, gradient.dtype, outcome.bound)

    def factored(self, shape: Sequence[int]) -> bool:
        """Tell whether a tensor of this shape is sent as factors."""
        m, n = matrix_shape(shape)
        return m * n > 0 and (self.always or self.rank_of(shape) * (m + n) < m * n)

    def rank_of(self, shape: Sequence[int]) -> int:
        """Return the rank of the approximation of a tensor of this shape."""
        return min(self.rank, *matrix_shape(shape))

    def floats(self, shape: Sequence[int]) -> float:
        m, n = matrix_shape(shape)
        return self.rank_of(shape) * (m + n) if self.factored(shape) else m * n

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        sent = wide(dtype) if self.factored(shape) else dtype  # factors of 16-bit gradients are float32
        return self.floats(shape) * sent.itemsize

    def start(self, key: str, rows: int, rank: int, like: torch.Tensor, memory: Memory, place: Place) -> torch.Tensor:
        """Return the factor to start from.

        It is the one in memory, cut or filled up with random columns where the rank has changed; without one, random
        orthonormal columns, the same on all ranks.

        Args:
            key: Name of the factor in memory.
            rank: Columns of the factor.
            like: A tensor of the dtype and on the device that it is to have.
            memory: The memory of the tensor.
            place: The rank and the tensor's name.
        """
        previous = memory.get(key)
        if previous is not None and len(previous) == rows and previous.shape[1] == rank:
            return previous.to(like)
        generator = random_of("low-rank", self.seed, place.name, key)
        random = orthonormal(torch.randn(rows, rank, generator=generator, dtype=torch.float32, device="cpu").to(like))
        if previous is None or len(previous) != rows:
            return random
        columns = previous[:, :rank].to(like)
        scale = torch.linalg.vector_norm(columns, dim=0).mean()
        return torch.cat([columns, random[:, columns.shape[1] :] * scale], 1)


@dataclass(frozen=True)
class Alternating(LowRank):
    """A factorization in which the factor that all ranks know, the last reduced one, stays, and the other is fitted.

    The fitted one is reduced, and at the next step they change roles.

    Attributes:
        dtype: Type in which factors are sent and added up, "float16" or "bfloat16"; None for their own.
        alternate: False if the factors never change roles.
    """

    memory_prefix: ClassVar[str]  #: of its keys in a memory: checkpoints and random starts depend on it
    dtype: str | None = None
    alternate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in (None, *NARROW_DTYPES):
            raise InvalidArgument(f"dtype must be one of {list(NARROW_DTYPES)} or None, not {self.dtype!r}")

    @abstractmethod
    def fixed(self, factor: torch.Tensor) -> torch.Tensor:
        """Return the matrix [n, rank] to fit against, from the factor that all ranks know."""

    @abstractmethod
    def fit(self, matrix: torch.Tensor, fixed: torch.Tensor) -> torch.Tensor:
        """Return the best other factor [m, rank], so that ``fit @ fixed.T`` is close to the matrix [m, n]."""

    def remember(self, mean: torch.Tensor, side: int, memory: Memory) -> None:
        """Keep an all-reduced factor for the next step: the one of columns (``side`` 0) or rows (1)."""
        memory[self._key(side)] = mean

    def factorize(self, matrix: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        rank, side = min(self.rank, *matrix.shape), int(memory.get(self._key("side"), 0))
        oriented = matrix.T if side else matrix  # rows are those of the factor to fit
        key = self._key(1 - side)
        factor = self.start(key, oriented.shape[1], rank, matrix, memory, place)
        if not self.alternate:  # nothing replaces it: drawn anew, it would cost a QR decomposition in every step
            memory[key] = factor = factor.contiguous()  # as a checkpoint restores it, so that bits stay the same
        fixed = self.fixed(factor)
        fitted = self.fit(oriented, fixed)
        mean, term = yield from self._mean(fitted, place.size)
        norm = norm_of(mean)
        if self.alternate and usable(norm):
            self.remember(mean, side, memory)
            memory[self._key("side")] = 1 - side
        floats, bound = mean.numel() * (0.5 if self.dtype else 1.0), norm * norm_of(fixed)
        if side:
            return Outcome(Product(fixed, mean), Product(fixed, term), floats, bound=bound)
        return Outcome(Product(mean, fixed), Product(term, fixed), floats, bound=bound)

    def _mean(self, fitted: torch.Tensor, size: int) -> Generator[Request, Any, tuple[torch.Tensor, torch.Tensor]]:
        """Return the mean of a factor over ranks, and this rank's term of it as it was sent."""
        if self.dtype is None:
            mean = yield from all_reduce_mean(fitted, size, preserve=True)
            return mean, fitted
        narrow = (fitted / size).to(getattr(torch, self.dtype))
        term = narrow.to(fitted.dtype) * size
        mean = yield AllReduce(narrow)
        return mean.to(fitted.dtype), term

    def _key(self, name: str | int) -> str:
        return f"{self.memory_prefix}.{name}"

    def floats(self, shape: Sequence[int]) -> float:
        """Return the floats of an average step: the two sides differ."""
        if not self.factored(shape):
            return math.prod(shape)
        m, n = matrix_shape(shape)
        return self.rank_of(shape) * ((m + n) / 2 if self.alternate else m) * (0.5 if self.dtype else 1.0)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        if self.dtype is None or not self.factored(shape):
            return super().payload_bytes(shape, dtype)
        return 4 * self.floats(shape)  # which counts a value of 16 bits as half of one

    def factored(self, shape: Sequence[int]) -> bool:
        m, n = matrix_shape(shape)
        sent = (m + n) / 2 if self.alternate else m
        return m * n > 0 and (self.always or self.rank_of(shape) * sent < m * n)


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of a tensor as a matrix."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


_ALIGNED = 16  #: bytes; at other addresses BLAS may add up a matrix times a vector in another order


def thin_product(matrix: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return a matrix [m, n], or the transposed view of one, times a factor [n, k].

    Thin products of a transposed view take twice as long as those of its memory. Bits do not depend on where the matrix
    lies, which in a bucket is anywhere, and elsewhere after a resume.
    """
    if matrix.is_contiguous():
        if factor.shape[1] == 1 and matrix.is_cpu and matrix.data_ptr() % _ALIGNED:
            matrix = matrix.clone()
        return matrix @ factor
    return (factor.T @ matrix.T).T.contiguous()


def orthonormal(matrix: torch.Tensor) -> torch.Tensor:
    """Return k orthonormal columns that span those of a matrix [m, k], k <= m, whatever its rank."""
    return torch.linalg.qr(matrix).Q


def norm_of(factor: torch.Tensor) -> float:
    """Return the L1 norm, which neither overflows nor vanishes early.

    No value of a product of factors is greater than the product of their norms.
    """
    return float(torch.linalg.vector_norm(factor, 1))


_MIN_NORM, _MAX_NORM = 2.0**-40, 2.0**40


def scaled(factor: torch.Tensor, norm: float) -> torch.Tensor:
    """Return a factor of which only the span counts, in a range in which its products neither overflow nor vanish.

    It is multiplied by a power of two where its norm is far from 1, which changes no bit of the span.

    Args:
        norm: Its norm, by :func:`norm_of`.
    """
    if _MIN_NORM <= norm <= _MAX_NORM or not usable(norm):
        return factor
    exponent = -math.frexp(norm)[1]
    half = exponent // 2  # the whole power may be beyond the range of the factor's type
    return factor * 2.0**half * 2.0 ** (exponent - half)


def usable(norm: float) -> bool:
    """Tell whether a factor of this norm can be built on: neither NaN or infinite, nor all zero.

    From a factor of zeros no fit finds a way back.
    """
    return 0 < norm < math.inf
