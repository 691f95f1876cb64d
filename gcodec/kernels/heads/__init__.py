"""Heads: their means and column references, and the symbols that stand for them."""
