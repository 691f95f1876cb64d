"""Flower's messages: a client behind the mod sees and answers plain arrays, and what travels is smaller."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict

import gcodec
from gcodec.integrations.flower import compress_message, gcodec_mod, restore_message

ARRAYS: dict[str, np.ndarray] = {
    "float32": np.random.default_rng(1).normal(size=(100, 70)).astype(np.float32),
    "float64": np.random.default_rng(2).normal(size=3000),
    "float16": np.ones((50, 50), np.float16),
    "int64": np.arange(100),
    "one": np.array(3.5),
}
#: What the runtime fills in.
METADATA = Metadata(run_id=1, message_id="1", src_node_id=0, dst_node_id=1, reply_to_message_id="", group_id="",
                    created_at=0.0, ttl=100.0, message_type="train")


def message_of(arrays):
    """A message of the server."""
    content = RecordDict({"arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()}),
                          "config": ConfigRecord({"rate": 0.1})})
    return Message(content, metadata=METADATA)


def arrays_in(message):
    return {name: array.numpy() for name, array in message.content["arrays"].items()}


def n_bytes(message):
    return sum(len(array.data) for array in message.content["arrays"].values())


def check_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and np.array_equal(found[name], value)


def test_a_client_sees_plain_arrays_and_answers_compressed_ones():
    def app(message, context):
        check_same(arrays_in(message), ARRAYS)
        assert message.content["config"]["rate"] == 0.1
        reply = {name: np.asarray(-value) for name, value in arrays_in(message).items()}
        return message_of(reply)

    for compress in (compress_message, lambda message: message):
        sent = compress(message_of(ARRAYS))
        reply = gcodec_mod(sent, None, app)
        assert n_bytes(reply) < 0.9 * n_bytes(message_of(ARRAYS))
        check_same(arrays_in(restore_message(reply)), {name: np.asarray(-value) for name, value in ARRAYS.items()})


def test_damage_and_lies_are_errors():
    message = compress_message(message_of({"x": ARRAYS["float32"]}))
    array = message.content["arrays"]["x"]
    middle = len(array.data) // 2
    wrong = [
        Array(dtype="float32", shape=(100, 70), stype=array.stype,
              data=array.data[:middle] + bytes([array.data[middle] ^ 1]) + array.data[middle + 1 :]),
        Array(dtype="float32", shape=(70, 100), stype=array.stype, data=array.data),
        Array(dtype="float64", shape=(100, 70), stype=array.stype, data=array.data),
    ]
    for spoilt in wrong:
        message.content["arrays"]["x"] = spoilt
        with pytest.raises(gcodec.Corruption):
            restore_message(message)
    message.content["arrays"]["x"] = array
    with pytest.raises(gcodec.LimitExceeded):
        restore_message(message, max_output_bytes=1000)
