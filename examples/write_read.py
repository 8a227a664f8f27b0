# SPDX-License-Identifier: MIT
"""GPU memory that the CPU writes and reads. With PyTorch the array is a tensor of its own."""
import sys

import gdrapi


def gpu_array(gdr):
    """Whatever has __cuda_array_interface__ or __dlpack__ will do."""
    try:
        import torch
    except ImportError:
        return gdr.alloc(4096)
    if not torch.cuda.is_available():
        return gdr.alloc(4096)
    tensor = torch.zeros(4096, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()  # the GPU has written the zeros
    return tensor


def show(got, sent):
    """Ends the program unless these are the bytes that were sent."""
    if got != sent:
        sys.exit("read: %r, not %r" % (got, sent))
    print("read:", got.decode())


def main():
    with gdrapi.open() as gdr:
        array = gpu_array(gdr)
        with gdr.pin(array) as buffer:
            print("%s: %d bytes of a %s at %#x" % (gdr.backend, len(buffer), type(array).__name__, buffer.address))
            buffer.write(b"from the CPU")
            show(buffer.read(12), b"from the CPU")
            with buffer.view() as view:
                view[0:4] = b"FROM"
            show(buffer.read(12), b"FROM the CPU")


if __name__ == "__main__":
    try:
        main()
    except gdrapi.GdrError as error:
        sys.exit("%s" % error)
