"""Laws of the messages of one job: tags tell them apart, and what is sent is what its receiver expects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
from gcodec.distributed.stats import Counters
from gcodec.distributed.transport.message import CONTRIBUTION, HEADER, RECEIPT, RESULT
from gcodec.distributed.transport.message_exchange import REST, DueMessage, MessageExchange
from gcodec.errors import Corruption, PeerError

KINDS = (CONTRIBUTION, RESULT, RECEIPT, REST)
PLACES = st.tuples(st.integers(0, (1 << 11) - 1), st.sampled_from(KINDS), st.integers(0, (1 << 17) - 1))


def exchange_of(rank: int, sequence: int = 7, agreement: int = 1) -> MessageExchange:
    """Return the messages of a job of a lane that sends nothing."""
    lane: Any = SimpleNamespace(rank=rank, next_sequence=lambda: sequence, transfers=lambda where: None)
    return MessageExchange(lane, agreement, Counters(), "bucket 3")


@given(PLACES, PLACES)
def test_tags_tell_messages_apart_and_fit_gloo(one, other):
    tags = [exchange_of(0, sequence)._tag(DueMessage(1, kind, piece)) for sequence, kind, piece in (one, other)]
    assert (tags[0] == tags[1]) == (one == other) and all(0 <= tag < 1 << 31 for tag in tags)


@given(st.sampled_from(KINDS[:3]), st.integers(0, (1 << 17) - 1), st.integers(0, 1 << 40), st.binary(max_size=99))
def test_a_message_is_what_its_receiver_expects_and_nothing_else_is(kind, piece, n_values, payload):
    sent, due = DueMessage(1, kind, piece, n_values), DueMessage(0, kind, piece, n_values)
    message = np.zeros(HEADER + len(payload), np.uint8)
    exchange_of(0).write_header(sent, len(payload), message)
    message[HEADER:] = np.frombuffer(payload, np.uint8)
    receiver = exchange_of(1)
    assert receiver.checked(due, message, receiver.where(0)).tobytes() == payload
    assert receiver.counters.received_bytes == len(message)
    for wrong in (due._replace(piece=piece + 1), due._replace(peer=2), due._replace(kind=(kind + 1) % 4)):
        with pytest.raises(Corruption, match=r"rank 0 \(bucket 3, all-reduce 7\)"):
            receiver.checked(wrong, message, receiver.where(0))
    with pytest.raises(PeerError, match="number of values"):
        receiver.checked(due._replace(n_values=n_values + 1), message, receiver.where(0))
    with pytest.raises(PeerError, match="all-reduce 7, this one at 8"):
        exchange_of(1, sequence=8).checked(due, message, "rank 0")
    with pytest.raises(PeerError, match="differs"):
        exchange_of(1, agreement=2).checked(due, message, "rank 0")
