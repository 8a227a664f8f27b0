# SPDX-License-Identifier: MIT
"""What an inference server's scheduler sends to the GPU before each step, in four ways.

    LD_LIBRARY_PATH=build PYTHONPATH=python python3 examples/scheduler/scheduler.py --json scheduler.json

A step writes block tables, slots, lengths, positions and tokens, replays a captured graph that reads them, copies the
new tokens back and waits for them. Every step's result is checked. The four ways take turns, first on a quiet link,
then beside copies of 256 MiB from host memory on another stream. It takes 90 s on an H200.
"""
import argparse
import json
import platform
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("scheduler.py needs PyTorch")

import gdrapi

BLOCK = 16  # tokens in a block of the cache
HEAD = 64  # elements of a head
VOCABULARY = 4096
BATCHES = ((256, 64), (32, 32), (4, 16))  # sequences, blocks of each
VARIANTS = 8  # different steps
ROUNDS = 10
BESIDE = 256 << 20
PERCENTILES = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))


def layout(batch, blocks):
    """The tensors of a step: name, type, shape."""
    return (("block_table", torch.int32, (batch, blocks)), ("slot_mapping", torch.int64, (batch,)),
            ("seq_lens", torch.int32, (batch,)), ("positions", torch.int64, (batch,)), ("input_ids", torch.int32, (batch,)))


def views(pool, shapes):
    """These tensors in a pool of bytes, each from a multiple of 512 on. Returns where they end, too."""
    made, start = [], 0
    for _, kind, shape in shapes:
        size = torch.Size(shape).numel() * kind.itemsize
        made.append(pool[start:start + size].view(kind).view(shape))
        end = start + size
        start += -(-size // 512) * 512
    return made, end


def new_step(batch, blocks, seed):
    """One step's arrays in host memory."""
    random = torch.Generator().manual_seed(seed)

    def below(most, shape, kind):
        return torch.randint(0, most, shape, generator=random, dtype=kind)

    table = torch.randperm(batch * blocks, generator=random).to(torch.int32).view(batch, blocks)
    lengths = 1 + below(blocks * BLOCK, (batch,), torch.int32)
    positions = (lengths - 1).to(torch.int64)
    slots = table[torch.arange(batch), positions // BLOCK].to(torch.int64) * BLOCK + positions % BLOCK
    return [table, slots, lengths, positions, below(VOCABULARY, (batch,), torch.int32)]


class Decode:
    """A layer's worth of a decode step as a captured graph: one token of each sequence against its paged cache."""

    def __init__(self, tensors, batch, blocks):
        self.tensors = tensors
        half = {"dtype": torch.float16, "device": "cuda"}
        self.embedding = torch.randn(VOCABULARY, HEAD, **half) / 8
        self.rotation = torch.randn(blocks * BLOCK, HEAD, **half)
        self.cache = torch.randn(batch * blocks * BLOCK, HEAD, **half)
        self.places = torch.arange(blocks * BLOCK, device="cuda")
        self.weights = [torch.arange(1, tensor.numel() + 1, device="cuda").view(tensor.shape) for tensor in tensors]
        self.out = torch.zeros(batch + len(tensors), dtype=torch.int64, device="cuda")
        self.host = torch.zeros(batch + len(tensors), dtype=torch.int64).pin_memory()
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self.run()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.run()
        torch.cuda.synchronize()

    def run(self):
        table, slots, lengths, positions, tokens = self.tensors
        query = self.embedding[tokens.long()] + self.rotation[positions]
        self.cache.index_copy_(0, slots, query)
        keys = self.cache.view(-1, BLOCK, HEAD)[table.long()].view(len(table), -1, HEAD)
        scores = (keys * query[:, None]).sum(-1).float()
        scores = scores.masked_fill(self.places >= lengths[:, None], float("-inf")).softmax(-1).half()
        logits = (scores[:, None] @ keys).squeeze(1) @ self.embedding.t()
        sums = [(tensor * weight).sum() for tensor, weight in zip(self.tensors, self.weights)]
        self.out.copy_(torch.cat([torch.stack(sums), logits.argmax(-1)]))

    def replay(self):
        """The graph, and its tokens on their way to the host."""
        self.graph.replay()
        self.host.copy_(self.out, non_blocking=True)

    def sums(self, arrays):
        """What the graph must say of these arrays."""
        return [int((array * weight.cpu()).sum()) for array, weight in zip(arrays, self.weights)]


class Ways:
    """Four ways to fill the same tensors. Each has its own arrays in host memory, where the scheduler writes."""

    def __init__(self, pool, tensors, shapes, end):
        self.host = {
            "pageable `copy_`": [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors],
            "pinned `copy_(non_blocking=True)`": [torch.zeros(tensor.shape, dtype=tensor.dtype).pin_memory() for tensor in tensors],
        }
        packed = torch.zeros(end, dtype=torch.uint8).pin_memory()
        self.host["one packed pinned copy"] = views(packed, shapes)[0]
        self.host["`gdrapi.Lane`"] = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        self.lane = gdrapi.Lane(tensors)
        pageable, pinned, _, lane = self.host.values()
        whole = pool[:end]

        def copy_pageable():
            for tensor, array in zip(tensors, pageable):
                tensor.copy_(array)

        def copy_pinned():
            for tensor, array in zip(tensors, pinned):
                tensor.copy_(array, non_blocking=True)

        def copy_packed():
            whole.copy_(packed, non_blocking=True)

        def write_lane():
            self.lane.write(lane)

        self.copy = dict(zip(self.host, (copy_pageable, copy_pinned, copy_packed, write_lane)))


class Beside:
    """Copies of 256 MiB on another stream, one after the other: at least one waits while one runs."""

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.host = torch.zeros(BESIDE, dtype=torch.uint8).pin_memory()
        self.device = torch.zeros(BESIDE, dtype=torch.uint8, device="cuda")
        self.events = []

    def keep_busy(self):
        self.events = [event for event in self.events if not event.query()]
        while len(self.events) < 2:
            with torch.cuda.stream(self.stream):
                self.device.copy_(self.host, non_blocking=True)
            self.events.append(self.stream.record_event())

    def end(self):
        self.stream.synchronize()


def measure(decode, ways, variants, steps, beside, limit):
    """Times of each way's steps, in us: {way: ([of the copies], [of the step])}. The ways take turns."""
    times = {name: ([], []) for name in ways.copy}
    expected = [decode.sums(arrays) for arrays in variants]
    stream, clock, ended = torch.cuda.current_stream(), time.perf_counter_ns, time.monotonic() + limit
    names = list(ways.copy)
    for turn in range(-1, ROUNDS):
        if turn > 0 and time.monotonic() > ended:
            break
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            copy, host = ways.copy[name], ways.host[name]
            for number in range(steps // ROUNDS if turn >= 0 else 50):  # the first are to warm up
                variant = number % VARIANTS
                for array, new in zip(host, variants[variant]):
                    array.copy_(new)
                if beside:
                    beside.keep_busy()
                begin = clock()
                copy()
                copied = clock()
                decode.replay()
                stream.synchronize()
                end = clock()
                if decode.host[:len(host)].tolist() != expected[variant]:
                    sys.exit("%s: the GPU read other bytes than step %d's" % (name, number))
                if turn >= 0:
                    times[name][0].append((copied - begin) / 1e3)
                    times[name][1].append((end - begin) / 1e3)
            if beside:
                beside.end()
    return times


def percentiles(times):
    ordered = sorted(times)
    return {name: ordered[min(int(len(ordered) * part), len(ordered) - 1)] for name, part in PERCENTILES}


def rows_of(times, batch, tensors, size, beside):
    return [{"batch": batch, "tensors": tensors, "bytes": size, "way": name, "beside": beside, "steps": len(cpu),
             "cpu_us": percentiles(cpu), "step_us": percentiles(step)} for name, (cpu, step) in times.items()]


def table(rows):
    """One table for each batch: P50, P99, P99.9 in us."""
    lines = []
    for batch in sorted({row["batch"] for row in rows}, reverse=True):
        these = [row for row in rows if row["batch"] == batch]
        lines += ["| %d sequences: %d tensors, %.1f KiB | copies, CPU time | step | beside 256 MiB copies: copies | step |"
                  % (batch, these[0]["tensors"], these[0]["bytes"] / 1024), "| --- | ---: | ---: | ---: | ---: |"]
        for way in dict.fromkeys(row["way"] for row in these):
            cells = [", ".join("%.1f" % value if value < 1000 else "{:,.0f}".format(value) for value in row[what].values())
                     for row in these if row["way"] == way for what in ("cpu_us", "step_us")]
            lines.append("| %s | %s |" % (way, " | ".join(cells)))
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10000, help="of each way, quiet and beside copies")
    parser.add_argument("--limit", type=float, default=100, help="seconds: turns that have not begun then are left out")
    parser.add_argument("--json", metavar="FILE", help="where the figures go, too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("scheduler.py needs a GPU")
    beside, rows = Beside(), []
    for batch, blocks in BATCHES:
        shapes = layout(batch, blocks)
        pool = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        tensors, end = views(pool, shapes)
        variants = [new_step(batch, blocks, seed) for seed in range(VARIANTS)]
        for tensor, array in zip(tensors, variants[0]):
            tensor.copy_(array)
        decode = Decode(tensors, batch, blocks)
        ways = Ways(pool, tensors, shapes, end)
        for other in (None, beside):
            times = measure(decode, ways, variants, options.steps, other, options.limit / 2 / len(BATCHES))
            rows += rows_of(times, batch, len(tensors), sum(tensor.nbytes for tensor in tensors), bool(other))
        ways.lane.close()
    with gdrapi.open() as gdr, gdr.pin(pool):
        backend = gdr.backend
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version(),
             "backend": backend, "steps": min(row["steps"] for row in rows)}
    print("%(gpu)s, %(backend)s, PyTorch %(torch)s, Python %(python)s; P50, P99, P99.9 in us of at least %(steps)d steps each\n" % about)
    print(table(rows))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**about, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    try:
        main()
    except gdrapi.LaneError as error:
        sys.exit("no lane here: %s" % error)
