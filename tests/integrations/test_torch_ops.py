"""The operators of torch: what ``gcodec.encode`` and ``decode`` do, alone and in graphs of ``torch.compile``."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.integrations.torch_ops import decode_out, encode_out, frame_room


def gradient(dtype: str, n: int = 1000) -> Any:
    return (torch.randn(n, generator=torch.Generator().manual_seed(n)) * 1e-3).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mantissa_bits", [None, 3])
def test_operators_do_what_the_functions_do(dtype: str, mantissa_bits: int | None) -> None:
    for x in (gradient(dtype).reshape(20, 50).t(), gradient(dtype, 1)[0], gradient(dtype, 0)):
        room = torch.zeros(frame_room(x), dtype=torch.uint8)
        size = torch.ops.gcodec.encode_out(x, room, mantissa_bits)
        frame = gcodec.encode(x, mantissa_bits=mantissa_bits)
        assert size.dtype == torch.int64 and size.shape == () and int(size) == len(frame)
        assert bytes(room[: len(frame)].numpy()) == frame and not room[len(frame) :].any()
        back = torch.empty(x.shape, dtype=x.dtype)
        torch.ops.gcodec.decode_out(room, back)
        assert torch.equal(back, gcodec.decode(frame))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operators_keep_to_the_rules_of_torch(dtype: str) -> None:
    """Schemas, what is mutated, fake tensors, and graphs with sizes that vary."""
    x = gradient(dtype)
    room = torch.zeros(frame_room(x), dtype=torch.uint8)
    torch.library.opcheck(encode_out, (x, room, None))
    torch.library.opcheck(encode_out, (x.reshape(10, 100).t(), room, 3))
    encode_out(x, room)
    torch.library.opcheck(decode_out, (room, torch.zeros_like(x)))
    for operator in (torch.ops.gcodec.encode_out, torch.ops.gcodec.decode_out):
        assert torch.Tag.cudagraph_unsafe in operator.default.tags


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_encode_and_decode_in_one_graph(backend: str) -> None:
    """The second backend takes mutations out of a graph, and has to put them back in their order."""

    def there_and_back(x: Any, room: Any, back: Any) -> tuple[Any, Any]:
        y = x * 2
        size = encode_out(y, room)
        decode_out(room, back)
        back.add_(1)
        return size + 1, back.sum()

    x = gradient("float32")
    room, back = torch.zeros(frame_room(x), dtype=torch.uint8), torch.zeros(1000)
    compiled = torch.compile(there_and_back, backend=backend, fullgraph=True)
    size, total = compiled(x, room, back)
    frame = gcodec.encode(x * 2)
    assert int(size) == len(frame) + 1 and bytes(room[: len(frame)].numpy()) == frame
    assert torch.equal(back, x * 2 + 1) and total == (x * 2 + 1).sum()


def test_a_tensor_that_requires_grad_is_encoded() -> None:
    x = gradient("float32").requires_grad_()
    room = torch.zeros(frame_room(x), dtype=torch.uint8)
    size = encode_out(x, room)
    assert not size.requires_grad and torch.equal(gcodec.decode(room.numpy()), x.detach())


def test_room_of_any_shape_takes_the_frame() -> None:
    x = gradient("float32")
    room = torch.zeros(frame_room(x), 1, dtype=torch.uint8)
    assert int(encode_out(x, room)) == len(gcodec.encode(x))
    back = torch.empty_like(x)
    decode_out(room, back)
    assert torch.equal(back, x)


def test_what_does_not_fit_is_refused_in_graphs_and_outside() -> None:
    x = gradient("float32")
    with pytest.raises(gcodec.InvalidArgument, match=rf"out has 10 bytes, .* frame_room\(x\), {frame_room(x)} bytes,"):
        encode_out(x, torch.zeros(10, dtype=torch.uint8))
    for dtype in (torch.float32, torch.int64, torch.int8):
        room = torch.zeros(10_000).to(dtype)
        with pytest.raises(gcodec.InvalidArgument, match=f"out must be uint8, not {dtype}"):
            encode_out(x, room)
        assert not room.any()
    with pytest.raises(gcodec.InvalidArgument):
        frame_room(torch.zeros(3, dtype=torch.int32))
    with pytest.raises(gcodec.GcodecError):
        decode_out(torch.zeros(100, dtype=torch.uint8), x)
    compiled = torch.compile(encode_out, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="uint8"):
        compiled(x, torch.zeros(10_000))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x, room: encode_out(None, room), "x"),
        (lambda x, room: encode_out(x, None), "out"),
        (lambda x, room: decode_out(None, x), "frame"),
        (lambda x, room: decode_out(room, None), "out"),
    ],
)
def test_none_is_refused_where_a_tensor_is_needed(call, name):
    """Without an error, ``decode_out`` would decode into nothing."""
    x = torch.randn(100)
    room = torch.empty(frame_room(x), dtype=torch.uint8)
    encode_out(x, room)
    with pytest.raises(gcodec.InvalidArgument, match=f"{name} must be a torch tensor, not None"):
        call(x, room)
