"""Weight sync: the weights of a training run, version after version, to the processes that use them.

A publisher makes a version of a state dict as bytes: an anchor, which holds everything, or a difference, which holds
what changed since the version before. A subscriber checks and applies them, in place. docs/weight-sync.md is the page
for users.
"""

from __future__ import annotations

from ..errors import BrokenChain as BrokenChain
from .publisher import Publisher as Publisher
from .publisher import WeightVersion as WeightVersion
from .subscriber import PendingVersion as PendingVersion
from .subscriber import Subscriber as Subscriber
from .sync_stats import PublishStats as PublishStats
from .sync_stats import UpdateStats as UpdateStats
from .version_chain import StoredVersion as StoredVersion
from .version_folder import VersionFolder as VersionFolder
from .version_message import VersionInfo as VersionInfo
from .version_message import read_version_info as read_version_info

__all__ = [
    "BrokenChain",
    "PendingVersion",
    "PublishStats",
    "Publisher",
    "StoredVersion",
    "Subscriber",
    "UpdateStats",
    "VersionFolder",
    "VersionInfo",
    "WeightVersion",
    "read_version_info",
]


def __dir__() -> list[str]:
    return __all__
