"""Averages of many gradients over ranks, and the memory between steps: residuals, momentum, state."""
