"""A training of a small language model with float32 masters, whose bfloat16 weights two worker processes follow."""

from __future__ import annotations

from typing import Any

import torch
import xxhash
from torch import nn

from gcodec.sync import Publisher, Subscriber, VersionFolder
from tests.sync.states import bits_of

WORDS, WIDTH, CONTEXT, BATCH = 64, 48, 16, 8


class Language(nn.Module):
    """A language model of one attention block: int64[n, CONTEXT] to scores of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(CONTEXT, WIDTH) / 8)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return scores, [n, CONTEXT, WORDS]."""
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], dtype=self.places.dtype)
        return self.head(self.block(self.words(words) + self.places, src_mask=mask, is_causal=True))


def train(publisher: Publisher, folder: VersionFolder, steps: int, told: list[Any]) -> list[tuple[str, str]]:
    """Train, publish each step, and put its number into some queues; return the hashes of the weights, and of what the
    model makes of them."""
    torch.manual_seed(0)
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    text = torch.randint(0, WORDS, (20, BATCH, CONTEXT + 1)).sort(-1).values
    found = []
    for step in range(steps):
        words = text[step % len(text)]
        loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        folder.send(publisher.publish(model.state_dict()))
        for queue in told:
            queue.put(step + 1)
        narrow = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
        found.append((digest(narrow), answer(narrow)))
    return found


def digest(state: dict[str, Any]) -> str:
    """Return a hash of a state's bits."""
    data = xxhash.xxh3_64()
    for name in sorted(state):
        data.update(name.encode())
        data.update(bits_of(state[name]).tobytes())
    return data.hexdigest()


def answer(state: dict[str, torch.Tensor]) -> str:
    """Return a hash of what a bfloat16 model with these weights makes of some words."""
    model = Language().to(torch.bfloat16).eval()
    model.load_state_dict(state)
    with torch.no_grad():
        return digest({"scores": model(torch.arange(CONTEXT)[None])})


def work(path: str, last: int, every: int, told: Any, found: Any) -> None:
    """Follow the versions in a folder, every so many, and put the number and hashes of each into a queue."""
    torch.set_num_threads(1)
    model = Language().to(torch.bfloat16)
    subscriber, folder = Subscriber(model.state_dict(), threads=1), VersionFolder(path)
    while subscriber.number < last:
        number = told.get()
        if number % every == 0 or number == last:
            subscriber.catch_up(folder, to=number)
            found.put((subscriber.number, digest(model.state_dict()), answer(model.state_dict())))


def follow(path: str, steps: int, intervals: tuple[int, ...], context: Any) -> tuple[list[Any], list[list[Any]]]:
    """Train beside one worker process for each interval.

    Returns:
        The hashes of each step, and of each worker (number, hash, hash) for each version that it was at.
    """
    told, found = ([context.Queue() for _ in intervals] for _ in range(2))
    workers = [
        context.Process(target=work, args=(path, steps, every, *queues), daemon=True)
        for every, *queues in zip(intervals, told, found, strict=True)
    ]
    for worker in workers:
        worker.start()
    try:
        publisher, folder = Publisher(dtype="bfloat16", anchor_every=10), VersionFolder(path, keep_anchors=None)
        published = train(publisher, folder, steps, told)
        counts = [-(-steps // every) for every in intervals]
        answers = [[queue.get(timeout=120) for _ in range(count)] for queue, count in zip(found, counts, strict=True)]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    return published, answers
