# SPDX-License-Identifier: MIT
"""Batches that worker processes make, and a trainer uses on the GPU, in three ways.

    LD_LIBRARY_PATH=build PYTHONPATH=python python3 examples/workers/workers.py

shared: forked workers write their samples into slots of a ring in GPU memory (gdrapi.share); the trainer copies nothing.
loader: PyTorch's DataLoader: shared memory, a thread that copies into pinned memory, a copy to the GPU.
whole: the same, with a dataset that makes whole batches, so that nothing collates samples.

A sample is a row of a table with its number in the first eight bytes. Each byte of each batch is compared on the GPU.
"""
import argparse
import json
import multiprocessing
import sys
import time
from collections import deque

try:
    import numpy
    import torch
except ImportError:
    sys.exit("workers.py needs PyTorch and NumPy")

import gdrapi

ROWS = 64  # different samples
SLOTS = 2  # batches of each worker that are made or used at a time


class Samples(torch.utils.data.Dataset):
    """Sample number i is row i % ROWS, with i in its first eight bytes."""

    def __init__(self, size, batch, steps):
        self.table = numpy.random.default_rng(size).integers(0, 256, (ROWS, size), dtype=numpy.uint8)
        self.batch, self.steps = batch, steps

    def __len__(self):
        return self.batch * self.steps

    def make(self, number):
        sample = self.table[number % ROWS].copy()
        sample[:8].view(numpy.int64)[0] = number
        return sample

    def __getitem__(self, number):
        return torch.from_numpy(self.make(number))


def fill(samples, slots, first, stride, pipe):
    """A worker: makes the batches first, first + stride, ... in its slots. It calls nothing of CUDA's."""
    size = samples.table.shape[1]
    with gdrapi.open() as gdr:
        remotes = [slot.open(gdr) for slot in slots]
        for turn, step in enumerate(range(first, samples.steps, stride)):
            pipe.recv_bytes()  # the slot is free
            for k in range(samples.batch):
                remotes[turn % SLOTS].write(samples.make(step * samples.batch + k), k * size)
            pipe.send_bytes(b"f")  # it is full


class Ring:
    """The batches of the workers, in order."""

    def __init__(self, samples, workers):
        size = samples.table.shape[1]
        tensors = [[torch.empty(samples.batch, size, dtype=torch.uint8, device="cuda") for _ in range(SLOTS)]
                   for _ in range(workers)]
        torch.cuda.synchronize()
        self.tensors, self.pipes, self.processes = tensors, [], []
        self.steps, self.stride = samples.steps, workers
        fork = multiprocessing.get_context("fork")
        for worker in range(workers):
            here, there = fork.Pipe()
            slots = [gdrapi.share(tensor) for tensor in tensors[worker]]
            process = fork.Process(target=fill, args=(samples, slots, worker, workers, there), daemon=True)
            process.start()
            there.close()
            for slot in slots:
                slot.close()
                here.send_bytes(b"e")
            self.pipes.append(here)
            self.processes.append(process)

    def __iter__(self):
        used = deque()  # a slot is free when its event has passed
        for step in range(self.steps):
            worker = step % self.stride
            self.pipes[worker].recv_bytes()
            yield self.tensors[worker][step // self.stride % SLOTS]
            event = torch.cuda.Event(blocking=True)
            event.record()
            used.append((worker, event))
            if len(used) > self.stride:
                worker, event = used.popleft()
                event.synchronize()
                self.pipes[worker].send_bytes(b"e")

    def close(self):
        for process in self.processes:
            process.terminate()
            process.join()


class Batches(torch.utils.data.Dataset):
    """Batches of such samples."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples.steps

    def __getitem__(self, step):
        samples = self.samples
        batch = numpy.empty((samples.batch, samples.table.shape[1]), numpy.uint8)
        for k in range(samples.batch):
            batch[k] = samples.make(step * samples.batch + k)
        return torch.from_numpy(batch)


class Loader:
    """The same by torch.utils.data.DataLoader."""

    def __init__(self, samples, workers):
        self.loader = self.make(samples, num_workers=workers, pin_memory=True, prefetch_factor=SLOTS, multiprocessing_context="fork")

    def make(self, samples, **how):
        return torch.utils.data.DataLoader(samples, samples.batch, **how)

    def __iter__(self):
        for batch in self.loader:
            yield batch.to("cuda", non_blocking=True)

    def close(self):
        pass


class Whole(Loader):
    """The same with whole batches."""

    def make(self, samples, **how):
        return torch.utils.data.DataLoader(Batches(samples), None, **how)


WAYS = {"shared": Ring, "loader": Loader, "whole": Whole}


class Check:
    """Compares batches on the GPU with what they should be."""

    def __init__(self, samples):
        self.table = torch.from_numpy(samples.table).cuda()
        self.numbers = torch.arange(samples.batch, device="cuda")
        self.wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def __call__(self, step, batch):
        numbers = self.numbers + step * len(batch)
        self.wrong += (batch[:, 8:] != self.table[numbers % ROWS, 8:]).sum()
        self.wrong += (batch[:, :8].contiguous().view(torch.int64)[:, 0] != numbers).sum()


def measure(way, size, workers, batch, seconds):
    """Batches a second, CPU time of this process for each, and how many bytes were wrong."""
    samples = Samples(size, batch, 1 << 24)
    check = Check(samples)
    batches = WAYS[way](samples, workers)
    warm, count, start, cpu = 4 * workers, 0, 0.0, 0.0
    for step, data in enumerate(batches):
        check(step, data)
        if step < warm:
            start, cpu = time.perf_counter(), time.process_time()
            continue
        count += 1
        if time.perf_counter() - start > seconds:
            break
    torch.cuda.synchronize()
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    batches.close()
    return {"way": way, "size": size, "workers": workers, "batches": count, "per_second": count / elapsed,
            "cpu_us": cpu / count * 1e6, "wrong": int(check.wrong)}


def size_of(text):
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="4K,64K,1M,4M", help="bytes of a sample, such as 4K or 1M")
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--batch", type=int, default=16, help="samples of a batch")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--json", help="write the figures there")
    args = parser.parse_args()
    torch.zeros(1, device="cuda")  # CUDA is initialised: the children have none
    results = []
    print("%6s %7s | batches a second: %s | CPU time of each, us: %s" % ("sample", "workers", ", ".join(WAYS), ", ".join(WAYS)))
    for size in args.sizes.split(","):
        for workers in map(int, args.workers.split(",")):
            these = [measure(way, size_of(size), workers, args.batch, args.seconds) for way in WAYS]
            results += these
            print("%6s %7d | %s | %s" % (size, workers, *("".join("%8.0f" % one[key] for one in these)
                                                           for key in ("per_second", "cpu_us"))), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "batch": args.batch, "runs": results}, file)
    wrong = sum(one["wrong"] for one in results)
    print("%d bytes wrong" % wrong)
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
