# SPDX-License-Identifier: MIT
"""Steps of a lane on a GPU, each result checked, with PyTorch alone:

    LD_LIBRARY_PATH=build PYTHONPATH=python python3 tests/python/gpu/lane_steps.py [STEPS]

The checks are the rows of "When the tensors may be written again" in python/README.md. Most write the step's number onto
every element, plus the element's place. The GPU takes the place away and says the least and the greatest that is
left: both are the step's number, or a byte was of another step.
"""
import ctypes
import os
import subprocess
import sys
import threading
import time

import numpy
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


def one_event(steps):
    """One set that is overwritten: the write waits for the event after the last kernel that reads it."""
    tensors = new_tensors()
    reader = Reader(tensors, late=True).capture()
    host = Host()
    with gdrapi.Lane(tensors, events=[reader.event]) as lane:
        for number in range(steps // 10):
            lane.write(host.fill(number))
            if number:
                reader.check(number - 1)
            reader.run()
        reader.check(number)


REQUESTS, COLUMNS, MOST = 64, 512, 4


class Table:
    """A block table that grows. A kernel, behind others that run for some 100 us, sums the blocks of each request below its
    length; the blocks' numbers are random, so a wrong one is seen."""

    def __init__(self, *lengths):
        """lengths is a tensor for each set."""
        self.random, self.gpu = numpy.random.default_rng(1), torch.zeros(REQUESTS, COLUMNS, dtype=torch.int32, device="cuda")
        self.host, self.used = numpy.zeros((REQUESTS, COLUMNS), numpy.int64), numpy.zeros(REQUESTS, numpy.int64)
        self.lengths, self.late, self.columns = lengths, torch.eye(1024, device="cuda"), torch.arange(COLUMNS, device="cuda")
        self.seen = [torch.zeros(REQUESTS, dtype=torch.int64).pin_memory() for _ in lengths]
        self.events = [torch.cuda.Event() for _ in lengths]
        torch.cuda.synchronize()

    def append(self, counts):
        """So many new blocks for each request: the index and the data of a write. Where a row is full, another request
        takes it: that is a row that is written over, so it waits for all kernels."""
        if (self.used + counts > COLUMNS).any():
            torch.cuda.synchronize()
            self.used[self.used + counts > COLUMNS] = 0
        index, ids = (numpy.arange(REQUESTS), self.used.copy(), counts), self.random.integers(1, 1 << 30, counts.sum())
        for row, column, count, part in zip(*index, numpy.split(ids, numpy.cumsum(counts)[:-1])):
            self.host[row, column:column + count] = part
        self.used += counts
        return index, ids

    def launch(self, turn):
        x = self.late
        for _ in range(16):
            x = x @ self.late
        below = self.columns < self.lengths[turn][:, None]
        self.seen[turn].copy_((self.gpu * below).sum(1), non_blocking=True)
        self.events[turn].record()

    def sums(self, lengths):
        return [int(self.host[row, :length].sum()) for row, length in enumerate(lengths)]


def appends(steps):
    """Blocks are appended to one table while the kernels of the last step, which read what is below their own lengths, have
    yet to run. The lengths are written over: two sets. Both ways to write rows take turns."""
    lens, beside = [torch.zeros(REQUESTS, dtype=torch.int32, device="cuda") for _ in range(2)], 0
    table, expected, host = Table(*lens), [None, None], numpy.zeros(REQUESTS, numpy.int32)
    with gdrapi.Lane([table.gpu, lens[0]], [table.gpu, lens[1]], events=table.events) as lane:
        rows = lane.rows(table.gpu)
        for number in range(steps // 10):
            turn, (index, ids) = number % 2, table.append(table.random.integers(0, MOST + 1, REQUESTS))
            beside += number and not table.events[1 - turn].query()
            host[:] = table.used
            if number % 3:
                lane.write([(index, ids), host])
            else:
                rows[index] = ids
                lane.write([None, host])
            expected[turn] = table.sums(table.used)
            table.launch(turn)
            if number:
                table.events[1 - turn].synchronize()
                assert table.seen[1 - turn].tolist() == expected[1 - turn], number - 1
    assert beside, "no step was written beside another"
    return "%d of %d written beside a running step" % (beside, steps // 10)


def speculation(steps):
    """The GPU makes the lengths. The CPU appends for the most that may be accepted, before it knows how much was."""
    lengths = torch.zeros(REQUESTS, dtype=torch.int32, device="cuda")
    table = Table(lengths)
    with gdrapi.Lane([table.gpu]) as lane:
        rows = lane.rows(table.gpu)
        for number in range(steps // 10):
            if number % (COLUMNS // MOST) == 0:  # all rows are new requests'
                lengths.zero_()
            index, ids = table.append(numpy.full(REQUESTS, MOST))
            rows[index] = ids
            lengths.add_(torch.randint(0, MOST + 1, (REQUESTS,), device="cuda", dtype=torch.int32))
            table.launch(0)
            if number % 8 == 7:
                assert table.sums(lengths.tolist()) == table.seen[0].tolist(), number


PTX = b"""
.version 7.8
.target sm_90
.address_size 64
.visible .entry look(.param .u64 from, .param .u64 to, .param .u64 flag, .param .u32 number, .param .u64 after)
{
	.reg .pred p;
	.reg .u32 i, n, v;
	.reg .u64 a, b, f, s, t;
	griddepcontrol.launch_dependents;
	ld.param.u64 f, [flag];
	ld.param.u32 n, [number];
	setp.eq.u64 p, f, 0;
	@p bra flagged;
flags:
	ld.acquire.sys.global.u32 v, [f];
	setp.ne.u32 p, v, n;
	@p bra flags;
flagged:
	mov.u32 i, %tid.x;
	ld.param.u64 a, [from];
	mad.wide.u32 a, i, 4, a;
	ld.global.ca.u32 v, [a];
	mov.u32 n, %ctaid.x;
	mad.lo.u32 i, n, 256, i;
	ld.param.u64 b, [to];
	mad.wide.u32 b, i, 4, b;
	st.relaxed.sys.global.u32 [b], v;
	ld.param.u64 s, [after];
	mov.u64 t, %globaltimer;
	add.u64 s, s, t;
stays:
	mov.u64 t, %globaltimer;
	setp.lt.u64 p, t, s;
	@p bra stays;
	ret;
}
\0"""


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("size", ctypes.c_uint * 7), ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]


class Look:
    """A kernel: each block copies the same 256 words to its part of host memory, once a flag has a number, and stays for some
    nanoseconds. With early it is launched with programmatic dependent launch: it begins before the kernel ahead has ended."""

    def __init__(self):
        self.cuda, self.kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        module = ctypes.c_void_p()
        self.do("cuModuleLoadData", ctypes.byref(module), PTX)
        self.do("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"look")

    def do(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        assert result == 0, "%s: %d" % (name, result)

    def __call__(self, source, target, flag=None, number=0, after=0, early=False):
        long, word = ctypes.c_uint64, ctypes.c_uint32
        values = (long(source.data_ptr()), long(target.data_ptr()), long(0 if flag is None else flag.data_ptr()), word(number),
                  long(after))
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        attribute = (word * 18)(6, 0, 1)  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: 1
        config = Config((ctypes.c_uint * 7)(target.numel() // 256, 1, 1, 256, 1, 1, 0), torch.cuda.current_stream().cuda_stream,
                        ctypes.addressof(attribute), int(early))
        self.do("cuLaunchKernelEx", ctypes.byref(config), self.kernel, pointers, None)


def dependent_launch(steps):
    """A kernel that begins before the one ahead of it has ended sees what was written before its launch, also where the one
    ahead has read those very lines, on each processor. An event behind it says that both have ended."""
    look, stream, beside, count = Look(), torch.cuda.Stream(), 0, max(steps // 100, 1)
    tensor, event = torch.zeros(256, dtype=torch.int32, device="cuda"), torch.cuda.Event()
    first, second = (torch.full((264 * 256,), -1, dtype=torch.int32).pin_memory() for _ in range(2))
    seen, got, odd = first.numpy(), second.numpy().reshape(-1, 256), numpy.arange(1, 256, 2)
    torch.cuda.synchronize()
    with gdrapi.Lane([tensor]) as lane, torch.cuda.stream(stream):
        rows = lane.rows(tensor)
        for number in range(2, 2 + count):
            rows[:] = -number
            look(tensor, first, after=1000000)
            while not (seen == -number).all():
                pass
            begin = time.perf_counter()
            rows[odd] = number
            look(tensor, second, early=True)
            event.record()
            while (got[:, 1] != number).any() and not event.query():
                pass
            beside += time.perf_counter() < begin + 0.0008
            event.synchronize()
            assert (got[:, odd] == number).all() and (got[:, ::2] == -number).all(), number
    assert beside, "no kernel began before the one ahead of it had ended"
    return "%d of %d were read before the kernel ahead ended" % (beside, count)


def running_kernel(steps):
    """A kernel that was launched before: data by one call, a flag by a second one."""
    look = Look()
    tensor = torch.zeros(256, dtype=torch.int32, device="cuda")
    flag = torch.full((64,), -1, dtype=torch.int32, device="cuda")
    seen = torch.full((256,), -1, dtype=torch.int32).pin_memory()
    torch.cuda.synchronize()
    with gdrapi.Lane([tensor]) as lane, gdrapi.Lane([flag]) as flags:
        data, announce = lane.rows(tensor), flags.rows(flag)
        for number in range(steps // 10):
            look(tensor, seen, flag, number)
            data[:] = number
            announce[0] = number
            torch.cuda.synchronize()
            assert (seen == number).all(), number


def second_gpu(steps):
    """Kernels on another GPU that read this one's memory: the lane drains before their launch."""
    if torch.cuda.device_count() < 2:
        return "not run: one GPU alone"
    tensor = torch.zeros(1 << 14, dtype=torch.int32, device="cuda:0")
    torch.cuda.synchronize()
    seen = torch.zeros(1 << 14, dtype=torch.int32, device="cuda:1")
    with gdrapi.Lane([tensor]) as lane, torch.cuda.device(1):
        seen.copy_(tensor)  # makes the GPUs peers
        torch.cuda.synchronize()
        host = numpy.zeros(1 << 14, numpy.int32)
        for number in range(steps // 10):
            host[:] = number
            lane.write([host])
            lane.drain()
            seen.copy_(tensor)
            least, most = seen.aminmax()
            assert int(least) == int(most) == number, number


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


CHECKS = [one_set, two_sets, one_event, appends, speculation, other_streams, dependent_launch, running_kernel, second_gpu, allocators]


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
