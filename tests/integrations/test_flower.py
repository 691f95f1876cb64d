"""Flower's messages: a client behind the mod sees and answers plain arrays, and what travels is smaller."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import gcodec
from gcodec.integrations.flower import compress_message, compress_strategy, gcodec_mod, restore_message

ARRAYS: dict[str, np.ndarray] = {
    "float32": np.random.default_rng(1).normal(size=(100, 70)).astype(np.float32),
    "float64": np.random.default_rng(2).normal(size=3000),
    "float16": np.ones((50, 50), np.float16),
    "int64": np.arange(100),
    "one": np.array(3.5),
}
#: What the runtime fills in.
METADATA = Metadata(
    run_id=1,
    message_id="1",
    src_node_id=0,
    dst_node_id=1,
    reply_to_message_id="",
    group_id="",
    created_at=0.0,
    ttl=100.0,
    message_type="train",
)


def message_of(arrays):
    """A message of the server."""
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()}),
            "config": ConfigRecord({"rate": 0.1}),
        }
    )
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
        Array(
            dtype="float32",
            shape=(100, 70),
            stype=array.stype,
            data=array.data[:middle] + bytes([array.data[middle] ^ 1]) + array.data[middle + 1 :],
        ),
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


def test_arrays_that_the_sender_holds_are_not_touched():
    message = message_of(ARRAYS)
    held = message.content
    compress_message(message)
    assert message.content is not held
    assert {array.stype for array in held["arrays"].values()} == {"numpy.ndarray"}
    check_same({name: array.numpy() for name, array in held["arrays"].items()}, ARRAYS)


class Sending(FedAvg):
    """Sends one content to three clients, as Flower's strategies do, and notes what it is to aggregate."""

    def __init__(self):
        super().__init__()
        self.content, self.received = message_of(ARRAYS).content, []

    def configure_train(self, server_round, arrays, config, grid):
        return (Message(self.content, metadata=METADATA) for _ in range(3))

    def aggregate_train(self, server_round, replies):
        self.received += replies
        return None, None


def test_a_strategy_compresses_once_what_it_sends_to_many_and_keeps_its_own(monkeypatch):
    encode = mock.Mock(wraps=gcodec.encode)
    monkeypatch.setattr("gcodec.integrations.flower.encode", encode)
    strategy = Sending()
    assert compress_strategy(strategy) is strategy
    messages = strategy.configure_train(1, None, None, None)
    assert len(messages) == 3
    assert encode.call_count == sum(value.dtype.kind == "f" for value in ARRAYS.values())
    check_same({name: array.numpy() for name, array in strategy.content["arrays"].items()}, ARRAYS)
    strategy.aggregate_train(1, messages)
    for message in strategy.received:
        check_same(arrays_in(message), ARRAYS)


@pytest.mark.filterwarnings("ignore")  # Ray's and Flower's own
def test_a_federation_of_two_clients_trains_as_without_compression():
    pytest.importorskip("ray")
    from flwr.simulation import run_simulation

    start = [ARRAYS["float32"], np.zeros(7, np.float32)]
    client, server, ended = ClientApp(mods=[gcodec_mod]), ServerApp(), []

    @client.train()
    def train(message, context):
        by = np.float32(1 + context.node_config["partition-id"])
        arrays = ArrayRecord([array + by for array in message.content["arrays"].to_numpy_ndarrays()])
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    @client.evaluate()
    def evaluate(message, context):
        first = message.content["arrays"].to_numpy_ndarrays()[0]
        metrics = MetricRecord({"num-examples": 1, "mean": float(first.mean())})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid, context):
        strategy = compress_strategy(FedAvg(min_available_nodes=2))
        ended.append(strategy.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=2))

    run_simulation(server, client, num_supernodes=2)
    for found, before in zip(ended[0].arrays.to_numpy_ndarrays(), start, strict=True):
        np.testing.assert_allclose(found, before + 3, rtol=1e-6, atol=1e-6)
    assert ended[0].evaluate_metrics_clientapp[2]["mean"] == pytest.approx(float(start[0].mean()) + 3, abs=1e-5)
