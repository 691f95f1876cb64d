"""What each format makes of bit flips and truncations: are they detected, do they go unnoticed, does the process die.

    python -m bench.corruption [--trials 200] [--out DIR]

writes ``bench/results/corruption.csv``. Every codec decodes in a child process of its own, which is started anew after
a crash or a hang. What is damaged: 256 KiB of recorded float32 gradients.

    detected    an error was raised
    silent      decoding succeeded and gave other values, or another number of them
    harmless    decoding succeeded and gave the right values: the damage hit bits that mean nothing
    crashed     the process died
    hung        no answer within ten seconds
"""

from __future__ import annotations

import argparse
import os
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from bench.codec import RESULTS
from bench.data import default_folder, read_series
from gcodec.demo.inputs import Input, gradients
from gcodec.demo.peers import CHECKED, PEERS, Peer
from gcodec.demo.settings import lossless, near_lossless
from gcodec.demo.tables import write_table
from gcodec.demo.timing import Task, same_bytes

ROOT = Path(__file__).resolve().parents[1]
VALUES = 1 << 16
SEED = 20240
PATIENCE = 10.0  #: seconds until a decoder counts as hung
MEMORY = 64 << 30  #: bytes of address space a child may take: a damaged length must not make the machine swap
OUTCOMES = ("detected", "silent", "harmless", "crashed", "hung")
LETTERS = {"d": "detected", "s": "silent", "h": "harmless"}


def contestants() -> dict[str, Peer]:
    """By name: gcodec, lossless and near-lossless, and every peer that is installed."""
    ours = [Peer("gcodec", "", lambda data: lossless(data).task()),
            Peer("gcodec near-lossless", "", lambda data: near_lossless(data).task())]
    return {peer.name: peer for peer in (*ours, *PEERS, *CHECKED) if peer.installed}


def sample(folder: Path) -> Input:
    """The last step's gradients of the larger tensors, the first ``VALUES`` of them."""
    (model, dumps), *_ = sorted(read_series(folder).items(), reverse=True)
    whole = gradients(dumps[-1], model)
    levels = {ladder: values[:VALUES] for ladder, values in whole.levels.items()}
    return Input("sample", whole.dtype, whole.bits[:VALUES].copy(), levels)


def damages(encoded: bytes, trials: int) -> Iterator[tuple[str, bytes]]:
    """(kind, damaged bytes): single bit flips anywhere, then truncations to any shorter length; seeded."""
    random = np.random.default_rng(SEED)
    for place in random.integers(8 * len(encoded), size=trials):
        flipped = bytearray(encoded)
        flipped[place >> 3] ^= 1 << (place & 7)
        yield "bit flip", bytes(flipped)
    for length in random.integers(len(encoded), size=trials):
        yield "truncation", encoded[:length]


def child(name: str, folder: Path, trials: int, start: int) -> None:
    """Decodes damaged bytes from number ``start`` on; a letter on standard output after each."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    task = contestants()[name].bind(sample(folder))
    assert task is not None
    task.prepare()
    encoded = bytes(task.encode())
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not look like an answer
    os.write(answers, b"!")
    for _, damaged in list(damages(encoded, trials))[start:]:
        os.write(answers, outcome(task, damaged).encode())


def outcome(task: Task, damaged: bytes) -> str:
    """The letter for one decoding."""
    try:
        return "h" if same_bytes(task.decode(damaged), task.result) else "s"
    except Exception:
        return "d"


def examine(name: str, folder: Path, trials: int) -> dict[str, Counter[str]]:
    """Outcomes by kind of damage."""
    kinds = ["bit flip"] * trials + ["truncation"] * trials
    found: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    done = 0
    while done < len(kinds):
        command = [sys.executable, "-m", "bench.corruption", "--child", name, "--start", str(done),
                   "--trials", str(trials), "--data", str(folder)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        letters, end = _listen(process)
        if not letters.startswith("!"):
            raise SystemExit(f"{name}: the child process failed before the first trial: {' '.join(command)}")
        for letter in letters[1:]:
            found[kinds[done]][LETTERS[letter]] += 1
            done += 1
        if done < len(kinds):
            found[kinds[done]][end] += 1
            done += 1
    return found


def _listen(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """A child's letters, and what became of it if it did not get to the end: crashed or hung."""
    assert process.stdout is not None
    letters, end = b"", "crashed"
    with selectors.DefaultSelector() as selector, process.stdout as pipe:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(PATIENCE if letters else 60 + PATIENCE):
                end = "hung"
                process.kill()
                break
            if not (some := os.read(pipe.fileno(), 4096)):
                break
            letters += some
    process.wait()
    return letters.decode(), end


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if gcodec let anything pass or ended the process."""
    parser = argparse.ArgumentParser(prog="python -m bench.corruption", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200, help="bit flips, and as many truncations (default: 200)")
    parser.add_argument("--data", type=Path, help="folder of dumps (default: gcodec-demo/dumps, else tests/corpus)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--codec", action="append", help="only this one")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    folder = options.data or default_folder()
    if options.child:
        child(options.child, folder, options.trials, options.start)
        return 0
    rows, bad = [], 0
    print(f"{'codec':24}{'damage':12}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES))
    for name in options.codec or contestants():
        for kind, counts in examine(name, folder.resolve(), options.trials).items():
            rows.append([name, kind, options.trials, *(counts[outcome] for outcome in OUTCOMES)])
            print(f"{name:24}{kind:12}" + "".join(f"{counts[outcome]:10}" for outcome in OUTCOMES), flush=True)
            if name.startswith("gcodec"):
                bad += counts["silent"] + counts["crashed"] + counts["hung"]
    write_table(options.out / "corruption.csv", ["codec", "damage", "trials", *OUTCOMES], rows)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
