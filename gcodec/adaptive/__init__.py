"""Controllers decide in the course of training how much of which tensor is sent.

    from gcodec.adaptive import Adaptive, GraVAC

The public names are imported when they are first used, with torch, and never with torch.distributed.
docs/algorithms.md leads to a page about each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import import_with_torch

if TYPE_CHECKING:
    from .accordion import Accordion as Accordion
    from .contract import Controller as Controller
    from .contract import Measured as Measured
    from .contract import Planner as Planner
    from .contract import Selector as Selector
    from .contract import Settings as Settings
    from .driver import Adaptive as Adaptive
    from .driver import ranks as ranks
    from .families import Range as Range
    from .gravac import GraVAC as GraVAC
    from .gravac import gravac_bits as gravac_bits
    from .kmeans import KMeans as KMeans
    from .lgreco import LGreCo as LGreCo
    from .optimizer import AdaptiveOptimizer as AdaptiveOptimizer
    from .policies import Exponential as Exponential
    from .policies import Geometric as Geometric
    from .policies import Listed as Listed
    from .setting_costs import Bytes as Bytes
    from .setting_costs import Floats as Floats
    from .setting_costs import Prioritized as Prioritized
    from .setting_costs import Seconds as Seconds
    from .thresholds import GlobalThreshold as GlobalThreshold
    from .thresholds import HardThreshold as HardThreshold

_HOME = {
    "accordion": ("Accordion",),
    "contract": ("Controller", "Measured", "Planner", "Selector", "Settings"),
    "driver": ("Adaptive", "ranks"),
    "families": ("Range",),
    "gravac": ("GraVAC", "gravac_bits"),
    "kmeans": ("KMeans",),
    "lgreco": ("LGreCo",),
    "optimizer": ("AdaptiveOptimizer",),
    "policies": ("Exponential", "Geometric", "Listed"),
    "setting_costs": ("Bytes", "Floats", "Prioritized", "Seconds"),
    "thresholds": ("GlobalThreshold", "HardThreshold"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'gcodec.adaptive' has no attribute {name!r}")
    value = getattr(import_with_torch(f"{__name__}.{_MODULE_OF[name]}", f"gcodec.adaptive.{name}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
