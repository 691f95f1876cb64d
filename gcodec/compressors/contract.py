"""The contract of compressors: an algorithm for one tensor is a conversation with the other ranks.

It is written as a generator. It yields a request, is sent the answer, and goes on, as many times as it likes; in the
end it returns an :class:`Outcome`. It never learns how ranks are connected.

    request                 answer
    AllReduce(tensor)       the sum of all ranks' tensors
    AllGather(payload)      the payloads of all ranks, in the order of ranks
    AllToAll(payloads)      what each rank had for this one; ``payloads[r]`` is for rank r

Whoever holds the generator, its driver, answers. There are three drivers, so the same code runs alone
(:func:`alone`), among simulated ranks in one process (``gcodec.averaging.simulate.run_conversations``) and on real
ranks (``gcodec.distributed``); all three give the same bits. In between, generators delegate to generators by
``yield from``. A request of PowerSGD climbs this stack to the driver, and the answer comes back down the same way:

    driver                        has the ranks: sends messages, or adds up tensors
      Adaptive.average            adaptive/driver: under a controller, which chooses settings
        Adaptive.part             adaptive/driver: some of a step's gradients
          Averager.average        averaging/averager: all gradients of a bucket, by name
            batch_conversations   batching: one request per kind and round, for all tensors at once
              Averager._one       averaging/averager: one tensor: error feedback before and after
                compress          lowrank: the tensor as a matrix
                  factorize       powersgd: P = M Q, then Q = M^T P
                    all_reduce_mean   here: yields AllReduce

Two rules keep ranks together:

1. All ranks yield the same kinds of request in the same order, an ``AllReduce`` of the same shape and dtype. So a
   branch may depend on settings, shapes and answers, never on a rank's own values.
2. The average is computed from answers alone, in one order. Then it is the same on all ranks, bit for bit.

A complete compressor, a file beside this one: it sends the signs of a gradient, a bit each, and their mean size.

    '''MeanSign sends a bit for each value, its sign, and the mean size of all values.'''

    from __future__ import annotations

    import math
    import struct
    from collections.abc import Sequence
    from dataclasses import dataclass

    import torch

    from .bit_packing import pack_bits, packed_size, unpack_bits
    from .contract import AllGather, Compressor, Conversation, Memory, Outcome, Place, check_gradient, sum_by_rank, wide
    from .payload import ENVELOPE, QUANTIZED, errors_of_rank, seal, unseal


    @dataclass(frozen=True)
    class MeanSign(Compressor):
        '''Sends each value as plus or minus the mean size of the tensor's values; 0 as plus.'''

        def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
            check_gradient(gradient)
            size = float(gradient.abs().sum(dtype=torch.float64)) / max(gradient.numel(), 1)
            signs = pack_bits((gradient < 0).reshape(-1).cpu().numpy().view("u1"), 1)
            sealed = seal(QUANTIZED, gradient.dtype, gradient.numel(), struct.pack("<d", size), signs)
            payloads = yield AllGather(sealed)
            terms = [self.unpack(payload, rank, gradient) for rank, payload in enumerate(payloads)]
            average = sum_by_rank(terms, torch.empty_like(terms[0])).div_(place.size).to(gradient.dtype)
            return Outcome(average, terms[place.rank], self.floats(gradient.shape))

        def unpack(self, payload: bytes, rank: int, like: torch.Tensor) -> torch.Tensor:
            '''Return what a rank has sent, in the dtype in which it is added up.'''
            with errors_of_rank(rank):
                body = unseal(payload, QUANTIZED, like.dtype, like.numel())
                signs = unpack_bits(body[8:], like.numel(), 1)
            (size,) = struct.unpack_from("<d", body)
            values = torch.from_numpy(signs).to(like.device, wide(like.dtype)).mul_(-2 * size).add_(size)
            return values.view(like.shape)

        def floats(self, shape: Sequence[int]) -> float:
            return math.prod(shape) / 32 + 1

        def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
            return ENVELOPE + 8 + packed_size(math.prod(shape), 1)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
import xxhash

from ..dtypes import DTYPES
from ..errors import InvalidArgument, check_field_types
from .outcome import Outcome as Outcome

Memory = dict[str, Any]
"""State that a compressor keeps of one tensor from step to step: tensors, numbers and strings by name. Nothing else may
be state, so that a checkpoint has it all. The names stand in checkpoints."""

TYPES = tuple(getattr(torch, t.name) for t in DTYPES if t.reducible)  #: of gradients
_WIDE = {getattr(torch, t.name): torch.float32 for t in DTYPES if t.sums_in_float32}


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
    """Asks for all ranks' payloads.

    Attributes:
        payload: This rank's bytes, of any length.
    """

    payload: bytes


class AllToAll(NamedTuple):
    """Asks for what every rank has for this one.

    Attributes:
        payloads: One for each rank, by rank, this one included.
    """

    payloads: Sequence[bytes]


Request = AllReduce | AllGather | AllToAll


Conversation = Generator[Request, Any, Outcome]


@dataclass(frozen=True)
class Place:
    """The rank and tensor that a conversation is about.

    Attributes:
        rank: This rank, from 0.
        size: The number of ranks.
        name: The tensor's name, the same on all ranks.
        param: The parameter whose gradient the tensor is, for compressors that look at it.
    """

    rank: int = 0
    size: int = 1
    name: str = ""
    param: torch.Tensor | None = None


class Compressor(ABC):
    """A setting of an algorithm: a frozen dataclass whose repr is the call, and is compared between ranks.

    What changes from step to step lives in a :data:`Memory`.

    Attributes:
        knob: The name of the field that says how much is sent: "density", "rank" or "bits"; None for no such field.
        carries_nan: NaN and infinity arrive where they were. Otherwise the caller makes the whole tensor NaN, so that
            the average of no rank is finite.
    """

    knob: ClassVar[str | None] = None
    carries_nan: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_field_types(self)

    @abstractmethod
    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        """Return the conversation about a gradient.

        Args:
            gradient: Of any shape, one of ``TYPES``; it is not written to.
            memory: What this compressor has kept of the tensor; changed in place.
            place: The rank and the tensor's name.

        Returns:
            A generator that yields requests and returns an :class:`Outcome`.
        """

    @abstractmethod
    def floats(self, shape: Sequence[int]) -> float:
        """Return how many floats a rank sends of a tensor of this shape, as :class:`Outcome` counts them.

        Where that depends on the values it is an estimate.
        """

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        """Return how many bytes a rank hands over of a tensor of this shape and dtype, or an estimate."""
        return self.floats(shape) * dtype.itemsize

    def at(self, value: float) -> Self:
        """Return the algorithm with another value of its knob, and all else as it is.

        Raises:
            InvalidArgument: For a compressor without a knob, or a value that the knob cannot have.
        """
        if self.knob is None:
            raise InvalidArgument(f"{self!r} has no knob to set: no density, rank or bits")
        return replace(self, **{self.knob: value})  # type: ignore[type-var]

    @property
    def value(self) -> float:
        """The current value of the knob. Raises InvalidArgument for a compressor without one, or whose knob is None."""
        value = None if self.knob is None else getattr(self, self.knob)
        if value is None:
            raise InvalidArgument(f"{self!r} has no knob, or no value of it: no density, rank or bits")
        return float(value)

    def check_feedback(self) -> None:  # noqa: B027 - most go with it
        """Raise InvalidArgument if what is lost may exceed the gradient, so that error feedback would diverge."""

    def decompressed(self, tensor: torch.Tensor, steps: int = 1, memory: Memory | None = None) -> Outcome:
        """Return the outcome on a single rank.

        Args:
            tensor: What to compress.
            steps: How often to compress it, for algorithms that get better on the way; five are usual for low ranks.
            memory: Where to start from; by default an empty one.

        Raises:
            InvalidArgument: ``steps`` is no integer of at least 1, or the tensor cannot be compressed.
        """
        check_whole("steps", steps)
        memory = {} if memory is None else memory
        for _ in range(steps):
            outcome = alone(self.compress(tensor, memory, Place()))
        return outcome

    def error(self, tensor: torch.Tensor, steps: int = 1) -> float:
        """Return the squared L2 norm of what is lost of a tensor; ``steps`` as in :meth:`decompressed`."""
        lost = tensor - self.decompressed(tensor, steps).contribution
        return float(lost.double().square().sum())


def all_reduce_mean(tensor: torch.Tensor, size: int, preserve: bool = False) -> Generator[Request, Any, torch.Tensor]:
    """Return the mean over ranks of a tensor, by one :class:`AllReduce`.

    As in DDP, float16 and bfloat16 are divided before they are added up, so that sums stay in range; the others after.

    Args:
        tensor: This rank's term; its memory is used up unless ``preserve``.
        size: The number of ranks.
        preserve: Leave ``tensor`` as it is.
    """
    narrow = wide(tensor.dtype) is not tensor.dtype
    mean: torch.Tensor = yield (AllReduce(tensor / size) if narrow else AllReduce(tensor, size, preserve))
    return mean


def drive(conversation: Generator[Request, Any, Any], answer_to: Callable[[Request], Any]) -> Any:
    """Run a conversation, whose requests ``answer_to`` answers, and return its result."""
    answer: Any = None
    while True:
        try:
            request = conversation.send(answer)
        except StopIteration as end:
            return end.value
        answer = answer_to(request)


def alone(conversation: Generator[Request, Any, Any]) -> Any:
    """Run a conversation on the only rank there is, and return its result. Raises InvalidArgument for anything else."""
    check_conversation(conversation)
    return drive(conversation, _answer_to_one)


def _answer_to_one(request: Request) -> Any:
    match request:
        case AllReduce():
            return request.result(request.buffer())
        case AllGather(payload):
            return [payload]
        case AllToAll(payloads):
            return list(payloads)


def sum_by_rank(terms: Iterable[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """Add up tensors in the order in which they come: the one sum behind every :class:`AllReduce`.

    Wherever a value lies in a buffer, its terms are added by rank, so results do not depend on how tensors are grouped.
    float16 and bfloat16 are added up in float32, and rounded once.
    ``distributed.reduction.summation.RankSum`` makes the same sums of a codec's frames, one decoded at a time.

    Args:
        terms: Each rank's tensor, by rank, of ``out``'s shape, and its dtype or a narrower one.
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


def parts_of(n_values: int, size: int, multiple: int = 1) -> list[slice]:
    """Divide a flat tensor of ``n_values`` into one contiguous part per rank, as even as can be; empty ones last.

    All-reduces that send a buffer in pieces divide it in another way, ``distributed.reduction.partition.shares``.

    Args:
        n_values: The number of values.
        size: The number of ranks.
        multiple: Every part but the last one that is not empty has a multiple of this many values.

    Returns:
        Each rank's part, by rank.
    """
    length = -(-n_values // (size * multiple)) * multiple
    return [slice(min(r * length, n_values), min((r + 1) * length, n_values)) for r in range(size)]


def check_gradient(gradient: torch.Tensor, name: str = "") -> None:
    """Raise InvalidArgument for anything but a dense tensor of floats; ``name``: the tensor's name, if it is known."""
    subject = f"gradient of {name!r}" if name else "gradient"
    if not torch.is_tensor(gradient):
        raise InvalidArgument(f"{subject} must be a torch tensor, not a {type(gradient).__name__}")
    if gradient.layout != torch.strided or gradient.dtype not in TYPES:
        raise InvalidArgument(
            f"{subject} must be a dense tensor of one of {', '.join(map(str, TYPES))}, not a {gradient.layout} tensor "
            f"of {gradient.dtype}"
        )


def check_conversation(conversation: Any) -> None:
    """Raise InvalidArgument for anything but a generator, as ``compress`` and ``average`` return."""
    if not isinstance(conversation, Generator):
        raise InvalidArgument(
            f"conversation must be a generator of requests, as a compressor's compress() returns, not a "
            f"{type(conversation).__name__}"
        )


def check_share(name: str, value: float) -> None:
    """Raise InvalidArgument unless 0 < value <= 1."""
    if not 0 < value <= 1:
        raise InvalidArgument(f"{name} must be above 0 and at most 1, not {value!r}")


def check_whole(name: str, value: int, minimum: int = 1, maximum: float = math.inf) -> None:
    """Raise InvalidArgument for anything but an integer of this range."""
    if type(value) is not int or not minimum <= value <= maximum:
        limit = f"at least {minimum}" if maximum == math.inf else f"in {minimum} ... {maximum}"
        raise InvalidArgument(f"{name} must be an integer, {limit}, not {value!r}")


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of ``dtype`` are added up."""
    return _WIDE.get(dtype, dtype)


def n_kept(n_values: int, density: float) -> int:
    """Return how many of ``n_values`` values a density keeps: rounded, and at least one if there are any."""
    return min(n_values, max(1, round(n_values * density)))


def tick(memory: Memory) -> int:
    """Return the number of this step, from 0, and count it: the next call returns one more."""
    step = int(memory.get("step", 0))
    memory["step"] = step + 1
    return step


def key_of(*facts: Any) -> int:
    """Return 64 bits that depend on these numbers and strings alone, as the seed of random numbers.

    Compressors never use a global generator, so nothing has to be saved but a count of steps.
    """
    return xxhash.xxh3_64_intdigest(repr(facts).encode())


def random_of(*facts: Any) -> torch.Generator:
    """Return a generator of random numbers, on the CPU, seeded by :func:`key_of`."""
    return torch.Generator().manual_seed(key_of(*facts) >> 1)
