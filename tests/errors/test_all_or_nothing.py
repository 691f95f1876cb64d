"""The law of all or nothing: an interrupt before any bytecode leaves what was there before, or what was to be there."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.archive import ArchiveWriter
from gcodec.archive.whole_files import add_file
from gcodec.sync import Publisher, Subscriber, WeightVersion
from tests.errors.fault_cases import bytes_of, content_of, some_state, some_values, weights
from tests.support.faults import Step, code_in, raised_at, steps_of

#: A file that is interrupted between its opening and the line that notes it is closed when it is collected.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
Call = Callable[[], Any]

#: The bytecodes that a law is tried at, drawn with a fixed seed; all of them with `make slow`.
N_DRAWN = 30


def test_the_steps_of_a_function_are_its_bytecodes_that_can_fail():
    frame = gcodec.encode(some_values(), threads=1)
    decoder = gcodec.Decoder(threads=1)
    steps = steps_of(lambda: decoder.decode(frame), lambda code: code.co_name == "_remember")
    assert len(steps) > 10
    assert all(raised_at(lambda: decoder.decode(frame), step, KeyboardInterrupt()) for step in steps)


def interrupted(
    begin: Callable[[], Call], is_traced: Callable[[CodeType], bool], check: Callable[[Step], None], n_drawn: int
) -> None:
    """Make a call again and again, each time interrupted before another bytecode.

    Args:
        begin: Makes what is there before, and returns the call.
        is_traced: Chooses the functions that are interrupted.
        check: Looks at what is there after.
        n_drawn: At most so many bytecodes are tried.
    """
    # What holds signals back is a matter of its own: they cannot arrive in the blocks that it is used for.
    steps = [step for step in steps_of(begin(), is_traced) if step.code.co_name != "signals_deferred"]
    assert len(steps) > 5
    for step in steps if len(steps) <= n_drawn else random.Random(0).sample(steps, n_drawn):
        call = begin()
        assert raised_at(call, step, KeyboardInterrupt())
        check(step)
    gc.collect()  # the files that were left open


DRAWN = [N_DRAWN, pytest.param(10**6, marks=pytest.mark.slow)]


class Followed:
    """A subscriber that has the first of three versions."""

    def __init__(self) -> None:
        publisher, self.states = Publisher(threads=1), [weights(number) for number in range(3)]
        self.versions = [publisher.publish(state) for state in self.states]
        self.anchor = self.versions[-1].anchor()
        self.first = Publisher(threads=1).publish(self.states[0]).anchor()
        self.subscriber = Subscriber()

    def begin(self) -> Call:
        self.subscriber = Subscriber({name: torch.zeros_like(value) for name, value in weights(0).items()}, threads=1)
        self.subscriber.apply(self.first)
        return lambda: self.subscriber.apply(self.versions[1].data)

    def check(self, step: Step) -> None:
        subscriber = self.subscriber
        assert bytes_of(subscriber.tensors) == bytes_of(self.states[subscriber.number - 1]), step
        if subscriber.number == 1:
            subscriber.apply(self.versions[1].data)
        subscriber.apply(self.versions[2].data)
        assert bytes_of(subscriber.tensors) == bytes_of(self.states[2]), step


@pytest.mark.parametrize("n_drawn", DRAWN)
def test_a_subscriber_holds_the_weights_of_its_number_and_takes_every_further_version(n_drawn):
    followed = Followed()
    names = {"_has_applied", "_note_written", "apply", "take_back", "taken_back", "write", "write_all"}
    interrupted(followed.begin, lambda code: code.co_name in names, followed.check, 10**6)
    interrupted(
        followed.begin,
        code_in("sync/subscriber.py", "sync/tensor_bits.py", "sync/version_message.py"),
        followed.check,
        n_drawn,
    )


def test_a_version_that_is_tried_out_leaves_the_weights():
    """Of tensors that share memory in part, whose values show only when they are written."""
    flat = torch.arange(100.0)
    state = {"a": flat[:60], "b": flat[40:]}
    publisher = Publisher(threads=1)
    first, second = publisher.publish(state), publisher.publish({name: value + 1 for name, value in state.items()})
    anchor = Publisher(threads=1).publish(state).anchor()
    held: list[Any] = []

    def begin() -> Call:
        memory = torch.zeros(100)
        subscriber = Subscriber({"a": memory[:60], "b": memory[40:]}, threads=1)
        subscriber.apply(anchor)
        pending = subscriber.read(second.data)
        held[:] = [memory]
        return pending.try_out

    def check(step: Step) -> None:
        assert torch.equal(held[0], flat), step

    assert first.number == 1
    interrupted(begin, lambda code: code_in("sync/weight_changes.py")(code) or code.co_name == "try_out", check, 10**6)


@pytest.mark.parametrize("n_drawn", DRAWN)
def test_a_publisher_goes_on_with_versions_that_its_subscriber_can_take(n_drawn):
    made: list[tuple[Publisher, Subscriber]] = []

    def begin() -> Call:
        publisher, subscriber = Publisher(threads=1), Subscriber(threads=1)
        subscriber.apply(publisher.publish(weights(0)).anchor())
        made[:] = [(publisher, subscriber)]
        return lambda: publisher.publish(weights(1))

    def check(step: Step) -> None:
        publisher, subscriber = made[0]
        version: WeightVersion = publisher.publish(weights(2))
        assert version.number in (2, 3), step
        try:
            subscriber.apply(version.data)
        except gcodec.BrokenChain:  # the version that was interrupted is lost, as a message may be
            subscriber.apply(version.anchor())
        assert bytes_of(subscriber.tensors) == bytes_of(weights(2)), step

    interrupted(begin, code_in("sync/publisher.py"), check, n_drawn)


@pytest.mark.parametrize("n_drawn", DRAWN)
def test_a_stream_goes_on_whatever_interrupted_it(n_drawn):
    """Frames of two types, of which one is interrupted: those that came out decode."""
    x = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    streams: list[Any] = []

    def begin() -> Call:
        encoder, decoder = gcodec.Encoder(threads=1), gcodec.Decoder(threads=1)
        for _ in range(2):
            decoder.decode(encoder.encode(x))
        streams[:] = [encoder, decoder]
        return lambda: encoder.encode(x.astype(np.float16))

    def check(step: Step) -> None:
        encoder, decoder = streams
        for values in (x, x.astype(np.float16), x):
            assert np.array_equal(decoder.decode(encoder.encode(values)), values), step

    interrupted(begin, code_in("stream.py"), check, n_drawn)

    def refresh() -> Call:
        begin()
        streams[0].interval = streams[0].cycle.interval = 1
        return lambda: streams[0].encode(x)

    interrupted(refresh, code_in("stream.py"), check, n_drawn)


def test_a_decoder_knows_the_codebooks_of_before_or_of_after():
    values = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    encoder, decoder = gcodec.Encoder(threads=1), gcodec.Decoder(threads=1)
    for _ in range(3):
        decoder.decode(encoder.encode(values))
    frame = encoder.encode(values)
    interrupted(
        lambda: lambda: decoder.decode(frame),
        code_in("stream.py"),
        lambda step: np.testing.assert_array_equal(decoder.decode(frame), values),
        10**6,
    )


@pytest.mark.parametrize("n_drawn", DRAWN)
@pytest.mark.parametrize("n_changed", [40, 20_000])
def test_what_is_decoded_into_its_own_base_is_the_old_array_or_the_new_one(n_drawn, n_changed):
    old = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    new = old.copy()
    new[:: len(new) // n_changed] += 1
    frame, held = gcodec.encode(new, base=old, threads=1), [old]

    def begin() -> Call:
        held[:] = [old.copy()]
        return lambda: gcodec.decode(frame, base=held[0], out=held[0], threads=1)

    def check(step: Step) -> None:
        assert np.array_equal(held[0], old) or np.array_equal(held[0], new), step

    interrupted(
        begin, code_in("frame/decode.py", "codec.py", "frame/sparse_blocks.py", "frame/coded_blocks.py"), check, n_drawn
    )


WRITING = code_in(
    "archive/output.py", "files/all_or_nothing.py", "archive/writer.py", "archive/objects.py", "archive/whole_files.py"
)


@pytest.mark.parametrize("n_drawn", DRAWN)
def test_a_saved_file_is_the_old_one_or_the_new_one(tmp_path, n_drawn):
    old, new, place = (tmp_path / name / "last.gc" for name in ("old", "new", "out"))  # an archive knows its own name
    for path in (old, new, place):
        path.parent.mkdir()
    gcodec.save(some_state(0), old, threads=1)
    gcodec.save(some_state(1), new, threads=1)
    either = {old.read_bytes(), new.read_bytes()}

    def begin() -> Call:
        for path in place.parent.iterdir():
            path.unlink()
        place.write_bytes(old.read_bytes())
        return lambda: gcodec.save(some_state(1), place, threads=1)

    interrupted(begin, WRITING, lambda step: check_in(either, place.read_bytes(), step), n_drawn)
    # An old file that has been replaced cannot be given back, so all of these steps are tried on every commit.
    names = {"_rename_all", "commit"}
    interrupted(
        begin, lambda code: code.co_name in names, lambda step: check_in(either, place.read_bytes(), step), 10**6
    )


@pytest.mark.parametrize("how", ["object", "dictionary", "file"])
def test_nothing_is_left_of_a_file_where_pythons_stack_of_blocks_is_interrupted(tmp_path, how):
    """It is written in Python, and ends a block that it has taken out, or none where it comes in between."""
    np.save(tmp_path / "x.npy", some_values())
    state = {"w": some_values()}
    (tmp_path / "out").mkdir()
    place = tmp_path / "out" / "x.gc"

    def begin() -> Call:
        for path in place.parent.iterdir():
            path.unlink()
        return {
            "object": lambda: gcodec.save(state, place, threads=1),
            "dictionary": lambda: gcodec.save_file(state, place, threads=1),
            "file": lambda: gcodec.compress_file(tmp_path / "x.npy", place, threads=1),
        }[how]

    def check(step: Step) -> None:
        assert [path.name for path in place.parent.iterdir()] in ([], [place.name]), step

    interrupted(begin, lambda code: "ExitStack" in code.co_qualname, check, 10**6)


def check_in(either: set[bytes], found: bytes, step: Step) -> None:
    assert found in either, step


@pytest.mark.parametrize("n_drawn", DRAWN)
def test_restored_files_are_all_there_or_none(tmp_path, n_drawn):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in "abc":
        (source / name).write_bytes(name.encode() * 1000)
    with ArchiveWriter(tmp_path / "all.gc") as writer:
        for path in sorted(source.iterdir()):
            add_file(writer, path, path.name)
    old = dict.fromkeys("abc", b"old")

    def begin() -> Call:
        for path in target.rglob("*"):
            path.unlink()
        target.mkdir(exist_ok=True)
        for name, data in old.items():
            (target / name).write_bytes(data)
        return lambda: gcodec.decompress_file(tmp_path / "all.gc", f"{target}/", force=True, threads=1)

    def check(step: Step) -> None:
        found = {name: data for name, data in content_of(target).items() if not name.startswith(".")}
        assert found in (old, content_of(source)), step

    interrupted(begin, WRITING, check, n_drawn)


@pytest.mark.parametrize("n_drawn", DRAWN)
def test_every_step_of_a_series_loads_and_the_series_goes_on(tmp_path, n_drawn):
    numbers = iter(range(10**6))
    folders: list[Path] = []

    def begin() -> Call:
        folder = tmp_path / str(next(numbers))
        checkpoints = gcodec.Checkpointer(folder, full_every=4, keep_last=1, threads=1)
        checkpoints.save(0, some_state(0))
        folders[:] = [folder]
        return lambda: checkpoints.save(1, some_state(1))

    def check(step: Step) -> None:
        checkpoints = gcodec.Checkpointer(folders[0], full_every=4, threads=1)
        assert checkpoints.latest() in (0, 1), step
        if checkpoints.latest() == 0:
            checkpoints.save(1, some_state(1))
        for number in checkpoints.steps():
            assert bytes_of(checkpoints.load(number)) == bytes_of(some_state(number)), step

    interrupted(
        begin,
        code_in("checkpoints/checkpointer.py", "checkpoints/step_folder.py", "archive/folders.py", "archive/output.py"),
        check,
        n_drawn,
    )
