"""Measure whether formats detect bit flips and truncations, let them pass unnoticed, or end the process.

    python -m bench.corruption [--trials 200] [--out DIR]

writes ``bench/results/corruption.csv``. Every codec decodes in a forked process of its own (so not on Windows), which
is started anew after a crash or a hang. What is damaged: 256 KiB of recorded float32 gradients, encoded.

    detected    an error was raised
    silent      decoding succeeded and gave other values, or another number of them
    harmless    decoding succeeded and gave the right values: the damage hit bits that mean nothing
    crashed     the process died
    hung        no answer within ten seconds
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import selectors
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from bench.codec import RESULTS
from bench.data import default_folder, read_series
from gcodec.benchmark.csv_tables import write_table
from gcodec.benchmark.inputs import Input, gradients
from gcodec.benchmark.peers import CHECKED, PEERS, Peer
from gcodec.benchmark.settings import lossless_setting, near_lossless_setting
from gcodec.benchmark.timing import CodecTask, same_bytes

VALUES = 1 << 16
SEED = 20240
PATIENCE = 10.0  #: seconds until a decoder counts as hung
MEMORY = 64 << 30  #: bytes of address space a child may take: a damaged length must not make the machine swap
OUTCOMES = ("detected", "silent", "harmless", "crashed", "hung")
LETTERS = {"d": "detected", "s": "silent", "h": "harmless"}


def contestants() -> dict[str, Peer]:
    """Return the codecs by name: gcodec, lossless and near-lossless, and every peer that is installed."""
    ours = [Peer("gcodec", "", lambda data: lossless_setting(data).task()),
            Peer("gcodec near-lossless", "", lambda data: near_lossless_setting(data).task())]
    return {peer.name: peer for peer in (*ours, *PEERS, *CHECKED) if peer.installed}


def sample(folder: Path) -> Input:
    """Return the last step's gradients of the larger tensors, the first ``VALUES`` of them."""
    (model, dumps), *_ = sorted(read_series(folder).items(), reverse=True)
    whole = gradients(dumps[-1], model)
    levels = {ladder: values[:VALUES] for ladder, values in whole.levels.items()}
    return Input("sample", whole.dtype, whole.bits[:VALUES].copy(), levels)


def damages(encoded: bytes, trials: int) -> Iterator[tuple[str, bytes]]:
    """Yield (kind, damaged bytes): single bit flips anywhere, then truncations to any shorter length; seeded."""
    random = np.random.default_rng(SEED)
    for place in random.integers(8 * len(encoded), size=trials):
        flipped = bytearray(encoded)
        flipped[place >> 3] ^= 1 << (place & 7)
        yield "bit flip", bytes(flipped)
    for length in random.integers(len(encoded), size=trials):
        yield "truncation", encoded[:length]


def outcome(task: CodecTask, damaged: bytes) -> str:
    """Return the letter for one decoding."""
    try:
        return "h" if same_bytes(task.decode(damaged), task.result) else "s"
    except Exception:
        return "d"


def examine(peer: Peer, data: Input, trials: int) -> dict[str, Counter[str]]:
    """Outcomes by kind of damage."""
    task = peer.bind(data)
    assert task is not None
    task.verify()
    task.prepare()
    todo = list(damages(bytes(task.encode()), trials))
    found: dict[str, Counter[str]] = {kind: Counter() for kind, _ in todo}
    done = 0
    while done < len(todo):
        letters, end = _decode_in_child(task, [damaged for _, damaged in todo[done:]])
        for letter in letters:
            found[todo[done][0]][LETTERS[letter]] += 1
            done += 1
        if done < len(todo):
            found[todo[done][0]][end] += 1
            done += 1
    return found


def _decode_in_child(task: CodecTask, todo: list[bytes]) -> tuple[str, str]:
    """Return a letter for each decoding that a forked process got to, and what became of it then: crashed or hung."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _child(task, todo, writing)
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


def _child(task: CodecTask, todo: list[bytes], answers: int) -> NoReturn:
    """Writes a letter after each decoding; never returns."""
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        for damaged in todo:
            os.write(answers, outcome(task, damaged).encode())
    finally:
        os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if gcodec let anything pass or ended the process."""
    parser = argparse.ArgumentParser(prog="python -m bench.corruption", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200, help="bit flips, and as many truncations (default: 200)")
    parser.add_argument("--data", type=Path, help="folder of dumps (default: gcodec-demo/dumps, else tests/corpus)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--codec", action="append", help="only this one")
    options = parser.parse_args(arguments)
    data, peers = sample(options.data or default_folder()), contestants()
    rows, bad = [], 0
    print(f"{'codec':24}{'damage':12}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES))
    for name in options.codec or peers:
        for kind, counts in examine(peers[name], data, options.trials).items():
            rows.append([name, kind, options.trials, *(counts[outcome] for outcome in OUTCOMES)])
            print(f"{name:24}{kind:12}" + "".join(f"{counts[outcome]:10}" for outcome in OUTCOMES), flush=True)
            if name.startswith("gcodec"):
                bad += counts["silent"] + counts["crashed"] + counts["hung"]
    write_table(options.out / "corruption.csv", ["codec", "damage", "trials", *OUTCOMES], rows)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
