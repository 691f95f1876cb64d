"""Federated averaging with nothing between the parties but bytes: no process group, any transport.

    python examples/federated.py --rounds 3 --clients 3

In each round the server sends its model to every client, as the difference from the one before; each client trains on
data that only it has and answers with the difference from what it was sent; the server averages. All of it is lossless:
each side has the very bits that the other had.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

import gcodec

State = dict[str, Tensor]


def pack(state: Mapping[str, Tensor], known: Mapping[str, Tensor] | None) -> bytes:
    """Return a state_dict as bytes; ``known``: an earlier one that the other side has, to send the difference from."""
    stream = io.BytesIO()
    gcodec.save_file(state, stream, base=known)
    return stream.getvalue()


def unpack(data: bytes, known: Mapping[str, Tensor] | None, limit: int = 1 << 30) -> State:
    """Undo :func:`pack`. Every byte is checked, and what would need more than ``limit`` bytes of memory is
    refused."""
    return gcodec.load_file(io.BytesIO(data), base=known, like="torch", max_output_bytes=limit)


def network() -> nn.Module:
    """Return the model: 64 numbers to 10 scores."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def examples(seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and classes: the largest of the first ten numbers."""
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :10].argmax(1)


class Client:
    """A party with data of its own; ``known``: the model it was sent last."""

    def __init__(self, number: int) -> None:
        self.x, self.y = examples(1 + number)
        self.known: State | None = None

    def answer(self, data: bytes) -> bytes:
        """Train from what the server sent; the trained model, as bytes."""
        self.known = unpack(data, self.known)
        model = network()
        model.load_state_dict(self.known)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x, y in zip(self.x.split(64), self.y.split(64), strict=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return pack(model.state_dict(), self.known)


def average(states: Sequence[State]) -> State:
    """Return the mean of each tensor."""
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def run(rounds: int, n_clients: int) -> tuple[list[float], int, int]:
    """Play the server's part, and the clients in the same process: its losses, bytes sent either way, and what the same
    tensors would have been without compression."""
    model, clients = network(), [Client(number) for number in range(n_clients)]
    x, y = examples(0)
    losses, sent, dense = [], 0, 0
    before: State | None = None
    for _ in range(rounds):
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        message = pack(state, before)
        answers = [client.answer(message) for client in clients]
        model.load_state_dict(average([unpack(answer, state) for answer in answers]))
        before = state
        sent += n_clients * len(message) + sum(map(len, answers))
        dense += 2 * n_clients * sum(tensor.nbytes for tensor in state.values())
        with torch.no_grad():
            losses.append(functional.cross_entropy(model(x), y).item())
    return losses, sent, dense


def main() -> None:
    """Parse the arguments, train, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=3)
    options = parser.parse_args()
    losses, sent, dense = run(options.rounds, options.clients)
    for number, loss in enumerate(losses):
        print(f"round {number + 1}: loss {loss:.3f}")
    print(f"sent {sent / 1e6:.2f} MB, lossless; {dense / 1e6:.2f} MB without compression")


if __name__ == "__main__":
    main()
