"""Counts of a sample of an array, for the encoder's planner, and what codes would cost by these counts."""
