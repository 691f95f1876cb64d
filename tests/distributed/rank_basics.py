"""What the cases of all ranks share: values and sums that every rank knows, a network and its batches, faults."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import gcodec
from gcodec.distributed.reduction import bypass as bypasses
from gcodec.distributed.reduction import coder, reduce, ways
from gcodec.distributed.transport import message
from tests.support.laws import bits_of

WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def rank() -> int:
    """This rank."""
    return dist.get_rank()


def size() -> int:
    """All ranks."""
    return dist.get_world_size()


def crc(tensors: Sequence[torch.Tensor]) -> int:
    """Return one number for the bits of tensors."""
    return zlib.crc32(b"".join(bits_of(tensor).tobytes() for tensor in tensors))


def values_at(who: int, n_values: int, dtype: torch.dtype, kind: str = "normal") -> torch.Tensor:
    """Return what rank ``who`` brings, known to all."""
    random = torch.Generator().manual_seed(1000 + who)
    values = torch.randn(n_values, generator=random) * 0.01
    if kind == "sparse":
        values[torch.rand(n_values, generator=random) < 0.7] = 0
    elif kind == "extreme":
        values *= torch.exp(torch.rand(n_values, generator=random) * 170 - 85)
    elif kind == "special":
        special = torch.tensor([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3e38, -3e38])
        at = torch.randint(0, 40, (n_values,), generator=random)
        values = torch.where(at < len(special), special[at.clamp(max=len(special) - 1)], values)
    return values.to(dtype)


def all_terms(n_values: int, dtype: torch.dtype = torch.float32, kind: str = "normal") -> list[torch.Tensor]:
    """Return what all ranks bring, by rank."""
    return [values_at(who, n_values, dtype, kind) for who in range(size())]


def from_all(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that ranks have in this one's place, by rank."""
    everywhere = [torch.empty_like(tensor) for _ in range(size())]
    dist.all_gather(everywhere, tensor.detach())
    return everywhere


def dense_sum(tensors: Sequence[torch.Tensor], mean: bool) -> torch.Tensor:
    """Return the sum in the order of ranks: the law of lossless mode."""
    dtype = tensors[0].dtype
    total = tensors[0].to(WIDE.get(dtype, dtype))
    for other in tensors[1:]:
        total = total + other.to(total.dtype)
    return (total / len(tensors) if mean else total).to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare bits; any NaN equals any other."""
    both = torch.isnan(a) & torch.isnan(b)
    return a.dtype == b.dtype and bool((both | torch.from_numpy(bits_of(a) == bits_of(b)).view(a.shape)).all())


class Net(nn.Module):
    """A small network: several buckets of 1 MB, odd sizes, a tiny bias; with a branch that some batches leave out."""

    def __init__(self, branch: bool = False, narrow: bool = False, images: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.images, self.narrow = images, narrow
        first: nn.Module = nn.Conv2d(3, 64, 3, padding=1) if images else nn.Linear(48, 500)
        self.first = first
        self.deep = nn.Conv2d(64, 500, 4) if images else nn.Linear(500, 701)
        self.branch = nn.Linear(701 if not images else 500, 333) if branch else None
        self.last = nn.Linear(500 if images else 701, 333)
        self.head = nn.Linear(333, 10)
        if images:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if narrow:
            self.last.to(torch.bfloat16)

    def forward(self, x: torch.Tensor, use_branch: bool = True) -> torch.Tensor:
        """Scores."""
        if self.images:
            x = self.deep(torch.relu(self.first(x.view(-1, 3, 4, 4)))).flatten(1)
        else:
            x = self.deep(torch.relu(self.first(x)))
        x = torch.relu(x)
        wide = self.last(x.to(self.last.weight.dtype)).to(x.dtype)
        if self.branch is not None and use_branch:
            wide = wide + self.branch(x)
        return self.head(wide)


def batch_of(step: int, images: bool = False, n: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's batch."""
    random = torch.Generator().manual_seed(step * 100 + rank())
    return torch.randn(n, 48, generator=random), torch.randint(0, 10, (n,), generator=random)


def loss_at(step: int, model: Callable[..., torch.Tensor], *more: Any) -> torch.Tensor:
    """Return the loss of a network, to which ``more`` is handed on, at this rank's batch of a step."""
    x, y = batch_of(step)
    return nn.functional.cross_entropy(model(x, *more).float(), y)


def take_steps(steps: Iterable[int], model: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer) -> float:
    """Train a network by these steps, at whose ends its gradients are there; return the last loss."""
    loss = torch.zeros(())
    for step in steps:
        optimizer.zero_grad()
        loss = loss_at(step, model)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def parts_of_step(wrapped: Any, n_parts: int) -> Iterator[int]:
    """Yield the numbers of a step's batches, of which DDP averages gradients with the last one only."""
    for part in range(n_parts):
        with wrapped.no_sync() if part < n_parts - 1 else contextlib.nullcontext():
            yield part


class Heard(NamedTuple):
    """What has been raised here.

    Attributes:
        kind: The error's class; empty if there was none.
        text: Its text.
    """

    kind: str = ""
    text: str = ""

    @property
    def line(self) -> str:
        """Both, as the last line of a traceback; empty if there was no error."""
        return f"{self.kind}: {self.text}" if self.kind else ""


def heard(action: Callable[[], object], *kinds: type[BaseException]) -> Heard:
    """Return which of these errors an action raises, those of gcodec by default; others go on."""
    expected = kinds or (gcodec.GcodecError,)
    try:
        action()
    except expected as error:
        return Heard(type(error).__name__, str(error))
    return Heard()


def assert_refused(
    *calls: Callable[[], object], by: type[BaseException] = gcodec.InvalidArgument, text: str = ""
) -> None:
    """Check that each of these calls raises this error, whose text has ``text`` in it."""
    for number, call in enumerate(calls):
        found = heard(call, by)
        assert found.kind and text in found.text, f"call {number}: {found.line or 'not refused'}"


def shown(profile: torch.profiler.profile, name: str) -> list[float]:
    """Return the microseconds of the events of a name that a profiler has seen."""
    return [event.time_range.elapsed_us() for event in profile.events() if event.name == name]


@contextlib.contextmanager
def slowed(slow: str) -> Iterator[None]:
    """Make one sort of ways of making a collective, "dense" or "coded", seem slow, and codebooks in every frame slower
    than shared ones; with "all but the cast" all but the cast to 16 bits."""
    add, end_step = bypasses.BypassController.add, bypasses.BypassController.end_step

    def seconds(kind: int | None) -> float:
        coded, plain = kind in ways.CODING, kind in (ways.DENSE, ways.CAST, bypasses.TIMED)
        slower = {"dense": plain, "coded": coded, "all but the cast": coded or kind == ways.DENSE}[slow]
        return 100.0 * slower + 20.0 * (kind == ways.OWN_CODEBOOKS) + 40.0 * (kind == ways.CAST and slow == "coded")

    def slow_add(self: bypasses.BypassController, n_bytes: int, counters: Any) -> None:
        counters.seconds += seconds(self.kind)
        add(self, n_bytes, counters)

    def slow_end(self: bypasses.BypassController, lane: Any) -> None:
        self._ended -= seconds(self.kind)  # the step took that long, too
        end_step(self, lane)

    with mock.patch.multiple(bypasses.BypassController, add=slow_add, end_step=slow_end):
        yield


def only_on(culprit: int, patch: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which a rank, and no other one, has this patch."""
    return patch if rank() == culprit else contextlib.nullcontext()


def sabotage(kind: str) -> Any:
    """Return the patch with which a rank does wrong, if it does by this kind of it."""
    original = coder.Coder.encode
    if kind == "header":
        write = message.Header.write_to

        def write_to(self: message.Header, out: Any) -> None:
            write(self, out)
            out[20] ^= 255

        return mock.patch.object(message.Header, "write_to", write_to)

    if kind == "result":
        decode = reduce.Reduction._decode

        def fail(self: reduce.Reduction, wire: Any, slot: Any, *rest: Any) -> None:
            decode(self, wire, slot, *rest)
            if slot.kind == message.RESULT:
                raise ZeroDivisionError("a fault on purpose")

        return mock.patch.object(reduce.Reduction, "_decode", fail)

    def encode(self: coder.Coder, bits: Any, begin: int, which: int, out: Any, rounded: Any = None) -> int:
        n_bytes = original(self, bits, begin, which, out, rounded)
        if kind == "payload":
            out[n_bytes // 2] ^= 16
        elif kind == "exception":
            raise ZeroDivisionError("a fault on purpose")
        return n_bytes

    return mock.patch.object(coder.Coder, "encode", encode)
