"""Prefix codes: from counted symbols to codebooks, from symbols to bits, and back."""
