# SPDX-License-Identifier: MIT
"""A model's step on the GPU, and its tokens on their way to the host."""
import time
from types import SimpleNamespace

import torch
from batch import BLOCK, COLUMNS, REQUESTS, VOCABULARY, WORDS, fields, mix

WIDTH = 4096


def mapped(pinned):
    """A tensor of the GPU in the same page-locked memory. Kernels load and store there: no copy engine takes part."""
    memory = SimpleNamespace(owner=pinned, __cuda_array_interface__=pinned.numpy().__array_interface__)
    return torch.as_tensor(memory, device="cuda")


def new_inputs():
    """The small arrays in GPU memory, one after another. Returns them, and the block that they lie in."""
    block = torch.zeros(WORDS, dtype=torch.int32, device="cuda")
    return fields(block, torch), block


class Model:
    """Makes a token for each request of all that was sent, then multiplies for as long as a model does.

    No step of it is a copy: within one GPU, too, copy_() between like tensors may take a copy engine.
    """

    def __init__(self, microseconds):
        self.table = torch.zeros(REQUESTS, COLUMNS, dtype=torch.int32, device="cuda")
        self.last = torch.zeros(REQUESTS, dtype=torch.int64, device="cuda")
        self.columns = torch.arange(COLUMNS, device="cuda")
        self.hidden = torch.randn(REQUESTS, WIDTH, dtype=torch.bfloat16, device="cuda")
        self.weights = torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda") / WIDTH ** 0.5
        self.layers = 0
        without, self.layers = self.time(), 16
        layer = (self.time() - without) / self.layers
        self.layers = max(1, round((microseconds - without) / layer))

    def run(self, given):
        used = self.columns * BLOCK < given.lengths[:, None]
        sums = (torch.where(used, self.table, 0) * (self.columns + 1)).sum(-1)
        mixed = mix(sums, given, torch.where(given.tokens >= 0, given.tokens, self.last))
        hidden = self.hidden
        for _ in range(self.layers):
            hidden = hidden @ self.weights
        torch.remainder(mixed, VOCABULARY, out=self.last)

    def capture(self, given, first=None):
        """A graph of a step that reads these inputs. first launches what comes before."""
        def step():
            if first:
                first()
            self.run(given)

        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph

    def time(self):
        """Microseconds of a step."""
        given, _ = new_inputs()
        graph = self.capture(given)
        for count in (100, 100):  # the first are to warm up
            begin = time.perf_counter()
            for _ in range(count):
                graph.replay()
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count * 1e6


class Tokens:
    """The tokens of two steps, in turns, on their way back."""

    def __init__(self, model, way):
        self.model, self.way = model, way
        self.host = [torch.zeros(REQUESTS, dtype=torch.int64).pin_memory() for _ in range(2)]
        self.arrays = [host.numpy() for host in self.host]
        self.events = [torch.cuda.Event() for _ in range(2)]
        self.main, self.beside = torch.cuda.current_stream(), torch.cuda.Stream()
        self.out = [mapped(host) if way == "mapped" else torch.zeros_like(host, device="cuda") for host in self.host]

    def launch(self, turn):
        """The kernel that samples: here it adds 0. It stores into host memory, or a copy follows on a stream beside."""
        torch.add(self.model.last, 0, out=self.out[turn])
        if self.way == "mapped":
            self.events[turn].record()
            return
        self.beside.wait_stream(self.main)
        with torch.cuda.stream(self.beside):
            self.host[turn].copy_(self.out[turn], non_blocking=True)
            self.events[turn].record()

    def wait(self, turn):
        self.events[turn].synchronize()
        return self.arrays[turn]
