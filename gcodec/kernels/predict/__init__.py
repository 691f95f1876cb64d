"""Predicted rows: templates, scales and the residuals that a prediction leaves."""
