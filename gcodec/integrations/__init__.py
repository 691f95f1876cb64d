"""Bridges to other libraries, a file for each. Each imports the library it is for, so none is imported before it is
used; numcodecs and zarr find theirs by entry points."""
