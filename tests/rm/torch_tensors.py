# SPDX-License-Identifier: MIT
"""PyTorch tensors, pinned and mapped by libgdrapi through ctypes, bytes checked both ways.

    GDRCOPY_BACKEND=rm python3 torch_tensors.py LIBRARY
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ... for the other allocator"""
import ctypes as c
import os
import sys

import torch

PAGE = 65536
SIZES = (1, 1000, 65536, 1 << 20, 3 << 20, 64 << 20, 1 << 30)


class Handle(c.Structure):
    _fields_ = [("h", c.c_ulong)]


class Info(c.Structure):
    _fields_ = [("va", c.c_uint64), ("mapped_size", c.c_uint64), ("page_size", c.c_uint32),
                ("tm_cycles", c.c_uint64), ("cycles_per_ms", c.c_uint32), ("bits", c.c_uint32),
                ("mapping_type", c.c_int)]


def load(path):
    lib = c.CDLL(path)
    lib.gdr_open.restype = c.c_void_p
    lib.gdr_pin_buffer.argtypes = [c.c_void_p, c.c_ulong, c.c_size_t, c.c_uint64, c.c_uint32, c.POINTER(Handle)]
    lib.gdr_map.argtypes = [c.c_void_p, Handle, c.POINTER(c.c_void_p), c.c_size_t]
    lib.gdr_get_info_v2.argtypes = [c.c_void_p, Handle, c.POINTER(Info)]
    lib.gdr_copy_to_mapping.argtypes = [Handle, c.c_void_p, c.c_void_p, c.c_size_t]
    lib.gdr_copy_from_mapping.argtypes = [Handle, c.c_void_p, c.c_void_p, c.c_size_t]
    lib.gdr_unmap.argtypes = [c.c_void_p, Handle, c.c_void_p, c.c_size_t]
    lib.gdr_unpin_buffer.argtypes = [c.c_void_p, Handle]
    lib.gdr_close.argtypes = [c.c_void_p]
    lib.gdr_get_backend.argtypes = [c.c_void_p, c.c_char_p, c.c_size_t]
    return lib


def check(lib, g, t):
    addr, n = t.data_ptr(), t.numel()
    first = addr & ~(PAGE - 1)
    size = ((addr + n + PAGE - 1) & ~(PAGE - 1)) - first
    h, va, info = Handle(), c.c_void_p(), Info()
    for rc in (lib.gdr_pin_buffer(g, first, size, 0, 0, c.byref(h)), lib.gdr_map(g, h, c.byref(va), size),
               lib.gdr_get_info_v2(g, h, c.byref(info))):
        if rc:
            return os.strerror(rc)
    at = va.value + addr - info.va
    part = min(n, 4096)
    wrong = 0
    for off in {0, (n - part) // 2, n - part}:
        out = os.urandom(part)
        wrong += lib.gdr_copy_to_mapping(h, at + off, out, part) != 0
        wrong += bytes(t[off:off + part].cpu().numpy()) != out
        t[off:off + part] = 7
        torch.cuda.synchronize()
        back = c.create_string_buffer(part)
        wrong += lib.gdr_copy_from_mapping(h, back, at + off, part) != 0
        wrong += back.raw != b"\7" * part
    wrong += lib.gdr_unmap(g, h, va, size) != 0
    wrong += lib.gdr_unpin_buffer(g, h) != 0
    return f"{wrong} wrong" if wrong else None


def main():
    lib = load(sys.argv[1])
    g = lib.gdr_open()
    if not g:
        sys.exit("gdr_open fails; GDRCOPY_ENABLE_LOGGING=1 tells why")
    passed = failed = 0
    keep = [torch.empty(1000 + 512 * i, dtype=torch.uint8, device="cuda") for i in range(50)]
    for dev in range(torch.cuda.device_count()):
        for t in [torch.empty(n, dtype=torch.uint8, device=f"cuda:{dev}") for n in SIZES] + keep[::10]:
            why = check(lib, g, t)
            print(f"{'not ok' if why else 'ok'} - tensor of {t.numel()} bytes on GPU {t.device.index}", why or "", flush=True)
            passed, failed = passed + (not why), failed + bool(why)
    name = c.create_string_buffer(16)
    lib.gdr_get_backend(g, name, 16)
    print("# torch", torch.__version__, "backend", name.value.decode(),
          "allocator", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "default"))
    failed += lib.gdr_close(g) != 0
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
