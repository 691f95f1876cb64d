"""JAX arrays: taken as numpy arrays are where numpy can read them, and refused with advice where it cannot."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gcodec
from gcodec import sync

jax.config.update("jax_num_cpu_devices", 4)
#: Types of frames, and those that only files hold.
FRAMES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
FILES = [*FRAMES, "int32", "uint32", "bool", "int8", "complex64", "float8_e8m0fnu"]
SHAPES: list[tuple[int, ...]] = [(), (0, 3), (1,), (70, 90)]


def array_of(dtype, shape=(70, 90)):
    return jax.random.normal(jax.random.key(3), shape).astype(dtype)


def same(result, array):
    """True for a numpy array of the type, shape and bits of a JAX array."""
    wanted = np.asarray(array)
    return (
        isinstance(result, np.ndarray)
        and result.dtype == wanted.dtype
        and result.shape == wanted.shape
        and result.tobytes() == wanted.tobytes()
    )


def saved_file(tensors, **options):
    stream = io.BytesIO()
    gcodec.save_file(tensors, stream, **options)
    stream.seek(0)
    return stream


def saved(state, **options):
    stream = io.BytesIO()
    gcodec.save(state, stream, **options)
    stream.seek(0)
    return stream


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FRAMES)
def test_frames_are_those_of_the_numpy_array(dtype, shape):
    array = array_of(dtype, shape)
    frame = gcodec.encode(array)
    assert frame == gcodec.encode(np.asarray(array))
    assert same(gcodec.decode(frame), array)
    assert gcodec.Encoder().encode(array) == gcodec.Encoder().encode(np.asarray(array))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FILES)
def test_files_and_states_hold_the_numpy_array(dtype, shape):
    array = array_of(dtype, shape)
    assert same(gcodec.load_file(saved_file({"x": array}))["x"], array)
    loaded = gcodec.load(saved({"of": [array, (array, 3)]}))["of"]
    assert same(loaded[0], array) and same(loaded[1][0], array) and loaded[1][1] == 3


def test_bases_and_levels_may_be_jax_arrays():
    array, base = array_of("float32"), array_of("float32") * 1.000001
    assert gcodec.encode(array, base=base) == gcodec.encode(np.asarray(array), base=np.asarray(base))
    levels = jnp.full(array.shape, 3, jnp.uint8)
    assert gcodec.encode(array, levels=levels) == gcodec.encode(np.asarray(array), levels=np.asarray(levels))
    file = saved_file({"x": array}, base={"x": base})
    assert len(file.getvalue()) < len(saved_file({"x": array}).getvalue())
    assert same(gcodec.load_file(file, base={"x": base})["x"], array)
    assert same(gcodec.load(saved([array], base=[base]), base=[base])[0], array)


def test_the_same_array_twice_is_stored_once():
    array = array_of("float32")
    for save, alone, twice in ((saved_file, {"a": array}, {"a": array, "b": array}), (saved, [array], [array, array])):
        assert len(save(twice).getvalue()) < 1.1 * len(save(alone).getvalue())
    loaded = gcodec.load(saved([array, array]))
    assert same(loaded[0], array) and same(loaded[1], array) and np.shares_memory(*loaded)


def test_sharded_arrays_are_read_whole_and_go_back_to_their_shards():
    mesh = Mesh(np.array(jax.devices()), ("d",))
    array = jax.device_put(array_of("float32", (64, 96)), NamedSharding(mesh, PartitionSpec("d", None)))
    one = jax.device_put(array_of("bfloat16"), jax.devices()[2])
    assert len(array.addressable_shards) == 4
    assert same(gcodec.decode(gcodec.encode(array)), array)
    loaded = gcodec.load(saved({"sharded": array, "one": one}))
    assert same(loaded["sharded"], array) and same(loaded["one"], one)
    again = jax.device_put(loaded["sharded"], array.sharding)
    assert again.sharding == array.sharding and jnp.array_equal(again, array)


def donated():
    """Return an array that was donated to a jitted function."""
    array = jnp.zeros(100)
    jax.jit(lambda x: x + 1, donate_argnums=0)(array).block_until_ready()
    return array


#: Everything that reads an array of its caller.
READERS = {
    "encode": gcodec.encode,
    "base": lambda x: gcodec.encode(np.zeros(100, np.float32), base=x),
    "levels": lambda x: gcodec.encode(np.zeros(100, np.float32), levels=x),
    "save_file": lambda x: saved_file({"x": x}),
    "save_file with dtype": lambda x: saved_file({"x": x}, dtype="bfloat16"),
    "load_file": lambda x: gcodec.load_file(saved_file({"x": np.zeros(100)}), base={"x": x}),
    "save": lambda x: saved([1, x]),
    "publish": lambda x: sync.Publisher().publish({"x": x}),
    "publish with dtype": lambda x: sync.Publisher(dtype="bfloat16").publish({"x": x}),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_has_no_values_raises_InvalidArgument_with_advice(read):
    with pytest.raises(gcodec.InvalidArgument, match=r"jax\.debug\.callback"):
        jax.jit(read)(jnp.zeros(100))
    with pytest.raises(gcodec.InvalidArgument, match="outside of jit, grad, vmap"):
        jax.grad(read)(jnp.zeros(100))
    with pytest.raises(gcodec.InvalidArgument, match="donated to a jitted function"):
        read(donated())
    with pytest.raises(gcodec.InvalidArgument, match=r"jax\.random\.key_data"):
        read(jax.random.key(0))


def test_callbacks_of_jitted_functions_get_values():
    frames: list[bytes] = []

    @jax.jit
    def step(x):
        jax.debug.callback(lambda g: frames.append(gcodec.encode(g)), 2 * x)
        return x.sum()

    array = array_of("float32")
    step(array).block_until_ready()
    jax.effects_barrier()
    assert [same(gcodec.decode(frame), 2 * array) for frame in frames] == [True]


def test_arrays_to_be_written_to_raise_InvalidArgument_with_advice():
    array = array_of("float32")
    with pytest.raises(gcodec.InvalidArgument, match=r"leave out .*jax\.device_put"):
        gcodec.decode(gcodec.encode(array), out=array)
    with pytest.raises(gcodec.InvalidArgument, match=r"JAX arrays cannot be written to.*Subscriber"):
        sync.Subscriber({"x": array})


@pytest.mark.parametrize("dtype", ["int4", "float8_e4m3", "float8_e3m4", "float4_e2m1fn"])
def test_types_that_files_lack_raise_InvalidArgument_with_their_names(dtype):
    array = array_of(dtype)
    for read in (gcodec.encode, READERS["save_file"], READERS["save"], READERS["publish"]):
        with pytest.raises(gcodec.InvalidArgument, match=f"not (of )?{dtype}"):
            read(array)


class Moments(NamedTuple):
    mu: jax.Array
    n_steps: int


class Node:
    """A node of a pytree, of a class that gcodec does not know."""


def test_other_pytrees_raise_InvalidArgument_with_advice():
    with pytest.raises(gcodec.InvalidArgument, match=r"opt/0: a .*Node cannot be saved.*jax\.tree\.leaves"):
        saved({"opt": (Node(),)})
    state = {"opt": (Moments(array_of("float32"), 3),)}
    found = gcodec.load(saved(state))["opt"][0]
    assert isinstance(found, Moments) and found.n_steps == 3 and same(found.mu, np.asarray(state["opt"][0].mu))
    again = jax.tree.unflatten(jax.tree.structure(state), gcodec.load(saved(jax.tree.leaves(state))))
    assert isinstance(again["opt"][0], Moments) and again["opt"][0].n_steps == 3
    assert same(again["opt"][0].mu, state["opt"][0].mu)


def by_path(tree):
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def test_train_states_of_flax_come_back(tmp_path):
    optax = pytest.importorskip("optax")
    flax = pytest.importorskip("flax")
    train_state = pytest.importorskip("flax.training.train_state")
    params = flax.core.freeze({"dense": {"kernel": array_of("float32"), "bias": array_of("bfloat16", (90,))}})
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    first = train_state.TrainState.create(apply_fn=None, params=params, tx=optimizer)
    state = first.apply_gradients(grads=jax.tree.map(jnp.ones_like, params))
    series = gcodec.Checkpointer(tmp_path)
    for n, one in enumerate((first, state)):
        series.save(n, by_path(one))
    loaded = series.load(1)

    def as_in(path, leaf):
        return jax.device_put(loaded[jax.tree_util.keystr(path)], getattr(leaf, "sharding", None))

    again = jax.tree.map_with_path(as_in, first)  # whose step is a Python number
    assert jax.tree.structure(again) == jax.tree.structure(state)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, state))
    dictionary = gcodec.load(saved(flax.serialization.to_state_dict(state)))
    again = flax.serialization.from_state_dict(first, dictionary)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, state))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_published_arrays_reach_subscribers(dtype):
    publisher, subscriber = sync.Publisher(dtype=dtype), sync.Subscriber(like="numpy")
    state = {"w": array_of("float32"), "b": array_of("bfloat16"), "n": jnp.int32(1)}
    copies = []
    for _ in range(3):
        state = {name: value + 1 for name, value in state.items()}
        subscriber.apply(publisher.publish(state).data)
        for name, value in state.items():
            sent = value.astype(dtype) if dtype and value.dtype == jnp.float32 else value
            assert same(subscriber.tensors[name], sent)
            copies.append((jnp.array(subscriber.tensors[name]), sent))
    assert all(jnp.array_equal(copy, sent) for copy, sent in copies)  # later versions were written elsewhere


def test_dumps_hold_jax_arrays(tmp_path):
    torch = pytest.importorskip("torch")
    from gcodec.recorder import read_dump, write_dump

    tensors = {
        f"{kind}/{dtype}": array_of(dtype, shape)
        for kind in ("grad", "param")
        for dtype, shape in (("float32", (7, 9)), ("bfloat16", (9,)))
    }
    tensors["step/float32"] = jnp.int32(4)
    write_dump(tmp_path / "dump.safetensors", tensors, step=1, optimizer="AdamW", groups=[])
    dump = read_dump(tmp_path / "dump.safetensors")
    assert dump.keys == tensors.keys()
    for name, value in tensors.items():
        found = dump.tensor(name)
        bits = found.view(torch.int16).numpy() if isinstance(found, torch.Tensor) else found
        assert bits.tobytes() == np.asarray(value).tobytes() and tuple(found.shape) == value.shape
