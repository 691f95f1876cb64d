"""Situations in which users of other codecs and formats lost data or could not go on, as they reported in public; the
table in docs/reliability.md names the reports."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec import Corruption, GcodecError, InvalidArgument, Unsupported, sync
from gcodec.archive import ArchiveReader
from gcodec.cli import main
from tests.support import laws
from tests.support.bit_patterns import KINDS, infinity, typed

A_BLOCK, A_PART = 1 << 14, 1 << 21


def through(save: Callable[..., None], load: Callable[..., Any], state: Any, **base: Any) -> tuple[Any, int]:
    """Return what comes back of a state, and the bytes that it took."""
    stream = io.BytesIO()
    save(state, stream, **base)
    size = len(stream.getvalue())
    stream.seek(0)
    return load(stream, **base), size


STORES = [(gcodec.save, gcodec.load), (gcodec.save_file, gcodec.load_file)]


def layouts() -> dict[str, Any]:
    """Return tensors and arrays whose values do not lie in memory row by row, or seem not to."""
    torch = pytest.importorskip("torch")
    image, z = torch.randn(2, 3, 5, 7), torch.randn(4, 5, dtype=torch.cfloat)
    return {
        "channels last": image.to(memory_format=torch.channels_last),
        "transposed": image[0, 0].t(),
        "expanded": image[0, 0, :, :1].expand(5, 7),
        "no dimension": torch.tensor(3.0),
        "real": z.real,
        "conjugate": z.conj(),
        "negative": z.conj().imag,
        "a step of no effect": torch.randn(3, 1, 4).as_strided((3, 1, 4), (4, 999, 1)),
        "backwards": np.arange(12.0).reshape(3, 4)[::-1, ::-2],
        "columns first": np.asfortranarray(np.eye(3, 5)),
    }


@pytest.mark.parametrize(("save", "load"), STORES)
def test_a_base_and_its_tensor_may_lie_in_memory_in_different_ways(save, load):
    for value in layouts().values():
        is_array = isinstance(value, np.ndarray)
        plain: Any = np.ascontiguousarray(value) if is_array else value.clone(memory_format=torch_layout())
        pairs: list[tuple[Any, Any]] = [(value, plain), (plain, value), (value, value)]
        for one, base in pairs:
            found, _ = through(save, load, {"x": one}, base={"x": base})
            got, wanted = (np.asarray(x if is_array else x.resolve_conj().resolve_neg()) for x in (found["x"], one))
            assert got.dtype == wanted.dtype and got.shape == wanted.shape and got.tobytes() == wanted.tobytes()


def torch_layout() -> Any:
    """Return torch's name for values row by row."""
    import torch

    return torch.contiguous_format


@pytest.mark.parametrize(("save", "load"), STORES)
def test_parts_of_a_large_tensor_take_their_own_bytes_in_the_file_and_in_memory(save, load):
    torch = pytest.importorskip("torch")
    large = torch.randn(1000, 100)
    whole = through(save, load, {"all": large})[1]
    for parts in (
        {"a": large[:10]},
        {"a": large[300:320], "b": large[700:710]},
        {str(n): part for n, part in enumerate(large[:500].chunk(10))},
    ):
        found, size = through(save, load, parts)
        share = sum(part.numel() for part in parts.values()) / large.numel()
        assert size < share * whole + 4000
        memory = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in found.values()}
        assert sum(memory.values()) <= 4 * share * large.numel()
        assert all(torch.equal(found[name], parts[name]) for name in parts)


@pytest.mark.parametrize("like", ["numpy", "torch", None])
def test_counts_without_a_dimension_keep_type_and_shape_however_often_they_are_sent(like):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    model(torch.randn(4, 8))
    wanted, before = model.state_dict(), None
    sent: dict[str, Any] = dict(wanted)
    for _ in range(3):
        received, _ = through(
            gcodec.save_file,
            lambda *a, **o: gcodec.load_file(*a, like=like, **o),
            sent,
            **({} if before is None else {"base": before}),
        )
        again = {name: torch.as_tensor(value) for name, value in received.items()}
        assert all(
            again[name].dtype == wanted[name].dtype and again[name].shape == wanted[name].shape for name in wanted
        )
        model.load_state_dict(again, strict=True)
        sent, before = received, sent


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_every_kind_of_nan_stays_nan_and_no_nan_becomes_an_infinity(dtype):
    """Also one of which only bits are set that the mode drops."""
    kind = KINDS[dtype]
    one, sign, quiet = kind.container.type(1), kind.W - 1, kind.M - 1
    payloads = {1, 2, 1 << quiet, 1 << quiet | 1, (1 << quiet) - 1, (1 << kind.M) - 1}
    some = np.array([infinity(kind) | payload for payload in (0, *payloads)], kind.container)
    some = np.concatenate([some, some | one << one * sign])
    for n in (len(some), 40_000):
        bits = np.resize(some, n)
        x, magnitude = typed(dtype, bits), bits & (one << one * sign) - one
        laws.assert_same_bits(gcodec.decode(gcodec.encode(x, dtype=dtype)), bits)
        for k in range(1, kind.M):
            for rounding in ("nearest", "truncate"):
                frame = gcodec.encode(x, dtype=dtype, mantissa_bits=k, rounding=rounding)
                found = laws.bits_of(gcodec.decode(frame)).reshape(-1)
                size = found & (one << one * sign) - one
                assert np.array_equal(size > infinity(kind), magnitude > infinity(kind))
                assert np.array_equal(size == infinity(kind), magnitude == infinity(kind))
                assert np.array_equal(found >> one * sign, bits >> one * sign)


@pytest.mark.parametrize("descr", ["|S0", "|V0", "<U0", "[('a', '<i8', (0,))]", "[('a', '<f4'), ('b', '|V0')]"])
@pytest.mark.parametrize("shape", ["(4,)", "(0,)", "()"])
def test_files_of_elements_without_bytes_come_back_and_end_no_process(descr, shape, tmp_path):
    described = descr if descr.startswith("[") else repr(descr)
    text = f"{{'descr': {described}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    n_values = int(np.prod(eval(shape)))
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(4 * n_values * ("<f4" in descr))
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    gcodec.compress_file(path)
    path.unlink()
    gcodec.decompress_file(tmp_path / "x.npy.gc")
    assert path.read_bytes() == data
    with pytest.raises(Unsupported, match="can only be restored with its file"):
        gcodec.load_file(tmp_path / "x.npy.gc")


@pytest.mark.parametrize("dtype", [[("a", int, (0,))], "V0", "O", "f4,f4"])
def test_arrays_of_elements_without_bytes_and_of_objects_are_refused(dtype):
    x = np.zeros(4, dtype)
    for call in (
        lambda: gcodec.encode(x),
        lambda: gcodec.save({"x": x}, io.BytesIO()),
        lambda: gcodec.save_file({"x": x}, io.BytesIO()),
        lambda: sync.Publisher().publish({"x": x}),
    ):
        with pytest.raises(InvalidArgument, match="x"):
            call()


@pytest.mark.parametrize("dtype", KINDS)
def test_constant_arrays_of_lengths_around_limits_are_decoded(dtype):
    kind = KINDS[dtype]
    sign, most = 1 << kind.W - 1, infinity(kind)
    for n in (*(A_BLOCK + d for d in (-1, 0, 1)), *(2 * A_BLOCK + d for d in (-1, 0, 1)), A_PART + 1):
        for value in (0, sign, most, most | 1, 1, sign >> 1) if n < A_PART else (0, most):
            for other in (None, 0, A_BLOCK - 1, A_BLOCK, n - 1) if n < A_PART else (None,):
                bits = np.full(n, value, kind.container)
                if other is not None and other < n:
                    bits[other] ^= 3
                laws.assert_same_bits(gcodec.decode(gcodec.encode(typed(dtype, bits), dtype=dtype)), bits)


NAMES = [
    "__metadata__",
    "__structure__",
    "gcodec-sync",
    "",
    "a/b",
    "/a",
    "..",
    "a\0b",
    "\ud800",
    "x" * 10_000,
    "A",
    "a",
    "\u00e9",
    "e\u0301",
    "a:b",
    "a*",
    "\n",
    "CON",
]


@pytest.mark.parametrize("name", NAMES, ids=[ascii(name)[:12] for name in NAMES])
def test_a_tensor_of_any_name_can_be_read_again_or_is_refused_by_name(name, tmp_path):
    pytest.importorskip("torch")
    state = {name: np.arange(6.0), "other": np.ones(3), "a\u0308": np.zeros(1), "\u00e4": np.ones(4)}

    def check(found: Any) -> None:
        assert found.keys() == state.keys()
        assert all(np.array_equal(found[key], value) for key, value in state.items())

    check(through(gcodec.save, gcodec.load, state)[0])
    gcodec.Checkpointer(tmp_path).save(1, state)
    check(gcodec.Checkpointer(tmp_path).load(1))
    reserved = name in ("__metadata__", "__structure__")
    if reserved or name == "\ud800":
        with pytest.raises(InvalidArgument, match=r"must (have another name|be a string that UTF-8 can encode)"):
            gcodec.save_file(state, io.BytesIO())
    else:
        check(through(gcodec.save_file, gcodec.load_file, state)[0])
    subscriber = sync.Subscriber()
    if name in ("__metadata__", "\ud800"):
        with pytest.raises(InvalidArgument, match="a tensor's name must"):
            sync.Publisher().publish(state)
    else:
        subscriber.apply(sync.Publisher().publish(state).data)
        check(subscriber.tensors)


def header(raw: object, data: bytes = b"") -> bytes:
    """Return a .safetensors file of a header, as JSON or as its text."""
    text = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    return len(text).to_bytes(8, "little") + text + data


ONE = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
TWO = {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}
VALUES = np.arange(4, dtype=np.float32).tobytes()
WELL_FORMED = {
    "no tensors": header({"__metadata__": {"a": "b"}}),
    "nothing": header({}),
    "spaces": header(b"{}      "),
    "empty metadata": header({"__metadata__": {}, "x": ONE}, VALUES),
    "padded": header(json.dumps({"x": ONE}).encode() + 60 * b" ", VALUES),
    "not in order": header({"y": TWO, "x": ONE}, 2 * VALUES),
    "further keys": header({"x": {**ONE, "k": 1}}, VALUES),
    "tensors of no bytes": header(
        {
            "x": ONE,
            "a": {"dtype": "F32", "shape": [0], "data_offsets": [16, 16]},
            "b": {"dtype": "F16", "shape": [3, 0], "data_offsets": [0, 0]},
        },
        VALUES,
    ),
}
MALFORMED = {
    "a number in metadata": header({"__metadata__": {"a": 1}, "x": ONE}, VALUES),
    "a name twice": header(b'{"x":%b,"x":%b}' % (json.dumps(ONE).encode(), json.dumps(TWO).encode()), 2 * VALUES),
    "bytes at the end": header({"x": ONE}, VALUES + b"more"),
    "a gap before": header({"x": TWO}, 2 * VALUES),
    "a gap": header({"x": ONE, "y": {**TWO, "data_offsets": [20, 36]}}, VALUES + b"abcd" + VALUES),
    "an overlap": header({"x": ONE, "y": {**TWO, "data_offsets": [8, 24]}}, VALUES + VALUES[:8]),
    "zeros after the header": header(json.dumps({"x": ONE}).encode() + b"\0\0", VALUES),
    "a type of nobody's": header({"x": {**ONE, "dtype": "Q9"}}, VALUES),
    "an end": header({"x": ONE}, VALUES)[:-3],
    "a mark of byte order": header(b"\xef\xbb\xbf" + json.dumps({"x": ONE}).encode(), VALUES),
}


@pytest.mark.parametrize("name", [*WELL_FORMED, *MALFORMED])
def test_a_safetensors_file_comes_back_byte_for_byte_or_is_refused_and_in_a_folder_is_kept_as_it_is(
    name, tmp_path, capsys
):
    data = (WELL_FORMED | MALFORMED)[name]
    folder = tmp_path / "run"
    folder.mkdir()
    (path := folder / "m.safetensors").write_bytes(data)
    (folder / "config.json").write_text("{}")
    if name in MALFORMED:
        with pytest.raises(Corruption, match=r"m\.safetensors"):
            gcodec.compress_file(path)
        assert len(list(folder.iterdir())) == 2
    else:
        gcodec.compress_file(path, tmp_path / "m.gc")
        assert {k: v.nbytes for k, v in gcodec.load_file(tmp_path / "m.gc", like="numpy").items()}.get("x", 16) == 16
    assert main(["compress", str(folder)]) == 0
    assert ("kept as plain bytes" in capsys.readouterr().err) == (name in MALFORMED)
    assert main(["decompress", str(tmp_path / "run.gc"), "-o", str(tmp_path / "again")]) == 0
    restored = list((tmp_path / "again").rglob("m.safetensors"))
    assert [place.read_bytes() for place in restored] == [data]


@pytest.mark.parametrize("metadata", [{}, {"a": "b"}, None])
def test_a_dictionary_without_tensors_is_kept_with_its_metadata(metadata, tmp_path):
    path = tmp_path / "x.gc"
    gcodec.save_file({}, path, metadata=metadata)
    assert gcodec.load_file(path) == {}
    with gcodec.open(path) as archive:
        assert archive.metadata() == (metadata or {})
    with pytest.raises(GcodecError, match="no tensor is called 'x'"):
        gcodec.load_file(path, names="x")


@pytest.mark.parametrize("how", ["cut off", "emptied", "replaced", "removed"])
def test_a_file_that_changes_while_it_is_read_is_an_error_or_what_it_was(how, tmp_path):
    """No file is mapped into memory, so a page that is gone ends no process."""
    path, other = tmp_path / "x.gc", tmp_path / "y.gc"
    values = np.random.default_rng(0).normal(size=400_000).astype(np.float32)
    gcodec.save_file({"a": values, "b": -values}, path)
    gcodec.save_file({"a": values[:9], "b": values[:9].astype(np.float64)}, other)
    with gcodec.open(path) as archive:
        if how in ("cut off", "emptied"):
            os.truncate(path, 5000 if how == "cut off" else 0)
            with pytest.raises(GcodecError, match=r"x\.gc: shrank from .* since it was opened"):
                archive["b"]
            return
        if how == "replaced":
            other.replace(path)
        else:
            path.unlink()
        assert np.array_equal(archive["b"], -values)


def test_a_base_that_shrinks_meanwhile_is_named_and_leaves_no_archive(tmp_path):
    values = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    gcodec.save_file({"a": values}, tmp_path / "base.gc")
    with ArchiveReader(tmp_path / "base.gc") as base:
        os.truncate(tmp_path / "base.gc", 6000)
        with pytest.raises(GcodecError, match=r"base\.gc: shrank from .* to 6000 bytes since it was opened"):
            gcodec.save_file({"a": values + 1}, tmp_path / "new.gc", base=base)
    assert not (tmp_path / "new.gc").exists()


def test_changes_of_weights_with_nan_reach_whoever_applies_them_bit_for_bit():
    """NaN is a value like others, and stands for nothing."""
    torch = pytest.importorskip("torch")

    def bits(tensor: Any) -> Any:
        return tensor.view(torch.int16)

    weights = {"w": torch.randn(64, 64, dtype=torch.bfloat16), "masked": torch.full((64, 64), float("nan")).bfloat16()}
    bits(weights["w"])[6] = 0x7F81
    start, mine, engine = ({name: value.clone() for name, value in weights.items()} for _ in range(3))
    publisher, subscriber = sync.Publisher(start=start), sync.Subscriber(mine)
    for step in range(6):
        weights["w"][step + 3 : step + 5] = float("nan") if step % 2 else 1.0
        weights["masked"][step, step] = 1.0 if step < 3 else float("nan")
        pending = subscriber.read(publisher.publish(weights).data)
        for name, indices, values in pending.iter_changes():
            engine[name].view(-1)[torch.as_tensor(indices)] = torch.as_tensor(values)
        pending.apply()
        for name, value in weights.items():
            assert torch.equal(bits(mine[name]), bits(value)) and torch.equal(bits(engine[name]), bits(value))


@pytest.mark.parametrize(
    ("payload", "scale"),
    [
        ("float8_e4m3fn", "float8_e8m0fnu"),
        ("float8_e4m3fn", "float32"),
        ("float4_e2m1fn_x2", "float8_e4m3fn"),
    ],
)
def test_quantized_weights_and_their_scales_change_together_or_alone(payload, scale):
    torch = pytest.importorskip("torch")
    if not hasattr(torch, payload):
        pytest.skip(f"this torch has no {payload}")
    random = np.random.default_rng(1)
    weights = {
        name: torch.from_numpy(random.integers(0, 126, shape).astype(np.uint8)).view(getattr(torch, dtype))
        for name, dtype, shape in (("w", payload, (128, 128)), ("w_scale_inv", scale, (8, 16)))
    }
    start, mine = ({name: value.clone() for name, value in weights.items()} for _ in range(2))
    publisher, subscriber = sync.Publisher(start=start), sync.Subscriber(mine)
    for changed in (["w", "w_scale_inv"], ["w_scale_inv"], ["w"], []):
        for name in changed:
            weights[name].view(torch.uint8)[3, 2] += 1
        data = publisher.publish(weights).data
        pending = subscriber.read(data)
        assert {name for name, _, _ in pending.iter_changes()} == set(changed)
        with pytest.raises(GcodecError):  # and then neither has changed
            subscriber.apply(data[:-40] + bytes(40))
        subscriber.apply(data)
        assert all(torch.equal(mine[name].view(torch.uint8), weights[name].view(torch.uint8)) for name in weights)


def test_values_that_change_and_change_back_while_a_worker_is_away_are_those_of_its_last_version(tmp_path):
    torch = pytest.importorskip("torch")
    first = {"w": torch.randn(1000).bfloat16(), "average": torch.randn(1000)}
    weights, start, mine = ({name: value.clone() for name, value in first.items()} for _ in range(3))
    publisher, subscriber = sync.Publisher(start=start), sync.Subscriber(mine)
    folder = sync.VersionFolder(tmp_path / "versions")
    for step in range(9):
        weights["w"][:10] = step % 2
        weights["average"].lerp_(weights["w"].float(), 0.01)  # by no optimizer
        if step == 5:
            weights = {name: value.clone() for name, value in first.items()}
        folder.send(publisher.publish(weights))
        if step % 3 == 2:
            subscriber.catch_up(folder)
            assert all(torch.equal(mine[name], weights[name]) for name in weights)
