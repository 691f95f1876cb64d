"""Find values in a dictionary, or as factors times the scale of a segment (docs/format.md section 10)."""
