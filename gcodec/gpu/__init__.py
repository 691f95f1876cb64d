"""Frames on CUDA devices."""
