"""Only damaged bytes are called Corruption: what reading a tensor raises comes out of loading as it is."""

import json

import pytest
import torch

from gcodec.archive.structure import flatten, rebuild
from gcodec.errors import Corruption, LimitExceeded


class StoreError(Exception):
    """An error of a store's own kind."""


CAUSES = (
    OSError("no route to the store"), RuntimeError("can't start new thread"), torch.OutOfMemoryError("no memory"),
    LookupError("no such bucket"), ValueError("no such region"), StoreError("denied"), KeyboardInterrupt(),
)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)
def test_errors_of_reading_a_tensor_come_out_as_they_are(cause):
    def read(name, kind):
        raise cause

    with pytest.raises(type(cause)) as caught:
        rebuild(flatten({"w": [torch.ones(3)]}).text, read)
    assert caught.value is cause


def test_no_memory_for_a_tensor_is_a_limit_and_no_damage():
    def read(name, kind):
        raise MemoryError

    with pytest.raises(LimitExceeded):
        rebuild(flatten({"w": torch.ones(3)}).text, read)


@pytest.mark.parametrize("text", [",", "[", "{", '",', "\\,", '\\",'])
def test_commas_and_brackets_in_a_string_are_no_items(text):
    state = {"note": text * (1 << 22), "last": 1}
    assert rebuild(flatten(state).text, lambda name, kind: None) == state


def test_too_many_items_outside_of_strings_are_refused():
    with pytest.raises(Corruption):
        rebuild(json.dumps({"version": 1, "state": [0] * ((1 << 22) + 1)}).encode(), lambda name, kind: None)
