# SPDX-License-Identifier: MIT
"""As much of PyCUDA as vkgdr.pycuda uses, on CUDA's driver library, for machines without PyCUDA."""
