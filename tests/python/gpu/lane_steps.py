# SPDX-License-Identifier: MIT
"""Steps of a lane on a GPU, each result checked, with PyTorch alone:

    LD_LIBRARY_PATH=build PYTHONPATH=python python3 tests/python/gpu/lane_steps.py [STEPS]

Each step writes its number onto every element, plus the element's place. The GPU takes the place away and says
the least and the greatest that is left: both are the step's number, or a byte was of another step.
"""
import errno
import os
import subprocess
import sys
import threading
import warnings

import torch

import gdrapi

STEPS = 100000
SIZES = (1024, 4096, 4096, 16384, 65536)  # bytes: 5 tensors, 89 KiB


def tensors_in(pool, start=0, sizes=SIZES):
    """int32 tensors in a pool of bytes, each on lines of its own."""
    made = []
    for size in sizes:
        made.append(pool[start:start + size].view(torch.int32))
        start += -(-size // 512) * 512
    return made


def new_tensors(sizes=SIZES):
    return tensors_in(torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"), sizes=sizes)


class Host:
    """The arrays of a step, in host memory."""

    def __init__(self, sizes=SIZES):
        self.places = [torch.arange(size // 4, dtype=torch.int32) for size in sizes]
        self.arrays = [torch.empty_like(place) for place in self.places]

    def fill(self, number):
        for place, array in zip(self.places, self.arrays):
            torch.add(place, number, out=array)
        return self.arrays


class Reader:
    """Kernels that read a set of tensors, and what they saw. With late, others run for some 100 us before."""

    def __init__(self, tensors, late=False):
        self.tensors = tensors
        self.places = [torch.arange(tensor.numel(), dtype=torch.int32, device="cuda") for tensor in tensors]
        self.first = torch.eye(1024, device="cuda") if late else None
        self.seen = torch.zeros(2 * len(tensors), dtype=torch.int32, device="cuda")
        self.host = torch.zeros(2 * len(tensors), dtype=torch.int32).pin_memory()
        self.event = torch.cuda.Event()

    def launch(self):
        if self.first is not None:
            x = self.first
            for _ in range(4):
                x = x @ self.first
        left = [tensor - place for tensor, place in zip(self.tensors, self.places)]
        self.seen.copy_(torch.stack([end for each in left for end in (each.min(), each.max())]))

    def capture(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.launch()
        self.launch = graph.replay
        return self

    def run(self):
        """Launches, and has the GPU say what it saw."""
        self.launch()
        self.host.copy_(self.seen, non_blocking=True)
        self.event.record()

    def check(self, number):
        self.event.synchronize()
        seen = self.host.tolist()
        assert seen == [number] * len(seen), "step %d: the GPU saw %s" % (number, seen)


def in_steps(lane, reader, steps, host=None):
    """Write, launch, wait."""
    host = host or Host()
    for number in range(steps):
        lane.write(host.fill(number))
        reader.run()
        reader.check(number)


def one_set(steps):
    """A graph's replay sees what was written before it."""
    tensors = new_tensors()
    reader = Reader(tensors).capture()
    with gdrapi.Lane(tensors) as lane:
        in_steps(lane, reader, steps)


def two_sets(steps):
    """A step is written while the kernels of the last one have yet to read theirs."""
    pool = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    sets = [tensors_in(pool), tensors_in(pool, 1 << 19)]
    readers = [Reader(tensors, late=True).capture() for tensors in sets]
    torch.cuda.synchronize()
    host, beside = Host(), 0
    with gdrapi.Lane(*sets, events=[reader.event for reader in readers]) as lane:
        for number in range(steps):
            turn = lane.write(host.fill(number))
            beside += not readers[1 - turn].event.query()
            readers[turn].run()
            if number:
                readers[1 - turn].check(number - 1)
        readers[turn].check(number)
    assert beside, "no step was written beside another"
    return "%d of %d written beside a running step" % (beside, steps)


def other_streams(steps):
    """Kernels without a graph, each step on another of three streams, launched by another thread."""
    tensors, host = new_tensors(), Host()
    reader = Reader(tensors)
    torch.cuda.synchronize()
    streams, failed = [torch.cuda.Stream() for _ in range(3)], []
    go, done = threading.Semaphore(0), threading.Semaphore(0)

    def launcher():
        for number in range(steps // 10):
            go.acquire()
            try:
                with torch.cuda.stream(streams[number % 3]):
                    reader.run()
                    reader.check(number)
            except BaseException as error:  # noqa: B902 - the step is shown below
                failed.append(error)
            done.release()

    thread = threading.Thread(target=launcher, daemon=True)
    thread.start()
    with gdrapi.Lane(tensors) as lane:
        for number in range(steps // 10):
            lane.write(host.fill(number))
            go.release()
            done.acquire()
            assert not failed, failed
    thread.join()


def fallback(steps):
    """Copies from pinned memory, asked for where there is no lane, see each step as well."""
    tensors = new_tensors()
    reader = Reader(tensors).capture()

    def refuse():
        raise gdrapi.GdrError(errno.ENODEV, "gdr_open")

    real, gdrapi._lane.shared = gdrapi._lane.shared, refuse
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lane = gdrapi.Lane(tensors, fallback=torch.cuda.current_stream())
    finally:
        gdrapi._lane.shared = real
    assert lane.way == "pinned" and lane.reason
    with lane:
        in_steps(lane, reader, steps // 10)


def allocators(steps):
    """PyTorch's other allocators: the lane serves, or says that they may be why it does not."""
    said = []
    for setting in ("expandable_segments:True", "backend:cudaMallocAsync"):
        done = subprocess.run([sys.executable, os.path.abspath(__file__), "--allocator", str(steps // 100)], text=True,
                              env={**os.environ, "PYTORCH_ALLOC_CONF": setting, "PYTORCH_CUDA_ALLOC_CONF": setting},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
        assert done.returncode == 0 and (last == "served" or setting + " may be why" in last), last + done.stderr
        said.append("%s: %s" % (setting, last))
    return "; ".join(said)


def one_allocator(steps):
    """What allocators runs."""
    tensors = new_tensors()
    reader = Reader(tensors)
    torch.cuda.synchronize()
    try:
        lane = gdrapi.Lane(tensors)
    except gdrapi.LaneError as error:
        return str(error)
    in_steps(lane, reader, steps)
    return "served"


CHECKS = [one_set, two_sets, other_streams, fallback, allocators]


def main():
    if sys.argv[1:2] == ["--allocator"]:
        print(one_allocator(int(sys.argv[2])))
        return 0
    steps, failed = int(sys.argv[1]) if sys.argv[1:] else STEPS, 0
    for check in CHECKS:
        try:
            said = check(steps)
            print("ok - %s%s" % (check.__name__, " # " + said if said else ""), flush=True)
        except Exception as error:
            failed += 1
            print("not ok - %s: %s: %s" % (check.__name__, type(error).__name__, error), flush=True)
    print("%d passed, %d failed" % (len(CHECKS) - failed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
