"""Averages of many gradients over ranks, and what is kept from step to step: residuals, momentum, state."""
