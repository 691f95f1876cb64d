"""Measure whether formats detect bit flips and truncations, let them pass unnoticed, or end the process.

    python -m bench.corruption [--trials 10000] [--truncations N] [--out DIR]

writes ``bench/results/corruption.csv``. Every codec decodes in a forked process of its own (so not on Windows), which
is started anew after a crash or a hang. What is damaged: 64 KiB of recorded float32 gradients, as a frame, as a message
of an all-reduce, and as an archive; peers encode the same, or keep it as a file.

    detected    an error was raised
    silent      decoding succeeded and gave other values, or another number of them
    harmless    decoding succeeded and gave the right values: the damage hit bits that mean nothing
    crashed     the process died
    hung        no answer within ten seconds
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import os
import resource
import selectors
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from bench.codec import RESULTS
from bench.data import default_folder, read_series
from gcodec.archive import ArchiveReader, save_file
from gcodec.benchmark.csv_tables import write_table
from gcodec.benchmark.inputs import Input, gradients
from gcodec.benchmark.peers import CHECKED, PEERS, Peer
from gcodec.benchmark.settings import lossless_setting, near_lossless_setting
from gcodec.benchmark.timing import CodecTask, same_bytes
from gcodec.format.modes import lossless

VALUES = 1 << 14
TRIALS = 10_000
SEED = 20240
PATIENCE = 10.0  #: seconds until a decoder counts as hung
MEMORY = 64 << 30  #: bytes of address space a child may take: a damaged length must not make the machine swap
OUTCOMES = ("detected", "silent", "harmless", "crashed", "hung")
Damage = tuple[str, int]  #: its kind, and the bit that is flipped or the length that is left
LETTERS = {"d": "detected", "s": "silent", "h": "harmless"}


def contestants() -> dict[str, Peer]:
    """Return the codecs by name: gcodec, lossless and near-lossless, and every peer that is installed."""
    ours = [
        Peer("gcodec", "", lambda data: lossless_setting(data).task()),
        Peer("gcodec near-lossless", "", lambda data: near_lossless_setting(data).task()),
        Peer("gcodec message", "torch", message_task),
        Peer("gcodec archive", "", archive_task),
    ]
    files = [
        Peer("safetensors file", "", safetensors_task),
        Peer("npz file, compressed", "", npz_task),
        Peer("torch.save file", "torch", torch_task),
    ]
    return {peer.name: peer for peer in (*ours, *PEERS, *CHECKED, *files) if peer.installed}


def message_task(data: Input) -> CodecTask:
    """Return the task of a message between ranks: a header, and a frame behind it."""
    from gcodec.distributed.reduction.coder import Coder
    from gcodec.distributed.stats import Counters
    from gcodec.distributed.transport.message import HEADER, Header, check

    header = Header(0, 1, 0, 1, 0, data.bits.size, 0)
    coder = Coder(data.type, lossless(data.type), None, None, [], 1, Counters())

    def encode() -> bytes:
        message = np.empty(HEADER + 2 * data.bits.nbytes, np.uint8)
        size = coder.encode(data.bits, 0, 0, message[HEADER:])
        header._replace(payload=size).write_to(message)
        return message[: HEADER + size].tobytes()

    def decode(message: bytes) -> np.ndarray:
        received, out = np.frombuffer(message, np.uint8), np.empty_like(data.bits)
        if len(received) < HEADER:  # Gloo receives into the room for the header; what is not sent stays zero
            received = np.concatenate([received, np.zeros(HEADER - len(received), np.uint8)])
        coder.decode(check(received, header, "rank 1"), out)
        return out

    return CodecTask(encode, decode, data.bits)


def archive_task(data: Input) -> CodecTask:
    """Return the task of an archive of a file with one tensor, all of which is restored."""

    def encode() -> bytes:
        stream = io.BytesIO()
        save_file({"x": data.values}, stream, threads=1)
        return stream.getvalue()

    def decode(archive: bytes) -> np.ndarray:
        with ArchiveReader(io.BytesIO(archive), threads=1) as reader:
            restored = np.concatenate(list(reader.restored(reader.files[0])))
        return restored[-data.bits.nbytes :]

    return CodecTask(encode, decode, data.bits)


def safetensors_task(data: Input) -> CodecTask:
    """Return the task of a ``.safetensors`` file."""
    from safetensors.numpy import load, save

    return CodecTask(lambda: save({"x": data.values}), lambda file: load(file)["x"], data.bits)


def npz_task(data: Input) -> CodecTask:
    """Return the task of a ``.npz`` file whose members are compressed."""

    def encode() -> bytes:
        stream = io.BytesIO()
        np.savez_compressed(stream, x=data.values)
        return stream.getvalue()

    return CodecTask(encode, lambda file: np.load(io.BytesIO(file))["x"], data.bits)


def torch_task(data: Input) -> CodecTask:
    """Return the task of a file of ``torch.save``."""
    import torch

    def encode() -> bytes:
        stream = io.BytesIO()
        torch.save({"x": torch.from_numpy(data.values)}, stream)
        return stream.getvalue()

    return CodecTask(encode, lambda file: torch.load(io.BytesIO(file), weights_only=True)["x"].numpy(), data.bits)


def sample(folder: Path) -> Input:
    """Return the last step's gradients of the larger tensors, the first ``VALUES`` of them."""
    (model, dumps), *_ = sorted(read_series(folder).items(), reverse=True)
    whole = gradients(dumps[-1], model)
    levels = {ladder: values[:VALUES] for ladder, values in whole.levels.items()}
    return Input("sample", whole.dtype, whole.bits[:VALUES].copy(), levels)


def damages(size: int, trials: int, truncations: int | None) -> list[Damage]:
    """Return single bit flips, at different places, then truncations to different shorter lengths; seeded.

    Args:
        size: Bytes of what is damaged.
        trials: Bit flips, or all that there are if those are fewer.
        truncations: Truncations; None for every length.
    """
    random = np.random.default_rng(SEED)
    flips = random.choice(8 * size, min(trials, 8 * size), replace=False)
    lengths = range(size) if truncations is None else random.choice(size, min(truncations, size), replace=False)
    return [*(("bit flip", int(place)) for place in flips), *(("truncation", int(length)) for length in lengths)]


def damaged(encoded: bytes, damage: Damage) -> bytes:
    """Return a copy of some bytes, damaged."""
    kind, place = damage
    if kind == "truncation":
        return encoded[:place]
    flipped = bytearray(encoded)
    flipped[place >> 3] ^= 1 << (place & 7)
    return bytes(flipped)


def outcome(task: CodecTask, data: bytes) -> str:
    """Return the letter for one decoding."""
    try:
        return "h" if same_bytes(task.decode(data), task.result) else "s"
    except Exception:
        return "d"


def examine(peer: Peer, data: Input, trials: int, truncations: int | None) -> dict[str, Counter[str]]:
    """Outcomes by kind of damage."""
    task = peer.bind(data)
    assert task is not None
    task.verify()
    task.prepare()
    encoded = bytes(task.encode())
    todo = damages(len(encoded), trials, truncations)
    found: dict[str, Counter[str]] = {kind: Counter() for kind, _ in todo}
    done = 0
    while done < len(todo):
        letters, end = _decode_in_child(task, encoded, todo[done:])
        for letter in letters:
            found[todo[done][0]][LETTERS[letter]] += 1
            done += 1
        if done < len(todo):
            found[todo[done][0]][end] += 1
            done += 1
    return found


def _decode_in_child(task: CodecTask, encoded: bytes, todo: list[Damage]) -> tuple[str, str]:
    """Return a letter for each decoding that a forked process got to, and what became of it then: crashed or hung."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _child(task, encoded, todo, writing)
    os.close(writing)
    letters, end = b"", "crashed"
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while True:
            if not selector.select(PATIENCE):
                end = "hung"
                os.kill(child, signal.SIGKILL)
                break
            if not (some := os.read(reading, 4096)):
                break
            letters += some
    os.close(reading)
    os.waitpid(child, 0)
    return letters.decode(), end


def _child(task: CodecTask, encoded: bytes, todo: list[Damage], answers: int) -> NoReturn:
    """Writes a letter after each decoding; never returns."""
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        for damage in todo:
            os.write(answers, outcome(task, damaged(encoded, damage)).encode())
    finally:
        os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if gcodec let anything pass or ended the process."""
    parser = argparse.ArgumentParser(prog="python -m bench.corruption", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"bit flips (default: {TRIALS})")
    parser.add_argument("--truncations", type=int, help="so many truncations (default: to every length)")
    parser.add_argument("--data", type=Path, help="folder of dumps (default: gcodec-demo/dumps, else tests/corpus)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--codec", action="append", help="only this one")
    options = parser.parse_args(arguments)
    data, peers = sample(options.data or default_folder()), contestants()
    rows, bad = [], 0
    print(f"{'codec':24}{'damage':12}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES))
    for name in options.codec or peers:
        for kind, counts in examine(peers[name], data, options.trials, options.truncations).items():
            rows.append([name, kind, counts.total(), *(counts[outcome] for outcome in OUTCOMES)])
            print(f"{name:24}{kind:12}" + "".join(f"{counts[outcome]:10}" for outcome in OUTCOMES), flush=True)
            if name.startswith("gcodec"):
                bad += counts["silent"] + counts["crashed"] + counts["hung"]
    write_table(options.out / "corruption.csv", ["codec", "damage", "trials", *OUTCOMES], rows)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
