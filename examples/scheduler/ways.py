# SPDX-License-Identifier: MIT
"""Ways to send a step's arrays and new block ids. Each is at its best: it may write pinned memory that it keeps, and
one whose arrays the GPU reads later has two sets of them, in turns."""
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from batch import BLOCK, MOST, REQUESTS, WORDS
from model import mapped, new_inputs

import gdrapi


def pinned(count, dtype):
    return torch.zeros(count, dtype=dtype).pin_memory()


class Way:
    def __init__(self, model):
        self.model, self.turn = model, 0

    def start(self, batch):
        """The GPU has what the batch has, before the first step."""
        self.model.table.copy_(torch.from_numpy(batch.table))
        self.model.last.zero_()

    def close(self):
        pass


class CopyEach(Way):
    """A copy from page-locked memory for each array, the block table in whole rows: the flow of vLLM's first runner."""

    name = "a copy for each array"

    def __init__(self, model):
        super().__init__(model)
        given, _ = new_inputs()
        self.graph = model.capture(given)
        self.gpu = [model.table, *vars(given).values()]
        self.cpu = [torch.zeros_like(tensor, device="cpu").pin_memory() for tensor in self.gpu]
        self.table, *self.arrays = [tensor.numpy() for tensor in self.cpu]
        self.copied = torch.cuda.Event()

    def start(self, batch):
        super().start(batch)
        self.table[:] = batch.table

    def send(self, batch):
        self.copied.synchronize()  # the last copies have read the arrays
        self.table.reshape(-1)[batch.places()] = batch.ids
        for array, new in zip(self.arrays, batch.arrays):
            array[:] = new
        for gpu, cpu in zip(self.gpu, self.cpu):
            gpu.copy_(cpu, non_blocking=True)
        self.copied.record()
        return self.graph


class CopyFresh(Way):
    """Copies of three arrays from fresh page-locked memory; kernels read the rest from host memory and make the other
    arrays, launched one by one: the flow of vLLM's second runner."""

    name = "fresh page-locked memory, UVA pools"

    def __init__(self, model):
        super().__init__(model)
        self.given, _ = new_inputs()
        self.graph = model.capture(self.given)
        self.table = model.table.view(-1)
        self.pools = []
        for _ in range(2):
            host = [pinned(MOST, torch.int64), pinned(REQUESTS, torch.int32), pinned(REQUESTS, torch.int32)]
            self.pools.append(([one.numpy() for one in host], [mapped(one) for one in host]))

    def send(self, batch):
        self.turn = 1 - self.turn
        (places, lengths, tokens), (gpu_places, gpu_lengths, gpu_tokens) = self.pools[self.turn]
        given, count = self.given, len(batch.ids)
        order = torch.from_numpy(batch.order).pin_memory().to("cuda", non_blocking=True)
        given.starts.copy_(torch.from_numpy(batch.starts).pin_memory(), non_blocking=True)
        if count:
            places[:count] = batch.places()
            ids = torch.from_numpy(batch.ids).pin_memory().to("cuda", non_blocking=True)
            self.table.scatter_(0, gpu_places[:count], ids)
        lengths[:], tokens[:] = batch.lengths, batch.tokens
        torch.index_select(gpu_lengths, 0, order, out=given.lengths)
        torch.index_select(gpu_tokens, 0, order, out=given.tokens)
        torch.add((given.lengths - 1).clamp_(min=0), 0, out=given.positions)
        blocks = self.model.table.gather(1, (given.positions // BLOCK)[:, None])[:, 0]
        torch.add(given.positions % BLOCK, blocks, alpha=BLOCK, out=given.slots)
        return self.graph


@triton.jit
def unpack(pack, inputs, table, words: tl.constexpr, block: tl.constexpr):
    """The one kernel of a packed way: the small arrays go to the inputs, the new ids to their places in the table."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(inputs + at, tl.load(pack + at, mask=at < words), mask=at < words)
    new = at < tl.load(pack + words)
    place = tl.load(pack + words + 1 + 2 * at, mask=new)
    tl.store(table + place, tl.load(pack + words + 2 + 2 * at, mask=new), mask=new)


class Packed(Way):
    """All in one block: the small arrays, how many ids are new, and a place and an id for each of them."""

    new_host = staticmethod(pinned)

    def __init__(self, model):
        super().__init__(model)
        self.given, self.inputs = new_inputs()
        self.packs = []
        for _ in range(2):
            host = self.new_host(WORDS + 1 + 2 * MOST, dtype=torch.int32)
            words = host.numpy()
            self.packs.append(SimpleNamespace(host=host, block=words[:WORDS], count=words[WORDS:],
                                              places=words[WORDS + 1::2], ids=words[WORDS + 2::2]))

    def unpack(self, pack):
        most = max(WORDS, MOST)
        unpack[(triton.cdiv(most, 256),)](pack, self.inputs, self.model.table, WORDS, 256)

    def pack(self, batch):
        self.turn = 1 - self.turn
        pack, count = self.packs[self.turn], len(batch.ids)
        pack.block[:], pack.count[0] = batch.block, count
        pack.places[:count], pack.ids[:count] = batch.places(), batch.ids
        return pack


class PackedCopy(Packed):
    name = "packed, one copy of page-locked memory"

    def __init__(self, model):
        super().__init__(model)
        self.gpu = torch.zeros_like(self.packs[0].host, device="cuda")
        self.graph = model.capture(self.given, lambda: self.unpack(self.gpu))

    def send(self, batch):
        pack, end = self.pack(batch), WORDS + 1 + 2 * len(batch.ids)
        self.gpu[:end].copy_(pack.host[:end], non_blocking=True)
        return self.graph


class PackedPageable(PackedCopy):
    """The driver stages it, as it does up to 64 KiB."""

    name = "packed, one copy of pageable memory"
    new_host = staticmethod(torch.zeros)


class PackedLaunch(Packed):
    name = "packed, read by UVA: a launch"

    def __init__(self, model):
        super().__init__(model)
        self.views = [mapped(pack.host) for pack in self.packs]
        self.unpack(self.views[0])
        self.graph = model.capture(self.given)

    def send(self, batch):
        self.pack(batch)
        self.unpack(self.views[self.turn])
        return self.graph


class PackedGraph(Packed):
    name = "packed, read by UVA: in the graph"

    def __init__(self, model):
        super().__init__(model)
        views = [mapped(pack.host) for pack in self.packs]
        self.graphs = [model.capture(self.given, lambda view=view: self.unpack(view)) for view in views]

    def send(self, batch):
        self.pack(batch)
        return self.graphs[self.turn]


class LaneRows(Way):
    """Two sets of the small arrays, each one block; both have the same table, where ids are but appended."""

    name = "lane with rows"

    def __init__(self, model):
        super().__init__(model)
        sets = [new_inputs() for _ in range(2)]
        self.graphs = [model.capture(given) for given, _ in sets]
        torch.cuda.synchronize()
        self.lane = gdrapi.Lane(*([model.table, block] for _, block in sets))

    def send(self, batch):
        where = (batch.rows, batch.columns) if batch.counts is None else (batch.rows, batch.columns, batch.counts)
        return self.graphs[self.lane.write([(where, batch.ids), batch.block])]

    def close(self):
        self.lane.close()


class LaneWhole(LaneRows):
    name = "lane, the table whole"

    def send(self, batch):
        return self.graphs[self.lane.write([batch.table, batch.block])]


WAYS = (CopyEach, CopyFresh, PackedCopy, PackedPageable, PackedLaunch, PackedGraph, LaneWhole, LaneRows)
