"""scikit-learn's handwritten digits (1797 gray images of 8 x 8), shifted and noised anew for each batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..benchmark.extras import missing

HELD_OUT = 297
NOISE = 0.8
LARGEST_SHIFT = 1


@dataclass(frozen=True)
class Digits:
    """Images (n, 1, 8, 8) float32, of zero mean and unit variance over the whole set; labels (n,) int64."""

    images: np.ndarray
    labels: np.ndarray

    def batch(self, size: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """``size`` random images, each shifted by up to a pixel and with Gaussian noise, and their labels."""
        picked = random.integers(len(self.images), size=size)
        shifts = random.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1, size=(size, 2))
        images = np.stack([_shift(self.images[i], *s) for i, s in zip(picked, shifts, strict=True)])
        images += NOISE * random.standard_normal(images.shape, dtype=np.float32)
        return images, self.labels[picked]


def load_digits() -> tuple[Digits, Digits]:
    """The training set and the held-out set."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise missing("scikit-learn") from error
    data = datasets.load_digits()
    images = data.images.astype(np.float32)[:, None]
    images = (images - images.mean()) / images.std()
    labels = data.target.astype(np.int64)
    split = len(labels) - HELD_OUT
    return Digits(images[:split], labels[:split]), Digits(images[split:], labels[split:])


def _shift(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """The image moved by whole pixels; what leaves on one side comes back as background on the other."""
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)), constant_values=image.min())
    return padded[:, 1 - down : 9 - down, 1 - right : 9 - right]
