"""Streams of frames that share codebooks: one :class:`Encoder`, one :class:`Decoder` at the other end.

GComp (SoCC '24, "Dynamic adjustment of the Huffman table") refreshes its table every 50 iterations, exchanging
histograms beside training. :class:`CodebookCycle` has the steps of that apart, so that a single process
(:class:`Encoder`) and an all-reduce (``gcodec.distributed``) can drive them alike.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from .codec import bit_layout_for, decode_frame
from .dtypes import DTYPES
from .errors import InvalidArgument, check_choice, check_output_limit
from .format import shipped
from .format.change_codebook import ChangeCodebook
from .format.codebook import Codebook
from .format.ladders import Ladder
from .format.levels import MAX_LEVELS
from .format.modes import BitLayout
from .frame.decode import FrameReader
from .frame.encode import check_apart, copied_to_caller, encode_values, plan_for
from .kernels.sample import code_costs
from .options import EncoderOptions, Precision, checked_options
from .plan.codebooks import bin_costs, from_histogram, n_bins_of, window_of
from .plan.plan import make_sparse_plan
from .plan.request import EncodeRequest, FixedCodebooks
from .plan.unused_bits import drop_common_zeros
from .tensors import Values, as_plain_array, values_of
from .threads import check_threads

_FIRST_ID = 256  #: ids below belong to the codebooks that come with gcodec
#: Codebooks that a decoder remembers, some 3 KiB each. An encoder names only the last that it sent.
MAX_CODEBOOKS = 1024
_MAX_HEAD_BITS = max(dtype.head_bits for dtype in DTYPES)


@dataclass(frozen=True)
class Version:
    """A codebook in use.

    Attributes:
        number: Its number, from 1.
        step: The step from which it holds.
        codebook: The codebook.
        references: True if heads are relative to sub-streams' means.
    """

    number: int
    step: int
    codebook: Codebook
    references: bool


def is_refresh_due(age: int, excess: float, interval: int, trigger: float, usual: float = 0.0) -> bool:
    """Tell whether a codebook is to be made anew: the one rule of streams, of ranks, and of buffers on a GPU.

    Args:
        age: Steps for which it has been in use.
        excess: Bits per symbol that it takes beyond what a fresh one would, in the latest step.
        interval: The age at which it is made anew in any case.
        trigger: How much the excess may grow before it is made anew earlier.
        usual: The excess when the codebook was new. ``excess`` and ``usual`` may count from anywhere, if both do.
    """
    return age >= interval or excess > usual + trigger


def check_refresh(interval: int, trigger: float) -> None:
    """Raise InvalidArgument unless ``interval`` and ``trigger`` are numbers that say when a codebook is made anew."""
    if not isinstance(interval, Integral) or interval < 1:
        raise InvalidArgument(f"interval must be an integer of at least 1 step, not {interval!r}")
    if not isinstance(trigger, Real) or not trigger > 0:
        raise InvalidArgument(f"trigger must be a number of more than 0 bits per symbol, not {trigger!r}")


class CodebookCycle:
    """Versions of one codebook over the steps of a training run.

    Args:
        head_bits: Bits of a head in the frames it is for.
        n_levels: Number of levels in these frames.
        interval: Steps after which a refresh is due (GComp: 50).
        trigger: Bits per symbol above what a fresh codebook would need that make a refresh due earlier.
        options: How codebooks are made.

    Attributes:
        histogram: uint64[n_bins], what was counted since it was last taken.
        step: The current step.
        current: The version that holds now, None before the first.

    Raises:
        InvalidArgument: If ``interval`` or ``trigger`` is not positive, or no frame has such heads or levels.
    """

    def __init__(
        self,
        head_bits: int,
        n_levels: int,
        *,
        interval: int = 50,
        trigger: float = 0.1,
        options: EncoderOptions | None = None,
    ) -> None:
        check_refresh(interval, trigger)
        for name, value, most in (("head_bits", head_bits, _MAX_HEAD_BITS), ("n_levels", n_levels, MAX_LEVELS)):
            if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= value <= most:
                raise InvalidArgument(f"{name} must be an integer in 1 ... {most}, not {value!r:.80}")
        self.head_bits, self.n_levels = int(head_bits), int(n_levels)  # numpy's integers would overflow
        self.interval, self.trigger = interval, trigger
        self.options = checked_options(options)
        _, self.center = window_of(self.n_levels)
        self.histogram = np.zeros(n_bins_of(self.n_levels), np.uint64)
        self.step = 0
        self.current: Version | None = None
        self._coming: list[Version] = []
        self._last: np.ndarray | None = None
        self._costs_of: Version | None = None
        self._costs = self.histogram

    def advance(self, step: int) -> Version | None:
        """Go to ``step``, and return the version that holds there, None before the first. Raises InvalidArgument for a
        step back, or one that is no integer."""
        step = _checked_step(step)
        if step < self.step:
            raise InvalidArgument(f"step must be at least {self.step}, the current one, not {step}")
        self.step = step
        while self._coming and self._coming[0].step <= step:
            self.current = self._coming.pop(0)
        return self.current

    def count(self, histogram: np.ndarray) -> None:
        """Add what an encoding counted: integers[n_bins], as in ``FramePlan.histogram``. Raises InvalidArgument for
        anything else."""
        self._last = self._checked(histogram).astype(np.uint64)
        self.histogram += self._last

    @property
    def excess(self) -> float:
        """The bits per symbol by which the current codebook exceeds the entropy of what was counted last; infinite
        without a codebook."""
        if self.current is None or self._last is None:
            return float("inf")
        total = int(self._last.sum())
        if not total:
            return 0.0
        if self._costs_of is not self.current:
            self._costs = bin_costs([self.current.codebook])[0].astype(np.uint64)
            self._costs_of = self.current
        cost = int(self._last @ self._costs)
        return (cost - int(code_costs.entropy_fixed(self._last)) / 256) / total

    @property
    def due(self) -> bool:
        """True if a refresh would pay now: there is no version yet, it is ``interval`` steps old, or ``trigger`` is
        exceeded; never while one is coming."""
        if self._coming:
            return False
        if self.current is None:
            return True
        return is_refresh_due(self.step - self.current.step, self.excess, self.interval, self.trigger)

    def take(self) -> np.ndarray:
        """Return the histogram counted so far, uint64[n_bins], to be summed over workers; counting starts again."""
        taken = self.histogram.copy()
        self.histogram[:] = 0
        return taken

    def schedule(self, histogram: np.ndarray, step: int, references: bool = False) -> Version:
        """Build the next version from a histogram.

        Args:
            histogram: Integers[n_bins], as :meth:`take` returns it, perhaps summed over workers.
            step: The step from which the version holds, which must not have passed.
            references: True if heads were counted relative to sub-streams' means.

        Returns:
            The version.

        Raises:
            InvalidArgument: If the step has passed or is no integer, or the histogram is another array.
        """
        histogram, step = self._checked(histogram), _checked_step(step)
        last = self._coming[-1] if self._coming else self.current
        min_step = max(self.step, last.step if last else 0)
        if step < min_step:
            raise InvalidArgument(f"step must be at least {min_step}, not {step}: earlier steps have a codebook")
        book = from_histogram(
            histogram,
            self.head_bits,
            self.n_levels,
            self.center,
            max_length=self.options.max_length,
            escape_threshold=self.options.escape_threshold,
        )
        version = Version(last.number + 1 if last else 1, step, book, references)
        self._coming.append(version)
        return version

    def _checked(self, histogram: Any) -> np.ndarray:
        """Return a caller's histogram. Raises InvalidArgument unless it has a count for each of this cycle's bins."""
        counts = as_plain_array(histogram, "histogram")
        if counts.shape != self.histogram.shape or counts.dtype.kind not in "iu":
            raise InvalidArgument(
                f"histogram must be {len(self.histogram)} integers, as take() returns them, not an array of shape "
                f"{counts.shape} and dtype {counts.dtype}"
            )
        return counts


def _checked_step(step: Any) -> int:
    """Return a caller's step. Raises InvalidArgument unless it is an integer."""
    try:
        return operator.index(step)
    except TypeError:
        raise InvalidArgument(f"step must be an integer, not {step!r:.80}") from None


class Encoder:
    """Encodes a sequence of arrays of one type and mode, and sends a codebook only when it has changed.

    The first frame carries its codebook; later ones name it, until a refresh. Arrays that are zero in most places
    become sparse frames where these are smaller, as with ``encode``. One :class:`Decoder` must decode all the frames,
    in order.

    Args:
        interval, trigger: When to refresh, see :class:`CodebookCycle`.
        rounding, options, threads: As for ``encode``.

    Raises:
        InvalidArgument: An argument is out of range, or of another type.
    """

    def __init__(
        self,
        *,
        interval: int = 50,
        trigger: float = 0.1,
        rounding: str | None = None,
        options: EncoderOptions | None = None,
        threads: int | None = None,
    ) -> None:
        check_threads(threads)
        check_refresh(interval, trigger)
        self.interval, self.trigger, self.threads = interval, trigger, threads
        self.options = checked_options(options)
        self.nearest = Precision(rounding=rounding).is_nearest(self.options)
        self.step = 0
        self.cycle: CodebookCycle | None = None
        self._form: tuple[Any, ...] = ()
        self._sent = 0

    def encode(
        self,
        x: Any,
        *,
        mantissa_bits: int | None = None,
        levels: Any = None,
        ladder: Ladder | None = None,
        optimizer: Any = None,
        param: Any = None,
        dtype: str | None = None,
        out: Any = None,
    ) -> Any:
        """Encode the next array.

        A change of dtype or ladder starts a new codebook.

        Args:
            x: The array or tensor, on the host.
            mantissa_bits, levels, ladder, optimizer, param, dtype, out: As for ``encode``.

        Returns:
            The frame, as ``encode`` does.

        Raises:
            InvalidArgument, Unsupported: As ``encode`` does.
        """
        values = values_of(x, dtype)
        precision = Precision(mantissa_bits, levels, ladder, None, optimizer, param)
        bit_layout, level_array = bit_layout_for(values, precision, self.options)
        request = EncodeRequest(values, bit_layout, level_array, self.options, self.nearest, self.threads)
        if out is not None:
            check_apart(request, out)
        form = (values.dtype, bit_layout.widths, bit_layout.levels)
        if self.cycle is None or form != self._form:
            self._start(values, bit_layout, form)
        cycle = self.cycle
        assert cycle is not None
        version = cycle.advance(self.step)
        request = drop_common_zeros(request)  # codebooks suit any frame of as many levels
        if version is None or cycle.due:
            plan = plan_for(request)
            if not plan.histogram[2:].any():  # nothing but zeros: no codebook is needed, and none can be made
                self.step += 1
                return encode_values(request, plan, out)
            cycle.count(plan.histogram)
            cycle.schedule(cycle.take(), self.step, plan.references)
            version = cycle.advance(self.step)
            assert version is not None
        plan = plan_for(request._replace(fixed=self._fixed_codebooks(version)))
        cycle.count(plan.histogram)
        self.step += 1
        sparse = make_sparse_plan(request) if self.options.sparse else None
        frame = encode_values(request, plan, out if sparse is None else None)
        if sparse is not None:
            other = encode_values(request, sparse)
            if len(other) < len(frame):  # it has codebooks of its own, and the stream's is not sent with it
                return copied_to_caller(other, out)
            frame = copied_to_caller(frame, out)
        self._sent = version.number if _carries(frame) else self._sent
        return frame

    def _start(self, values: Values, bit_layout: BitLayout, form: tuple[Any, ...]) -> None:
        cycle = CodebookCycle(
            values.dtype.head_bits,
            len(bit_layout.levels),
            interval=self.interval,
            trigger=self.trigger,
            options=self.options,
        )
        # In one step: an interrupt leaves all of it, of before or of after.
        vars(self).update(cycle=cycle, step=0, _sent=0, _form=form)

    def _fixed_codebooks(self, version: Version) -> FixedCodebooks:
        book = version.codebook
        record = book.reference(_FIRST_ID + version.number) if self._sent == version.number else book.record
        return FixedCodebooks((book,), (record,), version.references)


def _carries(frame: Any) -> bool:
    """Return True if a frame has a codebook, inline or by name: one that is stored raw has none."""
    return bool(frame[11])


class Decoder:
    """Decodes the frames of one :class:`Encoder`, in order, and remembers the codebooks they carry.

    It remembers the 1024 codebooks that frames have sent or named last, so frames from strangers cannot fill the
    memory. An :class:`Encoder` names only the last codebook that it sent. Those of sparse frames are not remembered,
    for each of these frames has its own.

    Args:
        like, threads, max_output_bytes: As for ``decode``.

    Raises:
        InvalidArgument: An argument is out of range, or of another type.
    """

    def __init__(
        self, *, like: str | None = None, threads: int | None = None, max_output_bytes: int | None = None
    ) -> None:
        check_choice("like", like, (None, "numpy", "torch"))
        check_threads(threads)
        check_output_limit(max_output_bytes)
        self.like, self.threads, self.max_output_bytes = like, threads, max_output_bytes
        self._books: dict[int, Codebook] = {}

    def decode(self, data: Any, *, out: Any = None) -> Any:
        """Decode the next frame.

        Args:
            data: Bytes-like, the frame.
            out: Contiguous array or tensor to fill, or None.

        Returns:
            The array, as ``decode`` does.

        Raises:
            Unsupported: If the frame names a codebook that no earlier frame carried, or that has been forgotten;
                otherwise as ``decode`` does.
        """
        frame = FrameReader(data, self._find)
        result = decode_frame(frame, out, self.like, self.threads, self.max_output_bytes)
        if not frame.prelude.changes:  # of sparse frames, any number may come before the stream's codebook is named
            self._remember(frame.prelude.codebooks)
        return result

    def _remember(self, books: Sequence[Codebook]) -> None:
        named = {book.hash: book for book in books}  # what is named again becomes the latest
        known = [item for item in self._books.items() if item[0] not in named]
        # In one step: an interrupt leaves all codebooks, of before or of after.
        self._books = dict([*known, *named.items()][-MAX_CODEBOOKS:])

    def _find(self, codebook_id: int, digest: int) -> Codebook | ChangeCodebook | None:
        return self._books.get(digest) if codebook_id >= _FIRST_ID else shipped.find(codebook_id, digest)
