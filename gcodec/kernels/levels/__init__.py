"""Levels: which one each gradient may have by the optimizer's rule, and rounding values at their level."""
