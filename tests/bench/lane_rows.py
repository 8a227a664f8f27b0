# SPDX-License-Identifier: MIT
"""The CPU time of a lane's rows, in microseconds: 64 new block numbers in a [256, 2048] table, each way to write them.

    LD_LIBRARY_PATH=build PYTHONPATH=python python3 tests/bench/lane_rows.py

Each line is the median of five turns' P50 and P99, of 4,000 calls each. The GPU's table is compared after each turn.
"""
import ctypes
import platform
import sys
import time

import numpy
import torch

import gdrapi

SHAPE, NEW, CALLS, TURNS = (256, 2048), 64, 4000, 5


def main():
    random = numpy.random.default_rng(1)
    table = torch.zeros(SHAPE, dtype=torch.int32, device="cuda")
    lengths, positions = (torch.zeros(SHAPE[0], dtype=torch.int32, device="cuda") for _ in range(2))
    torch.cuda.synchronize()
    lane = gdrapi.Lane([table, lengths, positions])
    rows, host = lane.rows(table), numpy.zeros(SHAPE, numpy.int32)
    r, c, n = random.permutation(SHAPE[0])[:NEW], random.integers(0, SHAPE[1], NEW), numpy.ones(NEW, numpy.int64)
    ids = random.integers(1, 1 << 30, NEW).astype(numpy.int32)
    lists = r.tolist(), c.tolist(), ids.tolist()
    whole = [numpy.ones(SHAPE[0], numpy.int32) for _ in range(2)]
    rows[r, c] = ids
    call = rows._pool[0]
    start, write = call.parts.starts[0], call.writes[0]

    def element_wise():
        rows[r, c] = ids

    def runs():
        rows[r, c, n] = ids

    def of_lists():
        rows[lists[0], lists[1]] = lists[2]

    def beside_whole():
        lane.write([((r, c), ids), *whole])

    def whole_only():
        lane.write([None, *whole])

    def whole_table():
        lane.write([host, None, None])

    def c_alone():
        write(start, NEW)

    def c_of_nothing():
        write(start, ctypes.c_size_t(0))

    print("gdrapi %d.%d, Python %s, NumPy %s, %s" % (*gdrapi.version(), platform.python_version(), numpy.__version__, torch.cuda.get_device_name()))
    ways = (("rows[r, c] = ids", element_wise), ("rows[r, c, n] = ids", runs), ("rows[r, c] = ids, all lists", of_lists),
            ("write([((r, c), ids), a, b])", beside_whole), ("write([None, a, b])", whole_only),
            ("write([whole table, None, None])", whole_table), ("gdr_copy_to_mapping_v of the 64", c_alone),
            ("gdr_copy_to_mapping_v of none", c_of_nothing))
    host[r, c] = ids
    turns = {name: [] for name, _ in ways}
    for name, way in ways * TURNS:
        times = []
        for _ in range(CALLS):
            begin = time.perf_counter_ns()
            way()
            times.append(time.perf_counter_ns() - begin)
        times.sort()
        turns[name].append((times[CALLS // 2] / 1e3, times[CALLS * 99 // 100] / 1e3))
        if not (table.cpu().numpy() == host).all():
            sys.exit("the table differs after " + name)
    for name, said in turns.items():
        print("%-34s %7.2f %7.2f" % (name, *(sorted(one)[TURNS // 2] for one in zip(*said))))


if __name__ == "__main__":
    main()
