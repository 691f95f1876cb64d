"""Lines of the log about what is sent uncompressed although compression was asked for, one for each reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from .reduction.gpu_coder import TYPES as TYPES_ON_GPU
from .reduction.gpu_jobs import is_on_gpu
from .reduction.reduce_request import TYPES

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

_log = logging.getLogger("gcodec.distributed")
_PATIENCE = 8  #: steps of optimizers in which the first gradients must come
_awaited: WeakSet[Awaited] = WeakSet()  #: what has got no gradients so far, and is still in use
#: By their ids, parameters whose gradients have come to another than those.
_with_gradients: dict[int, ref[torch.Tensor]] = {}
_counts_steps = False  #: whether optimizers count their steps
_NAMES = "float32, float64, float16 and bfloat16"
_NAMES_ON_GPU = "float32, float16 and bfloat16"


class UncompressedLog:
    """Says why something is sent uncompressed, and what to do: each reason once, on the first rank of a group.

    Args:
        label: Begins the lines.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._said: set[str] = set()

    def say(self, rank: int | None, kind: str, text: str, level: int = logging.WARNING) -> None:
        """Log a line, unless one of its kind has been logged before.

        Args:
            rank: This rank in the group, of which rank 0 alone logs; None for a rank that is alone, and sends nothing.
            kind: What the line is about.
            level: The level, INFO for what every training has.
        """
        if rank == 0 and kind not in self._said:
            self._said.add(kind)
            _log.log(level, "%s: %s", self.label, text)


class Awaited:
    """Says in the log that no gradients have come while optimizers have taken steps, as from a state without a model.

    Steps of an optimizer whose parameters' gradients come to another state are no sign of that: of two models that are
    trained in turns, as those of a GAN are, one may take many steps before the other's first. Of a model that is
    trained without compression nothing is known here, so that its steps count, and the line says so.

    Args:
        text: What to do.
    """

    def __init__(self, log: UncompressedLog, text: str) -> None:
        global _counts_steps
        self._log, self._text, self._n_steps = log, text, 0
        _awaited.add(self)
        if not _counts_steps:  # it is never removed, as a hook may not be while other hooks run
            register_optimizer_step_post_hook(_count_step)
            _counts_steps = True

    def count_step(self) -> None:
        """Count a step of an optimizer."""
        self._n_steps += 1
        if self._n_steps == _PATIENCE:
            self.end()
            rank = dist.get_rank() if dist.is_initialized() and dist.get_world_size() > 1 else None
            text = f"no gradients have come here in {_PATIENCE} steps of optimizers: {self._text}"
            self._log.say(rank, "none", f"{text}, unless what these steps train is another, uncompressed model")

    def end(self, parameters: Callable[[], Iterable[torch.Tensor]] = tuple) -> None:
        """Stop waiting: gradients have come.

        Args:
            parameters: Returns those whose gradients they are.
        """
        _awaited.discard(self)
        if _awaited:
            _with_gradients.update((id(parameter), ref(parameter)) for parameter in parameters())
        else:
            _with_gradients.clear()


def _count_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Count a step, unless it is of parameters whose gradients have come."""
    if not _awaited:
        return
    of_step = (parameter for group in optimizer.param_groups for parameter in group["params"])
    found = ((_with_gradients.get(id(parameter)), parameter) for parameter in of_step)
    if not any(known is not None and known() is parameter for known, parameter in found):
        for awaited in [*_awaited]:
            awaited.count_step()


class UncompressedBuckets:
    """Says which part of a model's gradients the hook for DDP does not compress, by the buckets of a whole step.

    Not counted is what the bypass decides to leave uncompressed: it has lines of its own.

    Args:
        label: Begins the lines.
    """

    def __init__(self, label: str) -> None:
        self.log = UncompressedLog(label)
        self._awaited = Awaited(self.log, "register this state with the DDP model, by register_comm_hook(state, hook)")
        self._reasons: dict[str, int] = {}  #: bytes of this step's gradients that are not compressed, by the reason
        self._n_coded_bytes = self._n_steps = 0
        self._only_small = True

    def come(self, bucket: GradBucket) -> None:
        """Note that gradients have come."""
        self._awaited.end(bucket.parameters)

    def add(self, n_bytes: int, reason: str | None, is_small: bool = False) -> None:
        """Count a bucket, or a gradient.

        Args:
            reason: Why it is not compressed; None if it is.
            is_small: Because it is small, as a part of the gradients of most models is.
        """
        if reason is None:
            self._n_coded_bytes += n_bytes
        else:
            self._reasons[reason] = self._reasons.get(reason, 0) + n_bytes
            self._only_small &= is_small

    def end_step(self, rank: int | None) -> None:
        """End a step, whose buckets have all been counted, and say what is to be said.

        Where a part of the gradients is compressed, the first step does not count, as DDP rebuilds its buckets then.

        Args:
            rank: As for :meth:`UncompressedLog.say`.
        """
        reasons, n_coded_bytes, self._reasons, self._n_coded_bytes = self._reasons, self._n_coded_bytes, {}, 0
        self._n_steps += 1
        if not reasons:
            return
        # Sparse gradients do not tell how many bytes Gloo sends of them.
        text = "; ".join(f"{n_bytes} bytes of {reason}" if n_bytes else reason for reason, n_bytes in reasons.items())
        if not n_coded_bytes:
            self.log.say(rank, "all", f"no gradients are compressed: {text}")
        elif self._n_steps > 1:
            level = logging.INFO if self._only_small else logging.WARNING
            self.log.say(rank, "part", f"not all gradients are compressed: {text}", level)


def small_reason(min_bytes: int, what: str) -> str:
    """Return the reason for what has fewer bytes than a limit.

    Args:
        what: What is that small, in the plural.
    """
    return f"{what} below min_bytes={min_bytes} bytes, where latency is all that counts (min_bytes=0 compresses them)"


def type_reason(tensor: torch.Tensor, complex_values: bool = False) -> str | None:
    """Return why a tensor's type or layout is not compressed; None if it is.

    Args:
        complex_values: Its floats are halves of complex numbers.
    """
    if tensor.layout != torch.strided:
        return "sparse tensors, which are never compressed (an embedding with sparse=False has dense gradients)"
    if complex_values or tensor.is_complex():
        return "complex numbers (floats that torch.view_as_complex turns into such numbers are compressed)"
    on_gpu = is_on_gpu(tensor)
    if tensor.dtype in (TYPES_ON_GPU if on_gpu else TYPES):
        return None
    where, names = ("on CUDA devices, ", _NAMES_ON_GPU) if on_gpu else ("", _NAMES)
    return f"values of {tensor.dtype}: {where}only {names} are".replace("torch.", "")


def has_floats(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether any of several tensors has floats or complex numbers."""
    return any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
