"""Planes: sign and mantissa bits in packed arrays, one file per layout; a target stands in the file's name."""
