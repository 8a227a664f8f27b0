# SPDX-License-Identifier: MIT
"""lacking.py - another libgdrapi: one that lacks extensions, as NVIDIA's does."""

import os


def without(names, library, folder):
    """Puts a copy of the library into the folder that has none of these functions."""
    with open(library, "rb") as f:
        data = f.read()
    for name in names:
        # Its first letter: the linker may have put another name, as free, into its end.
        data = data.replace(name.encode() + b"\0", b"_" + name[1:].encode() + b"\0")
    with open(os.path.join(folder, "libgdrapi.so.2"), "wb") as f:
        f.write(data)
    return folder + ":" + os.environ["LD_LIBRARY_PATH"]
