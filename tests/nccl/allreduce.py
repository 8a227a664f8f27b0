# SPDX-License-Identifier: MIT
"""One rank a GPU, a process each: NCCL all-reduces whose sums are checked.

docs/measurements.md says with which environment NCCL uses this library for them."""
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = (1, 7, 1024, 65536, 1 << 20, 1 << 24)  # floats
ROUNDS = 5


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
    dist.destroy_process_group()
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    n = torch.cuda.device_count()
    if n < 2:
        sys.exit("this needs two GPUs or more")
    print("torch", torch.__version__, "nccl", torch.cuda.nccl.version(), "gpus", n, flush=True)
    mp.spawn(rank, args=(n,), nprocs=n)
