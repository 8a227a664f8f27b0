# SPDX-License-Identifier: MIT
"""How long a server waits for its weights: kept by descriptors, and in three other ways.

    LD_LIBRARY_PATH=build PYTHONPATH=python python3 examples/keep/measure.py [--sizes 1,48] [--mps]

kept: server.py and keeper.py, three servers, of which two are killed by SIGKILL.
tmpfs: read from /dev/shm into two page-locked buffers, and copied.
ipc: CUDA IPC (torch.multiprocessing) from a daemon that lives, and has a context.
vmm: memory of cuMemCreate, exported by CUDA itself; its owner is killed.

Times are from the context to the last tensor, in ms. Each tensor's sum is compared. What the GPU has is nvidia-smi's memory.used.
"""
import argparse
import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.reduction import ForkingPickler

import server  # torch, too: children that are forked before CUDA begins have it
import torch
from gdrapi import _cuda

HERE = os.path.dirname(os.path.abspath(__file__))
FILE = "/dev/shm/weights.bin"
fork = multiprocessing.get_context("fork")


def used():
    """MiB of GPU 0 that are in use."""
    return int(subprocess.check_output(["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]))


def settled():
    """The same, once it has stopped to fall: a killed process' memory goes late."""
    last, now = used() + 1, used()
    while now < last:
        time.sleep(0.3)
        last, now = now, used()
    return now


def say(**figures):
    print(json.dumps({key: round(value, 2) if isinstance(value, float) else value for key, value in figures.items()}), flush=True)


def kept(gib, label="kept"):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        before = settled()
        keeper = subprocess.Popen([sys.executable, os.path.join(HERE, "keeper.py"), path])
        try:
            while not os.path.exists(path):
                time.sleep(0.01)
            for number in range(3):
                serve(label, number, path, gib)
            say(way=label, before_mib=before, keeper_alone_mib=settled())
        finally:
            keeper.kill()
            keeper.wait()
        say(way=label, after_mib=settled())


def serve(label, number, path, gib):
    """A server, until it has its weights; killed then."""
    with subprocess.Popen([sys.executable, os.path.join(HERE, "server.py"), path, "--gib", str(gib)], stdout=subprocess.PIPE) as process:
        line = process.stdout.readline()
        serving, start = used(), time.perf_counter()
        process.kill()
        process.wait()
        if not line:
            sys.exit("measure.py: server.py failed")
        say(way=label, server=number + 1, serving_mib=serving, killed_in_ms=(time.perf_counter() - start) * 1e3, **json.loads(line))


def context():
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    return time.perf_counter()


def took(way, start, weights, right, **more):
    ms = (time.perf_counter() - start) * 1e3
    say(way=way, ms=ms, tensors=len(weights), gib=sum(tensor.nbytes for tensor in weights.values()) / 2**30,
        wrong=sum(a != b for a, b in zip(server.sums(weights), right)), **more)


def apart(function, *arguments):
    """A forked process that does it."""
    process = fork.Process(target=function, args=arguments)
    process.start()
    return process


def writes(gib, to):
    context()
    weights = server.load(gib)
    buffer = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    with open(FILE, "wb", buffering=0) as file:
        for tensor in weights.values():
            data = tensor.view(-1).view(torch.uint8)
            for part in data.split(len(buffer)):
                buffer[:len(part)].copy_(part)
                file.write(buffer.numpy()[:len(part)])
    to.send([{name: tuple(tensor.shape) for name, tensor in weights.items()}, server.sums(weights)])


def reads(shapes, right):
    start = context()
    buffers = [torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    free = [torch.cuda.Event() for _ in buffers]
    weights, turn = {}, 0
    with open(FILE, "rb", buffering=0) as file:
        for name, shape in shapes.items():
            weights[name] = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
            for part in weights[name].view(-1).view(torch.uint8).split(len(buffers[0])):
                free[turn].synchronize()
                file.readinto(buffers[turn].numpy()[:len(part)])
                part.copy_(buffers[turn][:len(part)], non_blocking=True)
                free[turn].record()
                turn ^= 1
    torch.cuda.synchronize()
    took("tmpfs", start, weights, right)


def tmpfs(gib):
    try:
        here, there = fork.Pipe()
        process = apart(writes, gib, there)
        there.close()
        shapes, right = here.recv()
        process.join()
        apart(reads, shapes, right).join()
    except (EOFError, OSError) as error:
        say(way="tmpfs", failed=repr(error))
    finally:
        if os.path.exists(FILE):
            os.unlink(FILE)


def lends(gib, to):
    context()
    weights = server.load(gib)
    to.send_bytes(bytes(ForkingPickler.dumps(list(weights.items()))))
    to.send(server.sums(weights))
    to.recv()


def borrows(data, right):
    start = context()
    took("ipc", start, dict(ForkingPickler.loads(data)), right)


def ipc(gib):
    before = settled()
    here, there = fork.Pipe()
    daemon = apart(lends, gib, there)
    data, right = here.recv_bytes(), here.recv()
    apart(borrows, data, right).join()
    say(way="ipc", before_mib=before, daemon_mib=settled())
    here.send("end")
    daemon.join()


def creates(lengths, to):
    """Memory objects of one's own, as an allocator for weights makes them, and CUDA's descriptors of them."""
    context()
    driver, fds = _cuda._driver(), []
    property = (ctypes.c_int * 8)(1, 1, 1, 0)  # pinned, a POSIX descriptor, on device 0
    start = time.perf_counter()
    for length in lengths:
        handle, fd = ctypes.c_uint64(), ctypes.c_int()
        _cuda._call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(length), property, ctypes.c_uint64(0))
        fds.append((handle, fd))
    made = time.perf_counter()
    for handle, fd in fds:
        _cuda._call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, ctypes.c_uint64(0))
    exported = time.perf_counter()
    right = []
    for length, (_, fd) in zip(lengths, fds):
        tensor = torch.as_tensor(Bytes(_cuda.Import(fd.value, length, None), length), device="cuda")
        server.bits(tensor).random_()
        right += server.sums({"": tensor})
    torch.cuda.synchronize()
    to.send([(made - start) * 1e3, (exported - made) * 1e3, right])
    to.send([multiprocessing.reduction.DupFd(fd.value) for _, fd in fds])
    to.recv()
    os.kill(os.getpid(), 9)


class Bytes:
    def __init__(self, memory, length):
        self.memory = memory
        self.__cuda_array_interface__ = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (memory.address, False)}


def imports(fds, lengths, right):
    start = context()
    weights = {number: torch.as_tensor(Bytes(_cuda.Import(fd, length, None), length), device="cuda")
               for number, (fd, length) in enumerate(zip(fds, lengths))}
    took("vmm", start, weights, right)


def vmm(gib):
    lengths = [int(gib * 2**30) // 8 >> 21 << 21] * 8 + [2 << 20] * 5
    before = settled()
    here, there = fork.Pipe()
    owner = apart(creates, lengths, there)
    made, exported, right = here.recv()
    fds = [fd.detach() for fd in here.recv()]
    here.send("end")
    owner.join()
    say(way="vmm", create_ms=made, export_ms=exported, before_mib=before, kept_mib=settled())
    apart(imports, fds, lengths, right).join()
    for fd in fds:
        os.close(fd)


def under_mps(gib):
    """The same as kept, all of them clients of an MPS server."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
        try:
            subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            return say(way="mps", failed=repr(error))
        kept(gib, "kept under MPS")
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="1,48", help="GiB of weights; the other ways are measured with the last one")
    parser.add_argument("--ways", default="tmpfs,ipc,vmm", help="the other ways")
    parser.add_argument("--mps", action="store_true", help="then the first size under MPS")
    args = parser.parse_args()
    sizes = [float(size) for size in args.sizes.split(",")]
    for gib in sizes:
        kept(gib)
    for way in filter(None, args.ways.split(",")):
        {"tmpfs": tmpfs, "ipc": ipc, "vmm": vmm}[way](sizes[-1])
    if args.mps:
        under_mps(sizes[0])


if __name__ == "__main__":
    main()
