# SPDX-License-Identifier: MIT
"""One rank a GPU, a process each: NCCL all-reduces whose sums are checked, and how long they take back to back.

docs/measurements.md says with which environment NCCL uses this library for them."""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = (1, 7, 1024, 65536, 1 << 20, 1 << 24)  # floats
ROUNDS = 5
TIMED = (8, 4096, 65536, 1 << 20, 4 << 20)  # bytes


def rank(r, n):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.cuda.set_device(r)
    dist.init_process_group("nccl", rank=r, world_size=n, device_id=torch.device("cuda", r))
    wrong = 0
    for size in SIZES:
        for i in range(ROUNDS):
            t = torch.full((size,), float(r + 1 + i), device="cuda")
            dist.all_reduce(t)
            want = sum(k + 1 + i for k in range(n))
            wrong += int((t != want).sum().item())
    print(f"rank {r}: {len(SIZES) * ROUNDS} all-reduces, {wrong} elements wrong", flush=True)
    medians = {size: round(statistics.median(back_to_back(size) for _ in range(6))) for size in TIMED}
    if not r:
        print("; ".join(f"{size} B {us} us" for size, us in medians.items()), flush=True)
    dist.destroy_process_group()
    if wrong:
        sys.exit(1)


def back_to_back(size):
    """us of one of 200."""
    t = torch.ones(size // 4, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(200):
        dist.all_reduce(t)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 200 * 1e6


if __name__ == "__main__":
    n = torch.cuda.device_count()
    if n < 2:
        sys.exit("this needs two GPUs or more")
    print("torch", torch.__version__, "nccl", torch.cuda.nccl.version(), "gpus", n, flush=True)
    mp.spawn(rank, args=(n,), nprocs=n)
