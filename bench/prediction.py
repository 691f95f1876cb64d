"""Sizes of vocabulary layers' gradients, against the training step and against the batch size.

    python -m bench.prediction [--data DIR] [--out DIR]

writes ``bench/results/prediction.csv``, from what ``bench.record`` left in ``DIR/vocabulary``. gcodec is measured
without prediction, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open

import gcodec
from bench.codec import RESULTS
from bench.data import default_folder
from bench.record import VOCABULARY
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.inputs import Input
from gcodec.benchmark.measure import OURS
from gcodec.benchmark.peers import PEERS, Peer, available
from gcodec.benchmark.settings import lossless_setting
from gcodec.benchmark.timing import CodecTask

NAMES = ("shuffle+zstd-3", "OpenZL LZ", "pcodec-8")  #: the best of the peers on repeating rows, and on others


def without_prediction(data: Input) -> CodecTask:
    """Lossless gcodec with every block coded by itself."""
    setting = lossless_setting(data)
    unpredicted = {"options": gcodec.EncoderOptions(prediction=False)}
    return dataclasses.replace(setting, options=setting.options | unpredicted).task()


def contestants() -> list[Peer]:
    """Return gcodec, with and without prediction, and the peers."""
    ours = [
        Peer(OURS, "", lambda data: lossless_setting(data).task()),
        Peer(f"{OURS}, no prediction", "", without_prediction),
    ]
    return [*ours, *available(peer for peer in PEERS if peer.name in NAMES)[0]]


def rows_of(path: Path) -> Iterator[NamedRow]:
    """Yield the table for one model, layer by layer. Raises RoundTripError."""
    peers = contestants()
    with safe_open(path, "np") as file:
        names = file.keys()  # of a file, which is no mapping
        places = sorted((layer, int(step), int(batch)) for step, batch, layer in (name.split("/") for name in names))
        for layer, step, batch in places:
            gradient = np.ascontiguousarray(file.get_tensor(f"{step}/{batch}/{layer}"))
            data = Input(
                f"{path.stem} {layer} step {step}",
                "float32",
                gradient.reshape(-1).view(np.uint32),
                shapes=(gradient.shape,),
            )
            for peer in peers:
                if task := peer.bind(data):
                    yield {
                        "model": path.stem,
                        "layer": layer,
                        "step": step,
                        "batch": batch,
                        "codec": peer.name,
                        "original_bytes": data.nbytes,
                        "compressed_bytes": task.verify(),
                    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.prediction", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of dumps (default: what bench.record wrote)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    folder = options.data or default_folder()
    paths = sorted((folder / VOCABULARY).glob("*.safetensors"))
    if not paths:
        print(f"{folder} has no vocabulary layers: run python -m bench.record")
        return 0
    rows = []
    for path in paths:
        results = list(rows_of(path))
        print(f"{path.stem}: {len(results)} sizes", flush=True)
        rows += results
    write_named(options.out / "prediction.csv", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
