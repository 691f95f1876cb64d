"""What every compressor is: a conversation.

An algorithm for one tensor is a generator. It yields what it wants from the other ranks and is sent the answer, as many
times as it likes; in the end it returns an :class:`Outcome`. It never learns how ranks are connected, so the same code
runs among simulated ranks in one process (``gcodec.averaging.simulate``), on real ones (``gcodec.distributed``), and
alone.

    AllReduce(tensor)    -> the sum of all ranks' tensors
    AllGather(payload)   -> the payloads of all ranks, in the order of ranks
    AllToAll(payloads)   -> what each rank had for this one; ``payloads[r]`` is for rank r

Two rules keep ranks together. All ranks must yield the same kinds of request in the same order, an ``AllReduce`` of the
same shape and dtype: so a branch may depend on settings, shapes and answers, never on a rank's own values. And the
average must be computed from answers alone, in one order: then it is the same on all ranks, bit for bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
import xxhash

from ..errors import InvalidArgument
from .outcome import Outcome as Outcome

Memory = dict[str, Any]
"""What a compressor keeps of one tensor from step to step: tensors, numbers and strings by name. Nothing else may be
state, so that a checkpoint has it all."""

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  #: of gradients
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class AllReduce(NamedTuple):
    """Asks for the sum of all ranks' dense tensors, in their dtype and in the order of ranks, divided by ``divisor``.

    Ownership of the tensor passes to the driver, which may reuse its memory for the result, unless ``preserve``.

    Attributes:
        tensor: This rank's term; shape and dtype are the same on all ranks.
        divisor: The sum is divided by this many.
        preserve: The tensor's memory must stay as it is.
    """

    tensor: torch.Tensor
    divisor: int = 1
    preserve: bool = False

    def buffer(self) -> torch.Tensor:
        """Return contiguous memory with the tensor's values, which the driver may overwrite with the result."""
        return self.tensor.clone(memory_format=torch.contiguous_format) if self.preserve else self.tensor.contiguous()

    def result(self, total: torch.Tensor) -> torch.Tensor:
        """Return the answer for the sum ``total``, in its memory."""
        return total if self.divisor == 1 else total.div_(self.divisor)


class AllGather(NamedTuple):
    """Asks for all ranks' payloads: bytes, of any length each."""

    payload: bytes


class AllToAll(NamedTuple):
    """Asks for what every rank has for this one; gives one payload for each rank, its own included."""

    payloads: Sequence[bytes]


Request = AllReduce | AllGather | AllToAll


Conversation = Generator[Request, Any, Outcome]


@dataclass(frozen=True)
class Place:
    """Where a conversation takes place. ``rank`` of ``size``; ``name`` of the tensor, the same on all ranks; ``param``:
    the parameter whose gradient it is, where a compressor wants to see it."""

    rank: int = 0
    size: int = 1
    name: str = ""
    param: torch.Tensor | None = None


class Compressor(ABC):
    """A setting of an algorithm: a frozen dataclass whose repr is the call. What changes lives in a :data:`Memory`."""

    knob: ClassVar[str | None] = None  #: the field that says how much is sent: density, rank, bits
    carries_nan: ClassVar[bool] = False  #: NaN and infinity arrive where they were; else the tensor is to be all NaN

    @abstractmethod
    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        """The conversation about a gradient: any shape, one of ``TYPES``; it is not written to."""

    @abstractmethod
    def floats(self, shape: Sequence[int]) -> float:
        """Floats that a rank sends of a tensor of this shape, as :class:`Outcome` counts them; where that depends on
        the values, about how many."""

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        """Bytes that a rank hands over of such a tensor, or about how many."""
        return self.floats(shape) * dtype.itemsize

    def at(self, value: float) -> Self:
        """The same algorithm with another value of its knob. Raises InvalidArgument where it has none."""
        if self.knob is None:
            raise InvalidArgument(f"{self!r} has nothing to set")
        return replace(self, **{self.knob: value})  # type: ignore[type-var]

    @property
    def value(self) -> float:
        """Of its knob. Raises InvalidArgument where it has none."""
        if self.knob is None:
            raise InvalidArgument(f"{self!r} has nothing to set")
        return float(getattr(self, self.knob))

    def decompressed(self, tensor: torch.Tensor, steps: int = 1, memory: Memory | None = None) -> Outcome:
        """What a single rank makes of a tensor: ``steps`` times over, for algorithms that get better on the way (five
        are usual for low ranks), from an empty memory unless one is given."""
        memory = {} if memory is None else memory
        for _ in range(steps):
            outcome = alone(self.compress(tensor, memory, Place()))
        return outcome

    def error(self, tensor: torch.Tensor, steps: int = 1) -> float:
        """The squared L2 norm of what is lost of a tensor; ``steps`` as in :meth:`decompressed`."""
        lost = tensor - self.decompressed(tensor, steps).contribution
        return float(lost.double().square().sum())


def all_reduce_mean(tensor: torch.Tensor, size: int, preserve: bool = False) -> Generator[Request, Any, torch.Tensor]:
    """The mean over ``size`` ranks of a tensor, which is used up unless ``preserve``. As in DDP, float16 and bfloat16
    are divided before they are added up, so that sums stay in range; the others after."""
    narrow = wide(tensor.dtype) is not tensor.dtype
    mean: torch.Tensor = yield (AllReduce(tensor / size) if narrow else AllReduce(tensor, size, preserve))
    return mean


def alone(conversation: Generator[Request, Any, Any]) -> Any:
    """What a conversation comes to on the only rank there is."""
    answer: Any = None
    while True:
        try:
            request = conversation.send(answer)
        except StopIteration as end:
            return end.value
        match request:
            case AllReduce():
                answer = request.result(request.buffer())
            case AllGather(payload):
                answer = [payload]
            case AllToAll(payloads):
                answer = list(payloads)


def sum_by_rank(terms: Iterable[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """Add up tensors in the order in which they come: the one sum behind every :class:`AllReduce`.

    Wherever a value lies in a buffer, its terms are added by rank, so results do not depend on how tensors are grouped.
    float16 and bfloat16 are added up in float32, and rounded once.

    Args:
        terms: Each rank's tensor, by rank, of ``out``'s shape and dtype.
        out: Where the sum goes; none of the terms.

    Returns:
        ``out``.
    """
    total = out if wide(out.dtype) is out.dtype else torch.empty_like(out, dtype=wide(out.dtype))
    for number, term in enumerate(terms):
        if number:
            total.add_(term)
        else:  # not added to zero, which would lose the sign of -0
            total.copy_(term)
    return out if total is out else out.copy_(total)


def parts_of(n_values: int, size: int) -> list[slice]:
    """Divide a flat tensor of ``n_values`` into one contiguous part per rank, as even as can be; empty ones last."""
    length = -(-n_values // size)
    return [slice(min(r * length, n_values), min((r + 1) * length, n_values)) for r in range(size)]


def check_gradient(gradient: torch.Tensor) -> None:
    """Raises InvalidArgument for what is not a dense tensor of floats."""
    if gradient.layout != torch.strided or gradient.dtype not in TYPES:
        raise InvalidArgument(f"cannot compress a {gradient.layout} tensor of {gradient.dtype}")


def check_share(name: str, value: float) -> None:
    """Raises InvalidArgument unless 0 < value <= 1."""
    if not 0 < value <= 1:
        raise InvalidArgument(f"{name}={value!r} is not in (0, 1]")


def check_whole(name: str, value: int, least: int = 1, most: float = math.inf) -> None:
    """Raises InvalidArgument for what is not an integer of a range."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{name}={value!r} is not an integer in {least} ... {most}")


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of ``dtype`` are added up."""
    return _WIDE.get(dtype, dtype)


def n_kept(n_values: int, density: float) -> int:
    """How many of ``n_values`` a density keeps: rounded, but at least one of any."""
    return min(n_values, max(1, round(n_values * density)))


def tick(memory: Memory) -> int:
    """The number of this step, from 0; the next call's is one more."""
    step = int(memory.get("step", 0))
    memory["step"] = step + 1
    return step


def key_of(*facts: Any) -> int:
    """64 bits that depend on these numbers and strings alone: what random numbers follow from. Never a global
    generator, so that nothing has to be saved but a count of steps."""
    return xxhash.xxh3_64_intdigest(repr(facts).encode())


def random_of(*facts: Any) -> torch.Generator:
    """A generator of random numbers, on the CPU, by :func:`key_of`."""
    return torch.Generator().manual_seed(key_of(*facts) >> 1)
