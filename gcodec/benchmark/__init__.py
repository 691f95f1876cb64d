"""Inputs, peers, timing, bounds and tables of results, for ``gcodec bench``, ``gcodec demo`` and ``bench/``."""
