"""What ``gcodec bench``, ``gcodec demo`` and ``bench/`` share: inputs, peers, timing, bounds and tables of results."""
