# SPDX-License-Identifier: MIT
"""What an inference server's scheduler sends to the GPU before each step, in several ways, and the tokens back.

    LD_LIBRARY_PATH=build PYTHONPATH=python python3 examples/scheduler/scheduler.py --json scheduler.json

256 requests, a block table of [256, 2048]. A step's arrays go to the GPU, a captured graph makes a token for each
request of all that was sent, and each token is compared. Asynchronous: a step is prepared and launched while the one
before runs (1 ms); its time is the period. Synchronous: one after the other (150 us). The ways take turns.
"""
import argparse
import gc
import json
import platform
import statistics
import sys
import time

try:
    import numpy as np
    import torch
except ImportError:
    sys.exit("scheduler.py needs PyTorch and NumPy")

from batch import COLUMNS, REQUESTS, Batch
from loads import Stalls, loads
from model import Model, Tokens
from ways import WAYS, CopyFresh, LaneRows, PackedGraph, PackedLaunch, PackedPageable

import gdrapi

TURNS = 5
WARM_UP = 5  # steps of a turn that do not count
GRAPHS = {"asynchronous": 1000, "synchronous": 150}  # us of a step's kernels
LONG = (LaneRows, PackedPageable, PackedLaunch, PackedGraph)
PERCENTILES = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))


class Cell:
    """The times of one way beside one load, in us."""

    def __init__(self, mode, load, way, tokens, steps):
        self.mode, self.load, self.way, self.tokens, self.steps = mode, load, way, tokens, steps
        self.send, self.step = [], []

    def turn(self, seed, load, seconds):
        """Some of the steps: as many as are asked for, or as the seconds allow."""
        batch, clock, flying = Batch(seed), time.perf_counter_ns, []
        ahead = self.mode == "asynchronous"
        self.way.start(batch)
        torch.cuda.synchronize()
        number, last = 0, clock()
        least, end = WARM_UP + max(1, self.steps // TURNS), last + (0 if self.steps else seconds * 1e9)
        while number <= least or clock() < end:
            expected = batch.step()
            load.keep_busy()
            begin = clock()
            graph = self.way.send(batch)
            sent = clock()
            graph.replay()
            self.tokens.launch(number % 2)
            flying.append((number, expected))
            if not ahead:
                last = begin
            if len(flying) > ahead:
                self.check(*flying.pop(0))
                now = clock()
                if number >= WARM_UP:
                    self.send.append((sent - begin) / 1e3)
                    self.step.append((now - last) / 1e3)
                last = now
            number += 1
        for step in flying:
            self.check(*step)
        torch.cuda.synchronize()

    def check(self, number, expected):
        if not np.array_equal(self.tokens.wait(number % 2), expected):
            sys.exit("%s, %s, beside %s: step %d has other tokens" % (self.way.name, self.mode, self.load, number))

    def row(self):
        return {"mode": self.mode, "way": self.way.name, "tokens": self.tokens.way, "beside": self.load,
                "steps": len(self.step), "send_us": percentiles(self.send), "step_us": percentiles(self.step)}


def percentiles(times):
    ordered = sorted(times)
    return {name: round(ordered[min(int(len(ordered) * part), len(ordered) - 1)], 1) for name, part in PERCENTILES}


def measure(mode, beside, options):
    """Each way, beside each load. The ways take turns."""
    model, rows = Model(GRAPHS[mode]), []
    ways = [way(model) for way in WAYS]
    mapped, copied = Tokens(model, "mapped"), Tokens(model, "copy")
    pairs = [(way, mapped) for way in ways]
    if mode == "asynchronous":
        pairs += [(way, copied) for way in ways if type(way) in (CopyFresh, PackedGraph, LaneRows)]
    Cell(mode, "quiet", *pairs[0], 0).turn(0, beside["quiet"], 2)  # the GPU's clocks settle
    for name, load in beside.items():
        cells = []
        for way, tokens in pairs:
            is_long = mode == "asynchronous" and name in ("quiet", "both") and tokens is mapped and type(way) in LONG
            cells.append(Cell(mode, name, way, tokens, options.steps if is_long else 0))
        for turn in range(TURNS):
            for cell in cells[turn:] + cells[:turn]:
                cell.turn(turn, load, options.seconds / TURNS)
        rows += [cell.row() for cell in cells]
        print("%s, beside %s: measured" % (mode, name), file=sys.stderr, flush=True)
    for way in ways:
        way.close()
    return rows


def scatter_times():
    """CPU time of new ids at any places of a block table, in us, by how many they are."""
    random, table = np.random.default_rng(0), torch.zeros(REQUESTS, COLUMNS, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    found = {}
    with gdrapi.Lane([table]) as lane:
        rows = lane.rows(table)
        for count in (1, 16, 64):
            times = []
            for _ in range(2000):
                r, c = random.integers(REQUESTS, size=count), random.integers(COLUMNS, size=count)
                ids = random.integers(1 << 20, size=count, dtype=np.int32)
                begin = time.perf_counter_ns()
                rows[r, c] = ids
                times.append((time.perf_counter_ns() - begin) / 1e3)
            found[count] = statistics.median(times)
    return found


def numbers(figures):
    return " ".join("%.0f" % value if value >= 10 else "%.1f" % value for value in figures.values())


def table(rows, mode):
    """A line for each way: P50, P99, P99.9 in us."""
    rows = [row for row in rows if row["mode"] == mode]
    beside = list(dict.fromkeys(row["beside"] for row in rows))
    lines = ["| %s | tokens | send | %s |" % (mode, " | ".join(beside)), "| --- " * (3 + len(beside)) + "|"]
    for way in dict.fromkeys((row["way"], row["tokens"]) for row in rows):
        these = [row for row in rows if (row["way"], row["tokens"]) == way]
        cells = [*way, numbers(these[0]["send_us"]), *(numbers(row["step_us"]) for row in these)]
        lines.append("| %s |" % " | ".join(cells))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20000,
                        help="of a lane with rows and its rivals, beside nothing and both")
    parser.add_argument("--seconds", type=float, default=3, help="for each other way and load")
    parser.add_argument("--json", metavar="FILE", help="where the figures go, too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("scheduler.py needs a GPU")
    gc.freeze()
    gc.disable()  # its pauses are no way's
    beside = loads()
    with gdrapi.open() as gdr:
        backend = gdr.backend
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version(),
             "backend": backend, "utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
             "first_bytes_that_stall": Stalls(beside).find(), "scatter_us": scatter_times()}
    print(json.dumps(about), flush=True)
    rows = [row for mode in GRAPHS for row in measure(mode, beside, options)]
    for mode in GRAPHS:
        print("\n" + table(rows, mode))
    print("\n%d steps, each token right" % sum(row["steps"] for row in rows))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**about, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    try:
        main()
    except gdrapi.LaneError as error:
        sys.exit("no lane here: %s" % error)
