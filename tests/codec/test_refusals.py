"""The laws of arguments that cannot be right: a GcodecError that names the argument and says what would be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gcodec

X = np.linspace(-1, 1, 12, dtype=np.float32)
LEVELS: Any = np.zeros(12, np.uint8)
FRAME = gcodec.encode(X)


def refused(call: Callable[[], Any], *words: str) -> None:
    """Check that ``call`` raises InvalidArgument or Unsupported, with all of these words."""
    with pytest.raises((gcodec.InvalidArgument, gcodec.Unsupported)) as caught:
        call()
    for word in words:
        assert re.search(word, str(caught.value)), (word, str(caught.value))


# Values of the wrong type

BAD: dict[str, list[tuple[str, Any]]] = {
    "encode": [
        ("threads", "2"),
        ("threads", 2.5),
        ("threads", []),
        ("shapes", "ab"),
        ("shapes", 5),
        ("shapes", [12]),
        ("shapes", [(6.0, 2)]),
        ("shapes", [("a",)]),
        ("mantissa_bits", "x"),
        ("ladder", "fine"),
        ("rounding", []),
        ("dtype", []),
        ("options", 5),
        ("options", {}),
        ("base", 5),
        ("base", [None]),
    ],
    "decode": [
        ("threads", "2"),
        ("threads", 2.5),
        ("max_output_bytes", "x"),
        ("max_output_bytes", []),
        ("max_output_bytes", np.zeros(3)),
        ("like", []),
        ("like", 5),
        ("base", 5),
    ],
    "Decoder": [("threads", "2"), ("max_output_bytes", "x"), ("like", [])],
    "Encoder": [("threads", "2"), ("options", 5), ("rounding", [])],
    "EncoderOptions": [
        ("max_length", "a"),
        ("max_length", None),
        ("max_codebooks", 2.5),
        ("ladder", []),
        ("escape_threshold", "a"),
    ],
}
CALLS: dict[str, Callable[..., Any]] = {
    "encode": lambda **keywords: gcodec.encode(
        X, **{**({"levels": LEVELS} if "ladder" in keywords else {}), **keywords}
    ),
    "decode": lambda **keywords: gcodec.decode(FRAME, **keywords),
    "range": lambda **keywords: gcodec.decode_range(FRAME, 1, 5, **keywords),
    "Decoder": lambda **keywords: gcodec.Decoder(**keywords).decode(FRAME),
    "Encoder": lambda **keywords: gcodec.Encoder(**keywords).encode(X),
    "EncoderOptions": gcodec.EncoderOptions,
}
BAD["range"] = BAD["decode"]


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        pytest.param(function, *pair, id=f"{function} {pair[0]}={pair[1]!r}")
        for function, pairs in BAD.items()
        for pair in pairs
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_the_name_of_its_argument(function, name, value):
    refused(lambda: CALLS[function](**{name: value}), rf"\b{name}\b")


@pytest.mark.parametrize(("start", "stop"), [("a", 3), (0.5, 2), (None, 2), (0, []), (0, np.zeros(3)), (0, 2.0)])
def test_the_ends_of_a_range_are_integers(start, stop):
    refused(lambda: gcodec.decode_range(FRAME, start, stop), "start", "stop", "integers")
    third, fifth = np.array([3, 5])
    assert gcodec.decode_range(FRAME, third, fifth).tolist() == X[3:5].tolist()


@pytest.mark.parametrize("size", ["a", 2.5, [2.5], None])
def test_sizes_are_integers(size):
    refused(lambda: gcodec.max_encoded_size(size, "float32"), "shape")


@pytest.mark.parametrize("limit", [float("nan"), "100", [100]])
def test_limits_are_numbers(limit):
    refused(lambda: gcodec.decode(FRAME, max_output_bytes=limit), "max_output_bytes")


# Arrays that are not plain


def test_masked_arrays_are_refused_for_their_mask_would_be_lost():
    masked = np.ma.masked_array(X, X > 0)
    refused(lambda: gcodec.encode(masked), r"\bx must", "mask", r"filled\(", r"\.data")
    refused(lambda: gcodec.encode(X, base=masked), r"\bbase must", "mask")
    levels = np.ma.masked_array(np.zeros(12, np.uint8), X > 0)
    refused(lambda: gcodec.encode(X, levels=levels), r"\blevels must", "mask")
    refused(lambda: gcodec.Encoder().encode(masked), r"\bx must", "mask")


def tensors() -> dict[str, tuple[Callable[[], Any], str]]:
    """Return makers of tensors without plain data, and words for what to do, by name."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def fake(device: str) -> Any:
        with FakeTensorMode():
            return torch.empty(12, device=device)

    x = torch.from_numpy(X)
    return {
        "fake": (lambda: fake("cpu"), "no data"),
        "fake on a device": (lambda: fake("cuda"), "no data|on the CPU"),
        "nested": (lambda: torch.nested.nested_tensor([x, x[:5]]), r"\.unbind\(\)"),
        "jagged": (lambda: torch.nested.nested_tensor([x, x[:5]], layout=torch.jagged), r"\.values\(\)"),
        "meta": (lambda: torch.empty(12, device="meta"), "no data"),
        "sparse": (lambda: torch.eye(3).to_sparse(), r"\.to_dense\(\)"),
        "compressed": (lambda: torch.eye(3).to_sparse_csr(), r"\.to_dense\(\)"),
        "quantized": (lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), r"\.dequantize\(\)"),
        "uninitialized": (lambda: torch.nn.LazyLinear(3).weight, "no data"),
        "masked": (lambda: torch.masked.masked_tensor(x, x > 0), "mask"),
        "integers": (lambda: torch.ones(3, dtype=torch.int32), "float32"),
        "complex": (lambda: torch.ones(3, dtype=torch.complex64), r"torch\.view_as_real"),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "fake",
        "fake on a device",
        "nested",
        "jagged",
        "meta",
        "sparse",
        "compressed",
        "quantized",
        "uninitialized",
        "masked",
        "integers",
        "complex",
    ],
)
def test_tensors_without_plain_data_are_refused_with_what_to_do(name):
    pytest.importorskip("torch")
    make, advice = tensors()[name]
    tensor = make()
    refused(lambda: gcodec.encode(tensor), r"\bx must", advice)
    refused(lambda: gcodec.Encoder().encode(tensor), r"\bx must", advice)
    refused(lambda: gcodec.encode(X, base=tensor), r"\bbase must", advice)
    refused(lambda: gcodec.encode(X, levels=tensor), r"\blevels must")
    refused(lambda: gcodec.decode(FRAME, out=tensor), r"\bout must|no CUDA device")


def test_tensors_within_transforms_are_refused():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X).reshape(3, 4)

    def inside(row: Any) -> Any:
        refused(lambda: gcodec.encode(row), r"\bx must", "torch.func")
        return row.sum()

    torch.func.vmap(inside)(x)
    torch.func.grad(inside)(x)


def test_distributed_tensors_are_refused_with_what_to_do():
    torch = pytest.importorskip("torch")
    dist = pytest.importorskip("torch.distributed")
    tensor = pytest.importorskip("torch.distributed.tensor")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = tensor.init_device_mesh("cpu", (1,))
        x = tensor.DTensor.from_local(torch.from_numpy(X), mesh, [tensor.Shard(0)])
        refused(lambda: gcodec.encode(x), r"\bx must", r"\.to_local\(\)", r"\.full_tensor\(\)")
        refused(lambda: gcodec.decode(FRAME, out=x), r"\bout must")
        assert gcodec.encode(x.to_local()) == gcodec.encode(torch.from_numpy(X))
    finally:
        dist.destroy_process_group()


def test_tensors_whose_memory_has_been_freed_are_refused(tmp_path):
    torch: Any = pytest.importorskip("torch")
    from gcodec import sync

    def freed(x: np.ndarray) -> Any:
        """Return a part of a tensor, not its beginning, without memory, as FSDP leaves parameters between uses."""
        whole = torch.from_numpy(np.concatenate([x, x])).clone()
        part = whole[len(x) :]
        whole.untyped_storage().resize_(0)
        return part

    param = torch.nn.Parameter(freed(X))
    optimizer = torch.optim.SGD([param], lr=0.1)
    for call in (
        lambda: gcodec.encode(freed(X)),
        lambda: gcodec.encode(X, base=freed(X)),
        lambda: gcodec.encode(X, levels=freed(LEVELS)),
        lambda: gcodec.encode(X, optimizer=optimizer, param=param),
        lambda: gcodec.decode(FRAME, out=freed(X)),
        lambda: gcodec.save({"x": freed(X)}, tmp_path / "x.gc"),
        lambda: gcodec.save({"x": freed(LEVELS)}, tmp_path / "x.gc"),
        lambda: sync.Publisher().publish({"x": freed(X)}),
        lambda: sync.Subscriber({"x": freed(X)}),
    ):
        refused(call, "has been freed")
    assert list(tmp_path.iterdir()) == []
    assert len(gcodec.decode(gcodec.encode(freed(X[:0])))) == 0


def test_subclasses_with_plain_data_are_encoded():
    torch: Any = pytest.importorskip("torch")

    class Named(torch.Tensor):
        """A tensor like any other."""

    x = torch.from_numpy(X)
    for same in (x.as_subclass(Named), torch.nn.Parameter(x), torch.nn.Buffer(x), x[None].expand(3, 12)[1]):
        assert gcodec.encode(same) == gcodec.encode(x)

    class Row(np.ndarray):
        """An array like any other."""

    assert gcodec.encode(X.view(Row)) == gcodec.encode(X)
