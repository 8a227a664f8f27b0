# SPDX-License-Identifier: MIT
"""What a server moves beside its steps, and how few bytes a copy may have that does not wait for it."""
import statistics
import time

import torch

SIZE = 256 << 20
BLOCKS, BLOCK = 512, 32 << 10
MOST = 256 << 10  # bytes of a copy that may stall
STALLED = 1000  # us: a copy that waits takes 5,000 or more, another 30


class Copies:
    """Copies on a stream of their own, without a pause: at least one waits while one runs."""

    def __init__(self, to, source):
        self.stream, self.events = torch.cuda.Stream(), []
        self.copy = lambda: to.copy_(source, non_blocking=True)

    def keep_busy(self):
        self.events = [event for event in self.events if not event.query()]
        while len(self.events) < 2:
            with torch.cuda.stream(self.stream):
                self.copy()
                self.events.append(self.stream.record_event())


class Blocks(Copies):
    """The same of many small blocks, by a graph: they are in flight, and the CPU has not launched them one by one."""

    def __init__(self, to, source):
        super().__init__(to, source)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self.stream):
            for at in range(0, BLOCKS * BLOCK, BLOCK):
                to[at:at + BLOCK].copy_(source[at:at + BLOCK], non_blocking=True)
        self.copy = graph.replay


class Load:
    def __init__(self, *copies):
        self.copies = copies

    def keep_busy(self):
        for copies in self.copies:
            copies.keep_busy()


def loads():
    """Each load, by its name."""
    host = [torch.zeros(SIZE, dtype=torch.uint8).pin_memory() for _ in range(2)]
    gpu = [torch.zeros(SIZE, dtype=torch.uint8, device="cuda") for _ in range(2)]
    to, back = Copies(gpu[0], host[0]), Copies(host[1], gpu[1])
    return {"quiet": Load(), "H2D": Load(to), "D2H": Load(back), "both": Load(to, back),
            "blocks": Load(Blocks(gpu[0], host[0]))}


class Stalls:
    """Finds the size from which on a copy waits for a load's."""

    def __init__(self, by_name):
        self.pageable = torch.zeros(MOST, dtype=torch.uint8)
        self.pinned = self.pageable.pin_memory()
        self.gpu = torch.zeros(MOST, dtype=torch.uint8, device="cuda")
        self.matrix = torch.zeros(4096, 4096, dtype=torch.bfloat16, device="cuda")
        self.loads = by_name

    def time(self, load, to, source, behind):
        """The median of such a copy beside that load, in us. Behind a kernel, which takes 200, or not."""
        event, times = torch.cuda.Event(), []
        for _ in range(20):
            load.keep_busy()
            begin = time.perf_counter()
            if behind:
                torch.mm(self.matrix, self.matrix)
            to.copy_(source, non_blocking=True)
            event.record()
            event.synchronize()
            times.append((time.perf_counter() - begin) * 1e6)
        return statistics.median(times)

    def first(self, name, host, behind):
        """That size, to 1 part in 16; None if it is over MOST."""
        to, source = (self.gpu, host) if name == "H2D" else (host, self.gpu)

        def stalls(size):
            return self.time(self.loads[name], to[:size], source[:size], behind) > STALLED

        fine, size = 0, 4
        while not stalls(size):
            fine, size = size, size * 2
            if size > MOST:
                return None
        while size - fine > max(4, size // 16):
            middle = (fine + size) // 2
            fine, size = (fine, middle) if stalls(middle) else (middle, size)
        return size

    def find(self):
        """Each way, beside copies the same way."""
        found = {}
        for name in "H2D", "D2H":
            for memory, host in ("page-locked", self.pinned), ("pageable", self.pageable):
                for place in "in an idle stream", "behind a kernel":
                    found["%s, %s, %s" % (name, memory, place)] = self.first(name, host, place == "behind a kernel")
        torch.cuda.synchronize()
        return found
