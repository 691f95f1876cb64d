"""The compressed all-reduce: its schedule, the codec of a buffer, sums, codebooks and when they are renewed, the
bypass."""
