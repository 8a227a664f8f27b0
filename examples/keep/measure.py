# SPDX-License-Identifier: MIT
"""How long a server waits for its weights: kept by descriptors, and in three other ways.

    LD_LIBRARY_PATH=build PYTHONPATH=python python3 examples/keep/measure.py [--sizes 1,48]

kept: server.py and gdrcopy_keep, three servers, of which two are killed by SIGKILL; then with expandable_segments.
tmpfs: 8 threads, then 16, read into page-locked buffers and copy from there, each on a stream of its own.
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
import threading
import time
from multiprocessing.reduction import DupFd, ForkingPickler

import server  # torch, too: children that are forked before CUDA begins have it
import torch
from gdrapi import _cuda

HERE = os.path.dirname(os.path.abspath(__file__))
PART = 16 << 20  # bytes of a read from tmpfs
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


def kept(gib, program, way, **environment):
    with tempfile.TemporaryDirectory() as folder:
        path, before = os.path.join(folder, "socket"), settled()
        keeper = subprocess.Popen([program, "serve", path], stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(path):
                time.sleep(0.01)
            for number in range(3):
                serve(way, number, path, gib, environment)
            count = json.loads(subprocess.check_output([program, "list", path]))["count"]
            say(way=way, before_mib=before, keeper_alone_mib=settled(), descriptors=count)
        finally:
            keeper.kill()
            keeper.wait()
        say(way=way, after_mib=settled())


def serve(way, number, path, gib, environment):
    """A server, until it has its weights, and they are kept; killed then."""
    command = [sys.executable, os.path.join(HERE, "server.py"), path, "--gib", str(gib)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **environment}) as process:
        line = process.stdout.readline()
        serving = used()
        process.kill()
        process.wait()
        if not line:
            sys.exit("measure.py: server.py failed")
        say(way=way, server=number + 1, serving_mib=serving, **json.loads(line))


def context():
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    return time.perf_counter()


def wrong(weights, right):
    return sum(a != b for a, b in zip(server.sums(weights).tolist(), right))


def took(way, start, weights, right, **more):
    ms = (time.perf_counter() - start) * 1e3
    say(way=way, ms=ms, tensors=len(weights), gib=sum(tensor.nbytes for tensor in weights.values()) / 2**30, wrong=wrong(weights, right), **more)


def apart(function, *arguments):
    """A forked process that does it."""
    process = fork.Process(target=function, args=arguments)
    process.start()
    return process


def flat(tensor):
    return tensor.view(-1).view(torch.uint8)


def parts(weights):
    """Pieces of at most PART bytes, and where in the file each one lies."""
    at = 0
    for tensor in weights.values():
        for piece in flat(tensor).split(PART):
            yield at, piece
            at += len(piece)


def threads(count, weights, work):
    """Calls work with an iterator, which all of them share, a page-locked buffer of two parts and a stream."""
    buffers, left, lock = torch.empty(count, 2, PART, dtype=torch.uint8, pin_memory=True), parts(weights), threading.Lock()

    def mine():
        while True:
            with lock:
                one = next(left, None)
            if one is None:
                return
            yield one

    def run(buffer):
        with torch.cuda.stream(torch.cuda.Stream()):
            work(mine(), buffer, [memoryview(half.numpy()) for half in buffer])
            torch.cuda.current_stream().synchronize()

    made = [threading.Thread(target=run, args=(buffers[number],)) for number in range(count)]
    for thread in made:
        thread.start()
    for thread in made:
        thread.join()


def writes(gib, fd, to):
    context()
    weights = server.load(gib)

    def work(mine, buffer, views):
        for at, piece in mine:
            buffer[0, :len(piece)].copy_(piece)
            os.pwritev(fd, [views[0][:len(piece)]], at)

    threads(8, weights, work)
    to.send([{name: (tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}, server.sums(weights).tolist()])


def reads(count, fd, shapes, right):
    start = context()
    weights = {name: torch.empty(shape, dtype=dtype, device="cuda") for name, (shape, dtype) in shapes.items()}

    def work(mine, buffer, views):
        free = [torch.cuda.Event(), torch.cuda.Event()]
        for turn, (at, piece) in enumerate(mine):
            half = turn % 2
            free[half].synchronize()
            os.preadv(fd, [views[half][:len(piece)]], at)
            piece.copy_(buffer[half, :len(piece)], non_blocking=True)
            free[half].record()

    threads(count, weights, work)
    torch.cuda.synchronize()
    took("tmpfs, %d threads" % count, start, weights, right)


def tmpfs(gib):
    """A memfd is tmpfs, without the limit of a mount."""
    fd, (here, there) = os.memfd_create("weights"), fork.Pipe()
    process = apart(writes, gib, fd, there)
    there.close()
    try:
        shapes, right = here.recv()
        process.join()
        for count in (8, 16):
            apart(reads, count, fd, shapes, right).join()
    except EOFError:
        say(way="tmpfs", failed="no room for the weights")
    os.close(fd)


def lends(gib, to):
    context()
    weights = server.load(gib)
    to.send_bytes(bytes(ForkingPickler.dumps(list(weights.items()))))
    to.send(server.sums(weights).tolist())
    to.recv()


def borrows(data, right):
    start = context()
    took("ipc", start, dict(ForkingPickler.loads(data)), right)


def ipc(gib):
    before, (here, there) = settled(), fork.Pipe()
    daemon = apart(lends, gib, there)
    data, right = here.recv_bytes(), here.recv()
    apart(borrows, data, right).join()
    say(way="ipc", before_mib=before, daemon_mib=settled())
    here.send("end")
    daemon.join()


class Bytes:
    def __init__(self, fd, length):
        self.memory = _cuda.Import([(fd, length)], None)
        self.__cuda_array_interface__ = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (self.memory.address, False)}


def imported(fds, lengths):
    return {number: torch.as_tensor(Bytes(fd, length), device="cuda") for number, (fd, length) in enumerate(zip(fds, lengths))}


def creates(lengths, to):
    """Memory objects of one's own, as an allocator for weights makes them, and CUDA's descriptors of them."""
    context()
    fds, handle, property = [], ctypes.c_uint64(), (ctypes.c_int * 8)(1, 1, 1, 0)  # pinned, a POSIX descriptor, on device 0
    start = time.perf_counter()
    for length in lengths:
        fds.append(ctypes.c_int())
        _cuda._call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(length), property, ctypes.c_uint64(0))
        _cuda._call("cuMemExportToShareableHandle", ctypes.byref(fds[-1]), handle, 1, ctypes.c_uint64(0))
    ms, weights = (time.perf_counter() - start) * 1e3, imported([fd.value for fd in fds], lengths)
    for tensor in weights.values():
        tensor.view(torch.int64).random_()
    to.send([ms, server.sums(weights).tolist()])
    to.send([DupFd(fd.value) for fd in fds])
    to.recv()
    os.kill(os.getpid(), 9)


def imports(fds, lengths, right):
    start = context()
    took("vmm", start, imported(fds, lengths), right)


def vmm(gib):
    lengths, before = [int(gib * 2**30) // 8 >> 21 << 21] * 8 + [2 << 20] * 5, settled()
    here, there = fork.Pipe()
    owner = apart(creates, lengths, there)
    made, right = here.recv()
    fds = [fd.detach() for fd in here.recv()]
    here.send("end")
    owner.join()
    say(way="vmm", create_and_export_ms=made, before_mib=before, kept_mib=settled())
    apart(imports, fds, lengths, right).join()
    for fd in fds:
        os.close(fd)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="1,48", help="GiB of weights; the other ways are measured with the last one")
    parser.add_argument("--ways", default="tmpfs,ipc,vmm", help="the other ways")
    parser.add_argument("--keeper", default=os.path.join(HERE, "..", "..", "build", "bin", "gdrcopy_keep"))
    args = parser.parse_args()
    sizes = [float(size) for size in args.sizes.split(",")]
    for gib in sizes:
        kept(gib, args.keeper, "kept")
    kept(sizes[-1], args.keeper, "kept, expandable_segments", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    for way in filter(None, args.ways.split(",")):
        {"tmpfs": tmpfs, "ipc": ipc, "vmm": vmm}[way](sizes[-1])


if __name__ == "__main__":
    main()
