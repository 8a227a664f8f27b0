# SPDX-License-Identifier: MIT
"""A server whose weights outlive it. It takes them from where they are kept, or loads them and has them kept.

    python3 server.py SOCKET [--gib 16]        the keeper's socket
    python3 server.py [--gib 16]               as a service of systemd, in its descriptor store

It says what it did in a line of JSON, and then "serves" until it is killed. PyTorch's allocator is as it is.
"""
import argparse
import fcntl
import json
import os
import signal
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("server.py needs PyTorch")

import gdrapi
import places


def bits(tensor):
    """Its bytes as integers of 64 bits, to be summed."""
    return tensor.view(-1).view(torch.int64)


def sums(weights):
    return [int(bits(tensor).sum()) for tensor in weights.values()]


def load(gib):
    """Stands for a model's files: 8 large tensors and 300 small ones, of random bytes."""
    shapes = {"layer.%d" % n: (4096, int(gib * 2**30) // 8 // 2 // 4096) for n in range(8)}
    shapes.update({"norm.%d" % n: (64 + 36 * n,) for n in range(300)})
    weights = {name: torch.empty(shape, dtype=torch.bfloat16, device="cuda") for name, shape in shapes.items()}
    for tensor in weights.values():
        bits(tensor).random_()
    torch.cuda.synchronize()
    return weights


def keep(place, weights, gdr):
    """Has them kept, as they are now: figures."""
    right, start = sums(weights), time.perf_counter()
    shareds = gdrapi.share(list(weights.values()), gdr)
    fds, memory = gdrapi.to_fds(shareds)
    shared = time.perf_counter()
    place.keep({"names": list(weights), "sums": right, "memory": memory}, fds)
    return {"segments": len(fds), "export_ms": (shared - start) * 1e3, "kept_ms": (time.perf_counter() - shared) * 1e3}


def take(table, fds):
    """The weights. Nothing is copied, and nothing of PyTorch's is changed. Of a capsule PyTorch asks no stream, which takes it 10 us."""
    shareds = gdrapi.from_fds([os.dup(fd.fileno()) for fd in fds], table["memory"])
    return dict(zip(table["names"], (torch.from_dlpack(shared.cuda().__dlpack__()) for shared in shareds)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("socket", nargs="?")
    parser.add_argument("--gib", type=float, default=1, help="of weights, where none are kept")
    args = parser.parse_args()
    # Room for descriptors. Beside CUDA's threads the kernel takes 10 ms and more each time that it makes some.
    os.close(fcntl.fcntl(0, fcntl.F_DUPFD, min(1023, os.sysconf("SC_OPEN_MAX") - 1)))
    place = places.Keeper(args.socket) if args.socket else places.Systemd()
    table, fds = place.take()
    start = time.perf_counter()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    context = time.perf_counter()
    if table is None:
        weights = load(args.gib)
        done = {"did": "load", "ms": (time.perf_counter() - context) * 1e3}
        gdr = gdrapi.open()
        done.update(keep(place, weights, gdr))
    else:
        weights = take(table, fds)
        done = {"did": "take", "ms": (time.perf_counter() - context) * 1e3, "segments": len(fds)}
        done["wrong"] = sum(a != b for a, b in zip(sums(weights), table["sums"]))
    done.update(context_ms=(context - start) * 1e3, tensors=len(weights),
                gib=sum(tensor.nbytes for tensor in weights.values()) / 2**30)
    print(json.dumps(done), flush=True)
    place.ready()
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
