"""The hash of a segment whose parts threads bring in any order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gcodec.archive.chunks import OrderedHash


@given(st.lists(st.integers(1, 3000), max_size=12), st.randoms(), st.integers(0, 2**32 - 1), st.sampled_from((1, 3)))
@settings(max_examples=60)
def test_parts_in_any_order_from_any_thread_have_the_hash_of_the_whole(sizes, order, seed, n_threads):
    data = np.random.default_rng(seed).integers(0, 256, sum(sizes), np.uint8)
    places = list(pairwise(np.cumsum([0, *sizes]).tolist()))
    order.shuffle(places)
    hash_ = OrderedHash()

    def put(place: tuple[int, int]) -> None:
        start, stop = place
        middle = (start + stop) // 2
        parts = [part for part in (data[start:middle], data[middle:stop]) if part.size]
        hash_.put(start, *parts)

    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(put, places))
    assert hash_.hexdigest() == xxhash.xxh3_64_hexdigest(data)
