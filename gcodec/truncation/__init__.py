"""Optimizer-aware truncation: the rules of optimizers, and what they say of gradients (docs/algorithms.md)."""
