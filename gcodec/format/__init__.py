"""What stands in a frame, a file for each thing in docs/format.md."""
