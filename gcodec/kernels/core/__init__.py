"""Compilation, argument bundles, scalar arithmetic, vectors, unaligned memory, checksums: the base of all kernels."""
