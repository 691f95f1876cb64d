"""The kernels for CUDA devices, in CUDA C++ (``source/``, :mod:`native`), and what compiles and launches them.

Importing this package takes neither a device nor its driver; a launch does, and NVRTC.
"""
