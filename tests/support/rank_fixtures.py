"""Fixtures of real ranks, for the modules that test them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.ranks import Ranks

#: Ways to have DDP train that ask something else of a hook, as the cases of the tests take them.
DDP_FORMS: dict[str, dict[str, Any]] = {
    "static_graph": {"static_graph": True},
    "static_graph of mixed types": {"static_graph": True, "narrow": True},
    "find_unused_parameters": {"find_unused_parameters": True, "branch": True},
    "bucket_view": {"gradient_as_bucket_view": True},
    "no_sync": {"accumulate": 3},
    "mixed_dtypes": {"narrow": True},
    "channels_last": {"images": True},
}


def ranks_of(*sizes: int, backend: str = "gloo") -> Any:
    """Return a fixture of a module: a group of ranks. Of several sizes, the tests run with each."""

    @pytest.fixture(scope="module", params=sizes if len(sizes) > 1 else None)
    def group(request: pytest.FixtureRequest) -> Iterator[Ranks]:
        ranks = Ranks(getattr(request, "param", sizes[0]), backend)
        yield ranks
        ranks.close()

    return group


def with_sizes(*sizes: int) -> pytest.MarkDecorator:
    """Return a mark: of the sizes of the fixture ``ranks``, a test runs with these only."""
    return pytest.mark.parametrize("ranks", sizes, indirect=True)
