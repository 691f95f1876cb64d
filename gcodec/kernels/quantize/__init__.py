"""Gradients as small integers, which all-reduces send."""
