# SPDX-License-Identifier: MIT
"""A server whose weights outlive it: it takes them from gdrcopy_keep, or loads them and has them kept. It says so in a line of JSON.

    python3 server.py SOCKET [--name llama] [--version v1] [--gib 16] [--timeout 60]
"""
import argparse
import json
import logging
import sys
import time
try:
    import torch
except ImportError:
    sys.exit("server.py needs PyTorch")
from gdrapi import keep


def sums(weights):
    return torch.stack([weights[name].view(-1).view(torch.int64).sum() for name in weights if name != "sums"])


def load(gib):
    """Stands for a model's files: 8 large tensors and 300 small ones."""
    shapes = {"layer.%d" % n: (4096, int(gib * 2**30) // 8 // 2 // 4096) for n in range(8)}
    shapes.update({"norm.%d" % n: (64 + 36 * n,) for n in range(300)})
    weights = {name: torch.empty(shape, dtype=torch.bfloat16, device="cuda") for name, shape in shapes.items()}
    for tensor in weights.values():
        tensor.view(-1).view(torch.int64).random_()
    return {**weights, "sums": sums(weights)}


def attempt(what, *arguments):
    """What it gives. None if there is no keeper, if it is stopped, or if a process that has the weights does not end."""
    try:
        return what(*arguments)
    except OSError as error:
        logging.warning("%s", error)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("socket")
    for name, default in (("name", "llama"), ("version", "v1"), ("gib", 1.0), ("timeout", 60.0)):
        parser.add_argument("--" + name, type=type(default), default=default)
    args = parser.parse_args()
    store = keep.Store(args.socket)  # before CUDA starts
    torch.cuda.synchronize()
    start, taken = time.perf_counter(), attempt(store.take, args.name, args.version, args.timeout)
    weights = {name: torch.from_dlpack(array.__dlpack__()) for name, array in taken.items()} if taken else load(args.gib)
    torch.cuda.synchronize()
    ms = (time.perf_counter() - start) * 1e3
    taken or attempt(store.keep, args.name, weights, args.version)
    print(json.dumps({"did": "take" if taken else "load", "ms": ms, "tensors": len(weights), "wrong": int((sums(weights) != weights["sums"]).sum()),
                      "gib": sum(one.nbytes for one in weights.values()) / 2**30}), flush=True)
    while not time.sleep(10):  # a new keeper gets them again
        attempt(store.has, args.name, args.version) or attempt(store.keep, args.name, weights, args.version)


if __name__ == "__main__":
    main()
