"""What the encoder's planner counts in a sample of an array, and what it concludes from the counts."""
