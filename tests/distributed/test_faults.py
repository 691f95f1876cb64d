"""The laws of faults: a rank that fails is an error on every rank, which names it; no gradient is touched; never a
hang."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("torch")

from torch._C._distributed_c10d import PrefixStore, TCPStore

from gcodec.distributed.transport import failures
from tests.distributed import fault_cases as cases
from tests.distributed import misuse_cases
from tests.support.rank_fixtures import ranks_of
from tests.support.ranks import Ranks, rank_context

CULPRIT = 1
ranks = ranks_of(3)


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("payload", "Corruption", "checksum is wrong"),
        ("header", "Corruption", "header is damaged"),
        ("exception", "PeerError", "aborted: ZeroDivisionError: a fault on purpose"),
        ("result", "PeerError", "aborted: ZeroDivisionError: a fault on purpose"),  # in all the others' last message
        ("mode", "PeerError", "differs in dtype, mode"),
        ("longer", "PeerError", "number of values"),
        ("shorter", "PeerError", ""),
        ("sequence", "PeerError", ""),
    ],
)
def test_a_fault_of_one_rank_is_an_error_on_all_ranks(ranks, kind, error, text):
    patience = 5 if kind in ("sequence", "shorter") else 30
    result = ranks.run(cases.fault, kind=kind, culprit=CULPRIT, patience=patience)
    for rank, (name, message, untouched, following) in enumerate(result):
        assert name, f"rank {rank} has noticed nothing"
        assert untouched
        assert "has failed" in following
        if rank != CULPRIT:
            assert f"rank {CULPRIT} " in message
            assert (name == error and text in message) or "aborted" in message, message


def test_a_silent_rank_is_an_error_within_the_timeout(ranks):
    result = ranks.run(cases.fault, kind="silence", culprit=CULPRIT, patience=3)
    for rank, (name, message, untouched, _) in enumerate(result):
        assert untouched
        if rank != CULPRIT:
            assert name == "PeerError"
            assert f"rank {CULPRIT} " in message, message  # whomever this one has waited for


def test_a_full_queue_is_an_error_within_the_timeout(ranks):
    result = ranks.run(cases.full_queue, culprit=CULPRIT, patience=2)
    for rank, texts in enumerate(result):
        assert len(texts) == (0 if rank == CULPRIT else 9)
        assert all("no answer" in text or "none has ended" in text or "has failed" in text for text in texts), texts


def test_backward_raises_the_error_of_its_bucket_on_all_ranks(ranks):
    errors = ranks.run(cases.backward_error)
    assert all("rank" in error for error in errors), errors
    assert "step 0, bucket" in errors[0]


def test_a_lane_waits_as_long_as_its_group_unless_told_otherwise(ranks):
    seconds = [[timeout.total_seconds() for timeout in timeouts] for timeouts in ranks.run(cases.timeouts)]
    assert seconds == 3 * [[77, 9000, 20]]


def test_a_rank_that_dies_is_an_error_that_names_it():
    ranks = Ranks(3)
    result = ranks.run_with_deaths(cases.death, culprit=CULPRIT)
    assert result[CULPRIT] is None
    for rank in (0, 2):
        (first, *later), looks = result[rank]
        for name, message in (first, *later):
            assert name == "PeerError"
            assert f"rank {CULPRIT} " in message, message
        assert all("has failed" in message for _, message in later)
        assert len(later) == 3
        assert looks <= 1 + 2  # one notice left, and each other rank's looked for, once


def test_calls_to_a_silent_store_end_before_the_interpreter_does():
    ours, theirs = rank_context().Pipe()
    host = rank_context().Process(target=misuse_cases.serve_store, args=(theirs,), daemon=True)
    host.start()
    store = TCPStore("127.0.0.1", ours.recv(), is_master=False, wait_for_workers=False)
    records = failures.FailureRecords(PrefixStore("a/", store), 0)
    os.kill(host.pid, signal.SIGSTOP)
    assert records.reason_of(1) is None
    ((thread, _),) = failures._abandoned
    assert thread.is_alive()
    failures.end_abandoned_calls()
    assert not thread.is_alive()
    host.kill()
