"""The device code on the host: the PTX that NVRTC makes of the CUDA kernels, translated to C++.

``syntax`` reads PTX, ``translate`` writes C++, ``device.h`` and ``runtime.cpp`` are what that calls, ``library`` builds
and keeps all of it. What it proves and what not is in docs/contributing/gpu.md.
"""
