"""What all kernels stand on: compilation, argument bundles, scalar arithmetic, vectors, unaligned memory, checksums."""
