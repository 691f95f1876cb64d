"""A kind of blocks is a row in a table: what is encoded, decoded and described follows from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.frame import inspect, kinds, smallest, writer
from gcodec.frame.coded_blocks import CodedDecoder, CodedEncoder
from gcodec.kernels.block import header
from gcodec.kernels.core.bundles import FrameBlocks
from gcodec.plan.plan import FramePlan
from tests.support import laws

NUMBER = len(kinds.BLOCK_KINDS)
BLOCK = 1 << 14


def relabeled(block: np.ndarray, kind: int, b: int) -> np.ndarray:
    """Block number ``b`` under the number of another kind, its checksum made anew."""
    block[header.KIND] = kind
    checksum = int(header.block_checksum(block, 0, len(block), b))
    block[header.CHECKSUM : header.CHECKSUM + 8] = np.frombuffer(checksum.to_bytes(8, "little"), np.uint8)
    return block


class NovelEncoder:
    """Writes blocks as coded ones are written, under another number."""

    def __init__(self, request: Any, plan: Any, geometry: Any, sizes: np.ndarray, rounded: Any) -> None:
        self._inner, self._sizes = CodedEncoder(request, plan, geometry, sizes, rounded), sizes

    def encode(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Any) -> int:
        for b in range(begin, end):
            stop = self._inner.encode(b, b + 1, out, at, borrowed)
            assert out[at] == header.CODED
            relabeled(out[at:stop], NUMBER, b)
            at = stop
        return at


class NovelDecoder:
    """Reads what :class:`NovelEncoder` writes."""

    def __init__(self, prelude: Any, geometry: Any, base: Any) -> None:
        self._inner = CodedDecoder(prelude, geometry, base)

    def decode(
        self, blocks: FrameBlocks, begin: int, end: int, out: np.ndarray, out_first: int, borrowed: Any
    ) -> tuple[int, int]:
        for b in range(begin, end):
            at, size = int(blocks.offsets[b]), int(blocks.sizes[b])
            if blocks.data[at] != NUMBER:
                return header.OK, b
            data = blocks.data.copy()
            relabeled(data[at : at + size], header.CODED, b)
            status, _ = self._inner.decode(blocks._replace(data=data), b, b + 1, out, out_first, borrowed)
            if status != header.OK:
                return status, b
        return header.OK, end


def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan every second block as the new kind, which the encoder knows; short arrays, too, which get no plan else."""
    monkeypatch.setattr(smallest, "encode_short", lambda request, out: (None, None, None))
    monkeypatch.setattr(FramePlan, "kinds", property(lambda self: (header.CODED, NUMBER)))
    monkeypatch.setattr(
        FramePlan,
        "runs",
        lambda self, begin, end: ((b, b + 1, NUMBER if b % 2 else header.CODED) for b in range(begin, end)),
    )
    rows = (
        *kinds.BLOCK_KINDS,
        kinds.BlockKind(NUMBER, "novel", lambda dtype: dtype.bits == 32, NovelEncoder, NovelDecoder),
    )
    for module in (kinds, writer, inspect):
        monkeypatch.setattr(module, "BLOCK_KINDS", rows)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kind_with_a_row_is_written_read_and_described(threads, monkeypatch):
    x = np.random.default_rng(0).normal(0, 1, 4 * BLOCK + 100).astype(np.float32)
    planned(monkeypatch)
    frame = gcodec.encode(x, threads=threads)
    others = {kind.name: 0 for kind in kinds.BLOCK_KINDS}
    assert gcodec.inspect(frame).kinds == others | {"coded": 3, "novel": 2}
    assert np.array_equal(gcodec.decode(frame, threads=threads), x)
    assert np.array_equal(gcodec.decode_range(frame, BLOCK + 5, 2 * BLOCK + 5), x[BLOCK + 5 : 2 * BLOCK + 5])
    monkeypatch.undo()
    assert gcodec.inspect(frame).kinds["unknown"] == 2
    laws.check_refused(gcodec.Unsupported, lambda: gcodec.decode(frame))


def test_a_kind_is_refused_for_types_that_never_have_it(monkeypatch):
    x = np.random.default_rng(0).normal(0, 1, 2 * BLOCK).astype(np.float64)
    planned(monkeypatch)
    frame = gcodec.encode(x)
    with pytest.raises(gcodec.Corruption, match="block 1: its kind is novel, which blocks of float64 cannot be"):
        gcodec.decode(frame)
