"""The kernels: everything that touches values one by one.

The kernel contract
-------------------
* Arrays and integers in, arrays and integers out. No Python objects, no torch, no file, no frame header: a kernel takes
  the numbers that a validated header held.
* The caller allocates everything, scratch included; a kernel never allocates, raises or prints. Where something can be
  wrong in the data it returns a status (0 is good), and the binding turns that into an error. The exceptions are the
  few kernels decorated ``allocating`` (:mod:`gcodec.kernels.core.jit`), which run once per array and have scratch.
* Arrays are copied element by element: for ``a[:] = b`` numba compiles all that formats the message of an error,
  strings and lists of strings, which takes as long as a hundred lines of a kernel.
* What a kernel returns to Python are numbers: for an array numba would run Python, and a Ctrl-C in there come out as
  a SystemError.
* A kernel stays inside the arrays it was given whatever the payload says; the binding guarantees the margins each
  docstring asks for.
* Arrays are one-dimensional and contiguous unless a docstring says otherwise; values arrive as unsigned integers of
  their own width (uint8, uint16, uint32, uint64).
* Integers decide bytes. The exception: a prediction is a product of float32s, each rounded as
  docs/format.md section 8 says, alike on every machine.
* Kernels release the GIL and are cached on disk; the arithmetic that CPU and GPU share is in
  :mod:`gcodec.kernels.core.scalar`.
"""

from ..compiling import check_numba_variables

check_numba_variables()
