"""Whole frames: written, read, described, and how large they may become."""
