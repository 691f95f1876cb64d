"""The parts of a frame, a file for each thing in docs/format.md."""
