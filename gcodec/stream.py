"""Streams of frames that share codebooks: one :class:`Encoder`, one :class:`Decoder` at the other end."""

from __future__ import annotations

from typing import Any

from .codec import bit_layout_for, decode_frame, is_nearest
from .cycle import CodebookCycle, Version
from .format import shipped
from .format.codebook import Codebook
from .format.ladders import Ladder
from .format.modes import BitLayout
from .frame.decode import FrameReader
from .frame.encode import encode_values, plan_for
from .options import EncoderOptions
from .plan.plan import FixedCodebooks
from .tensors import Values, values_of

_FIRST_ID = 256  #: ids below belong to the codebooks that come with gcodec


class Encoder:
    """Encodes a sequence of arrays of one type and mode, and sends a codebook only when it has changed.

    The first frame carries its codebook; later ones name it, until a refresh. Frames must be decoded by one
    :class:`Decoder`, in order. ``interval``, ``trigger``: when to refresh, see :class:`CodebookCycle`; ``rounding``,
    ``options``, ``threads``: as for ``encode``.
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
        self.interval, self.trigger, self.threads = interval, trigger, threads
        self.options = options or EncoderOptions()
        self.nearest = is_nearest(rounding, self.options)
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
        """The next frame; arguments and errors as for ``encode``. A change of dtype or ladder starts a new codebook."""
        values = values_of(x, dtype)
        bit_layout, level_array = bit_layout_for(
            x, values, mantissa_bits, levels, ladder, optimizer, param, self.options
        )
        form = (values.dtype, bit_layout.widths, bit_layout.levels)
        if self.cycle is None or form != self._form:
            self._start(values, bit_layout)
            self._form = form
        cycle = self.cycle
        assert cycle is not None
        version = cycle.advance(self.step)
        if version is None or cycle.due:
            plan = plan_for(values, bit_layout, level_array, self.options, self.threads)
            if not plan.histogram[2:].any():  # nothing but zeros: no codebook is needed, and none can be made
                self.step += 1
                return encode_values(values, bit_layout, level_array, self.nearest, plan, self.threads, out)
            cycle.count(plan.histogram)
            cycle.schedule(cycle.take(), self.step, plan.references)
            version = cycle.advance(self.step)
            assert version is not None
        plan = plan_for(values, bit_layout, level_array, self.options, self.threads, self._fixed_codebooks(version))
        cycle.count(plan.histogram)
        frame = encode_values(values, bit_layout, level_array, self.nearest, plan, self.threads, out)
        self._sent = version.number if _carries(frame) else self._sent
        self.step += 1
        return frame

    def _start(self, values: Values, bit_layout: BitLayout) -> None:
        self.cycle = CodebookCycle(
            values.dtype.head_bits,
            len(bit_layout.levels),
            interval=self.interval,
            trigger=self.trigger,
            options=self.options,
        )
        self.step, self._sent = 0, 0

    def _fixed_codebooks(self, version: Version) -> FixedCodebooks:
        book = version.codebook
        record = book.reference(_FIRST_ID + version.number) if self._sent == version.number else book.record
        return FixedCodebooks((book,), (record,), version.references)


def _carries(frame: Any) -> bool:
    """Whether a frame has a codebook, inline or by name: a frame stored raw has none."""
    return bool(frame[11])


class Decoder:
    """Decodes the frames of one :class:`Encoder`, in order; remembers the codebooks they carry.

    A frame that names a codebook which no earlier frame carried raises Unsupported.
    """

    def __init__(
        self, *, like: str | None = None, threads: int | None = None, max_output_bytes: int | None = None
    ) -> None:
        self.like, self.threads, self.max_output_bytes = like, threads, max_output_bytes
        self._books: dict[int, Codebook] = {}

    def decode(self, data: Any, *, out: Any = None) -> Any:
        """The next array; errors as for ``decode``."""
        frame = FrameReader(data, self._find)
        result = decode_frame(frame, out, self.like, self.threads, self.max_output_bytes)
        self._books.update((book.hash, book) for book in frame.prelude.codebooks)
        return result

    def _find(self, codebook_id: int, digest: int) -> Codebook | None:
        return self._books.get(digest) if codebook_id >= _FIRST_ID else shipped.find(codebook_id, digest)
