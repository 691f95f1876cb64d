"""Sentences of film reviews with their sentiment, as BERT's tokens.

The sentences are Pang and Lee's (2005), of which the Stanford Sentiment Treebank is made, too, on which the GComp paper
fine-tunes. Hutto and Gilbert (2014) had each rated by at least 20 people from -4 to 4, and put the means into a package
on PyPI, vaderSentiment 0.5 (MIT license). A sentence is positive if its mean is above 0.
"""

from __future__ import annotations

import tarfile
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bench.experiments.minilm.model import vocabulary
from bench.public_models import FOLDER, Model, fetch

RATED = Model("VADER", "vaderSentiment==0.5", "hutto_ICWSM_2014.tar.gz", "text")
FILE = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
LENGTH = 32  #: tokens of a sentence, the first and the last with it; longer ones are cut
EVERY = 10  #: sentences, of which one is held out
LONGEST = 100  #: characters of a word that is looked up
FIRST, LAST, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"


class Examples(NamedTuple):
    """``tokens``: int64 (n, LENGTH), 0 behind the end; ``labels``: int64 (n,), 1 if positive."""

    tokens: Tensor
    labels: Tensor


def words(text: str) -> Iterator[str]:
    """Yield the words of a text as BERT sees them: in lower case, without accents, each mark by itself."""
    plain = (letter for letter in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(letter) != "Mn")
    word = ""
    for letter in plain:
        if letter.isspace() or _is_mark(letter):
            yield from filter(None, (word, letter.strip()))
            word = ""
        elif unicodedata.category(letter)[0] != "C":
            word += letter
    yield from filter(None, (word,))


def _is_mark(letter: str) -> bool:
    """Tell whether a character is a mark; all of ASCII's that are no letters and digits are."""
    return (letter.isascii() and letter.isprintable() and not letter.isalnum() and letter != " ") or (
        unicodedata.category(letter)[0] == "P"
    )


def pieces(word: str, numbers: Mapping[str, int]) -> list[int]:
    """Return the tokens of a word: the longest beginning that the vocabulary has, then the longest of what is left."""
    results, begin = [], 0
    while begin < len(word):
        parts = ((end, "##" * (begin > 0) + word[begin:end]) for end in range(len(word), begin, -1))
        end, part = next(((end, part) for end, part in parts if part in numbers), (0, UNKNOWN))
        if not end or len(word) > LONGEST:
            return [numbers[UNKNOWN]]
        results.append(numbers[part])
        begin = end
    return results


def tokens_of(text: str, numbers: Mapping[str, int], length: int = LENGTH) -> list[int]:
    """Return the tokens of a sentence, at most ``length`` of them, between those that mark its ends."""
    inner = [number for word in words(text) for number in pieces(word, numbers)]
    return [numbers[FIRST], *inner[: length - 2], numbers[LAST]]


def rated(folder: Path = FOLDER) -> list[tuple[str, float]]:
    """Return the sentences with their mean ratings, in the order of the file, which pip fetches if it is not there."""
    with tarfile.open(fetch(RATED, folder)) as archive:
        file = archive.extractfile(FILE)
        assert file is not None
        lines = file.read().decode("utf-8").splitlines()
    parts = (line.split("\t", 2) for line in lines)
    return [(text, float(rating)) for _, rating, text in parts]


@lru_cache(1)
def examples() -> tuple[Examples, Examples]:
    """Return the sentences to learn from, and those held out. Sentences rated 0 are left out."""
    numbers = vocabulary()
    sentences = [(text, rating) for text, rating in rated() if rating]
    tokens = torch.zeros(len(sentences), LENGTH, dtype=torch.int64)
    for row, (text, _) in zip(tokens, sentences, strict=True):
        own = torch.tensor(tokens_of(text, numbers))
        row[: len(own)] = own
    labels = torch.tensor([int(rating > 0) for _, rating in sentences])
    is_held_out = torch.arange(len(sentences)) % EVERY == 0
    return Examples(tokens[~is_held_out], labels[~is_held_out]), Examples(tokens[is_held_out], labels[is_held_out])
