"""The demo's data sets, neither of which needs a download: images of digits, and the text of Python's own library.

The images are scikit-learn's handwritten digits (1797 gray images of 8 x 8), shifted and noised anew for each batch.

The text is the sources of Python's standard library. Words, punctuation and runs of white space are tokens; a piece too
rare for the vocabulary is spelled in bytes, so that any text encodes and decodes back to itself. Files are read in
sorted order and ties in frequency are broken by the text itself: one Python version always yields one vocabulary.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from ..errors import GcodecError, missing_package

HELD_OUT = 297
NOISE = 0.8
LARGEST_SHIFT = 1

BYTES = 256
VOCABULARY_SIZE = 8192
SKIPPED_FOLDERS = frozenset(
    "test tests idle_test idlelib lib2to3 distutils encodings pydoc_data ensurepip turtledemo "
    "site-packages dist-packages __pycache__".split()
)
PIECE = re.compile(r" ?[A-Za-z]+|[0-9]|\n[\n ]*| +|_+|[^\w\s]+|.", re.DOTALL)


@dataclass(frozen=True)
class Digits:
    """Images of handwritten digits.

    Attributes:
        images: float32[n, 1, 8, 8], of zero mean and unit variance over the whole set.
        labels: int64[n].
    """

    images: np.ndarray
    labels: np.ndarray

    def batch(self, size: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return ``size`` random images, each shifted by up to a pixel and with Gaussian noise, and their labels."""
        picked = random.integers(len(self.images), size=size)
        shifts = random.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1, size=(size, 2))
        images = np.stack([_shift(self.images[i], *s) for i, s in zip(picked, shifts, strict=True)])
        images += NOISE * random.standard_normal(images.shape, dtype=np.float32)
        return images, self.labels[picked]


def load_digits() -> tuple[Digits, Digits]:
    """Return the training set and the held-out set."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise missing_package("scikit-learn") from error
    data = datasets.load_digits()
    images = data.images.astype(np.float32)[:, None]
    images = (images - images.mean()) / images.std()
    labels = data.target.astype(np.int64)
    split = len(labels) - HELD_OUT
    return Digits(images[:split], labels[:split]), Digits(images[split:], labels[split:])


def _shift(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Return the image moved by whole pixels; what leaves on one side comes back as background on the other."""
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)), constant_values=image.min())
    return padded[:, 1 - down : 9 - down, 1 - right : 9 - right]


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary, whose ids 0 to 255 are single bytes of UTF-8; the pieces follow.

    Attributes:
        pieces: Pieces of text, the most frequent first.
    """

    pieces: tuple[str, ...]

    def __len__(self) -> int:
        return BYTES + len(self.pieces)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each piece."""
        return {piece: BYTES + rank for rank, piece in enumerate(self.pieces)}

    def encode(self, text: str) -> np.ndarray:
        """Convert text to token ids, 1-D int64."""
        ids: dict[str, tuple[int, ...]] = {piece: (number,) for piece, number in self.ids.items()}
        for piece in set(PIECE.findall(text)).difference(ids):
            ids[piece] = tuple(piece.encode("utf-8", "surrogatepass"))
        spelled = chain.from_iterable(map(ids.__getitem__, PIECE.findall(text)))
        return np.fromiter(spelled, dtype=np.int64)

    def decode(self, tokens: Iterable[int]) -> str:
        """Convert token ids back to text."""
        parts = (bytes([t]) if t < BYTES else self.pieces[t - BYTES].encode() for t in tokens)
        return b"".join(parts).decode("utf-8", "replace")


def read_standard_library(limit: int | None = None) -> str:
    """Return the standard library's sources as one text, or its first ``limit`` characters.

    Raises:
        GcodecError: This Python was installed without its sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    length = 0
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        if SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
            continue
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        length += len(texts[-1])
        if limit is not None and length >= limit:
            break
    if not texts:
        raise GcodecError(f"no Python sources under {root}: the demo's text model has nothing to read")
    return "".join(texts)[:limit]


def build_vocabulary(text: str, size: int = VOCABULARY_SIZE) -> Vocabulary:
    """Return the ``size - 256`` most frequent pieces of ``text`` (fewer if it has fewer) beside the 256 bytes."""
    counts = Counter(PIECE.findall(text))
    ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
    return Vocabulary(tuple(ranked[: size - BYTES]))
