"""Whole blocks: headers, and the drivers that turn values into blocks and blocks into values."""
