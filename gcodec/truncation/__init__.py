"""Optimizer-aware truncation: the rules of optimizers, and what they say of gradients.

docs/algorithms/near-lossless.md has the rules.
"""
