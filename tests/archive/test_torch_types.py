"""Tensors of every type of torch, and of other classes than its own: kept bit for bit, or refused by place."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save as safetensors_bytes
from torch.testing._internal.two_tensor import TwoTensor

import gcodec
from gcodec import InvalidArgument, Unsupported, sync

#: Types of torch that are in no file; gcodec.save keeps the others.
REFUSED = r"bits\w+|u?int[1-7]|q\w+"
TYPES = sorted({str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)})
PACKED = pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="needs torch 2.8")


def bits_of(tensor: Any) -> Any:
    """Return the bytes of a tensor, in its shape."""
    return tensor if tensor.dtype == torch.bool else tensor.view(torch.uint8)


def of_type(name: str, shape: tuple[int, ...] = (6, 16)) -> Any:
    """Return a tensor of a type, of random bytes; ``shape``: of these bytes."""
    data = torch.from_numpy(np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8))
    return data > 100 if name == "bool" else data.view(getattr(torch, name))


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_kept_or_refused_by_place_and_the_old_file_stays(name, tmp_path):
    tensor = of_type(name)
    gcodec.save({"step": 1}, tmp_path / "x.gc")
    state = {"ok": torch.ones(3), "layers": [{"odd": tensor}]}
    if re.fullmatch(REFUSED, name):
        with pytest.raises(InvalidArgument, match=rf"layers/0/odd.* type of numbers .*, not of {name}$"):
            gcodec.save(state, tmp_path / "x.gc")
        with pytest.raises(InvalidArgument, match=rf"'odd'.*, not of {name}$"):
            gcodec.save_file({"odd": tensor}, tmp_path / "y.gc")
        assert gcodec.load(tmp_path / "x.gc") == {"step": 1} and len(list(tmp_path.iterdir())) == 1
        return
    gcodec.save(state, tmp_path / "x.gc")
    found = gcodec.load(tmp_path / "x.gc")["layers"][0]["odd"]
    assert found.dtype == tensor.dtype and torch.equal(bits_of(found), bits_of(tensor))


@PACKED
@pytest.mark.parametrize("shape", [(8,), (1,), (0,), (3, 5), (0, 4), (2, 3, 32), (1 << 14,)])
@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "float8_e8m0fnu"])
def test_packed_values_and_scales_come_back_from_every_store(name, shape, tmp_path):
    """A header of .safetensors counts the values, two in a byte, and torch the bytes."""
    tensor = of_type(name, shape)
    tensors = {"w": tensor, "scale": torch.ones(3)}
    wanted = bits_of(tensor)

    def check(found: Any) -> None:
        assert found.dtype == tensor.dtype and found.shape == tensor.shape and torch.equal(bits_of(found), wanted)

    plain = safetensors_bytes(tensors)
    (tmp_path / "m.safetensors").write_bytes(plain)
    gcodec.compress_file(tmp_path / "m.safetensors")
    gcodec.save_file(tensors, tmp_path / "d.gc")
    gcodec.save(tensors, tmp_path / "o.gc")
    torch.save(tensors, tmp_path / "m.pt")
    gcodec.compress_file(tmp_path / "m.pt")
    for path in ("m.safetensors.gc", "d.gc", "o.gc", "m.pt.gc"):
        check(gcodec.load_file(tmp_path / path)["w"])
        check(gcodec.load(tmp_path / path)["w"])
        with gcodec.open(tmp_path / path) as archive:
            check(archive["w"])
            assert torch.equal(bits_of(archive.get_slice("w")[:1]), wanted[:1])
        raw = gcodec.load_file(tmp_path / path, like="numpy", names="w")["w"]
        assert raw.shape == shape and np.array_equal(raw.view(np.uint8), wanted.numpy())
    (tmp_path / "m.safetensors").unlink()
    gcodec.decompress_file(tmp_path / "m.safetensors.gc")
    assert (tmp_path / "m.safetensors").read_bytes() == plain
    gcodec.decompress_file(tmp_path / "d.gc")
    check(load_safetensors(tmp_path / "tensors.safetensors")["w"])

    publisher, subscriber = sync.Publisher(), sync.Subscriber()
    mine = {"w": tensor.clone(), "scale": torch.ones(3)}
    for step in range(3):
        bits_of(mine["w"]).add_(step)
        subscriber.apply(publisher.publish(mine).data)
        assert torch.equal(bits_of(subscriber.tensors["w"]), bits_of(mine["w"]))


@PACKED
def test_packed_values_of_any_strides_are_saved(tmp_path):
    tensor = of_type("float4_e2m1fn_x2", (6, 16)).t()
    for save, load in ((gcodec.save, gcodec.load), (gcodec.save_file, gcodec.load_file)):
        save({"w": tensor, "part": tensor[::2, 1:3]}, tmp_path / "x.gc")
        found: Any = load(tmp_path / "x.gc")
        assert torch.equal(bits_of(found["w"]), bits_of(tensor))
        assert torch.equal(bits_of(found["part"]), bits_of(tensor[::2, 1:3]))


@PACKED
def test_a_single_pair_of_packed_values_needs_a_dimension():
    for save in (gcodec.save, gcodec.save_file, lambda state, file: sync.Publisher().publish(state)):
        with pytest.raises(InvalidArgument, match=r"'w': must have a dimension, .* shape \[1\]$"):
            save({"w": of_type("float4_e2m1fn_x2", (1,))[0]}, io.BytesIO())


@pytest.mark.parametrize("shape", [[30, 1], [], [6]])
def test_packed_values_that_end_within_a_byte_come_back_with_their_file(shape, tmp_path):
    """No tensor of torch has such a shape."""
    n_bytes = int(np.prod(shape)) // 2
    entry = {"dtype": "F4", "shape": shape, "data_offsets": [0, n_bytes]}
    text = json.dumps({"w": entry}).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(range(n_bytes))
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    if not shape:
        with pytest.raises(gcodec.Corruption, match="is not 0 bytes"):
            gcodec.compress_file(path)
        return
    gcodec.compress_file(path)
    path.unlink()
    gcodec.decompress_file(tmp_path / "m.safetensors.gc")
    assert path.read_bytes() == data
    if shape[-1] % 2:
        with pytest.raises(Unsupported, match="type F4 can only be restored with its file"):
            gcodec.load_file(tmp_path / "m.safetensors.gc")
    else:
        assert gcodec.load_file(tmp_path / "m.safetensors.gc", like="numpy")["w"].shape == (3,)


def test_tensors_that_are_made_of_others_are_refused_where_no_class_can_be_kept_and_their_parts_are_named(tmp_path):
    """As quantized weights of torchao are: they have a type, a shape and no memory."""
    made = TwoTensor(torch.ones(4), torch.zeros(4))
    advice = "must be plain, not a TwoTensor: pass those that it is made of: a, b$"
    calls = {
        "x": lambda: gcodec.encode(made),
        "'w'": lambda: gcodec.save_file({"w": made}, tmp_path / "x.gc"),
        "tensor 'w'": lambda: sync.Publisher().publish({"w": made}),
        "tensor 'v'": lambda: sync.Subscriber({"v": made}),
    }
    for place, call in calls.items():
        with pytest.raises(InvalidArgument, match=f"{place}.* {advice}"):
            call()
        assert not list(tmp_path.glob("*.gc"))
