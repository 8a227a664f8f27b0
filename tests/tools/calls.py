# SPDX-License-Identifier: MIT
"""calls.py BIN TRACE: what the tools really do: which calls they make, and how they end
when one fails.

BIN is the folder of the tools, TRACE the preload of tests/tools/trace.c. The simulated
drivers are those of the environment. It prints TAP. With names of its functions after TRACE it
runs these alone.
"""

import concurrent.futures
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from lacking import without
from tap import check, done

BIN, TRACE = sys.argv[1:3]
PAGE = 65536
WORK = tempfile.mkdtemp()


class Call:
    """One line of a trace: THREAD NAME ARGUMENT... = RESULT."""

    def __init__(self, line):
        words, _, result = line.rpartition(" = ")
        self.thread, self.name, *args = words.split(" ")
        self.args = [int(a, 0) if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", a) else a for a in args]
        self.result = int(result, 0)

    def __repr__(self):
        return f"{self.name}({', '.join(hex(a) if isinstance(a, int) else a for a in self.args)}) = {self.result:#x}"


class Calls(list):
    def of(self, *names):
        return Calls(c for c in self if c.name in names)

    def arg(self, name, n):
        """That argument of each call of that name."""
        return [c.args[n] for c in self if c.name == name]


def run(command, **env):
    """A tool's run: how it ended, and its calls."""
    tool, *args = command.split()
    fd, path = tempfile.mkstemp(dir=WORK)
    os.close(fd)
    out = subprocess.run([os.path.join(BIN, "gdrcopy_" + tool), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, stdin=subprocess.DEVNULL, timeout=120,
                         env={**os.environ, **env, "LD_PRELOAD": TRACE, "TRACE": path})
    with open(path, encoding="utf-8") as f:
        calls = Calls(Call(line.rstrip("\n")) for line in f)
    os.remove(path)
    return out, calls


def each(function, rows):
    """function of each row, several at a time; in the rows' order."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2 * os.cpu_count()) as pool:
        yield from zip(rows, pool.map(lambda row: function(*row), rows))


# Short runs of each tool, and what stands in for what it lacks.
BW = "copybw -s 256 -w 1 -r 1 --budget 1"
PERF = "apiperf -s 1 -n 1 -w 0"
PING = "pplat -t 1 -s 4 -B 1 -T 1 -C gpumem"
GDRDRV = {"TRACE_PRETEND": "gdrdrv"}
KERNELS = {"TRACE_PRETEND": "kernels"}
RUNS = {
    "copybw": (BW, {}),
    "copybw of cuMemAlloc": (BW + " -a cumemalloc", {}),
    "copybw of cuMemCreate": (BW + " -a cumemcreate", {}),
    "copybw of three threads": (BW + " --threads 3", {}),
    "apiperf": (PERF, {}),
    "apiperf of cuMemAlloc": (PERF + " -a cumemalloc", {}),
    "apiperf on gdrdrv": (PERF, GDRDRV),
    "pplat": (PING, KERNELS),
    "pplat, data by the GPU": (PING + " -m 1 -G hostmem -a cumemcreate", KERNELS),
}

# What makes a thing, and what ends it; of each, the arguments that name the thing. R is the result.
R = "R"
PAIRS = (
    (("gdr_open", R), ("gdr_close", 0)),
    (("gdr_pin_buffer_v2", 0, 4), ("gdr_unpin_buffer", 0, 1)),
    (("gdr_map_v2", 0, 1, 2, 3), ("gdr_unmap", 0, 1, 2, 3)),
    (("gdr_mem_alloc", 0, 4), ("gdr_mem_free", 0, 1)),
    (("gdr_cache_open", 3), ("gdr_cache_close", 0)),
    (("gdr_cache_get", 0, 3), ("gdr_cache_put", 0, 1)),
    (("cuDevicePrimaryCtxRetain", 1), ("cuDevicePrimaryCtxRelease_v2", 0)),
    (("cuMemAlloc_v2", 0), ("cuMemFree_v2", 0)),
    (("cuMemCreate cuMemRetainAllocationHandle", 0), ("cuMemRelease", 0)),
    (("cuMemAddressReserve", 0, 1), ("cuMemAddressFree", 0, 1)),
    (("cuMemMap", 0, 1), ("cuMemUnmap", 0, 1)),
    (("cuMemHostAlloc", 0), ("cuMemFreeHost", 0)),
    (("cuStreamCreate", 0), ("cuStreamDestroy_v2", 0)),
    (("cuModuleLoadData", 0), ("cuModuleUnload", 0)),
    (("open", R), ("close", 0)),
    (("mmap", R, 1), ("munmap", 0, 1)),
)


def key(call, where):
    return tuple(call.result if n == R else call.args[n] for n in where)


def unpaired(calls, makes, ends):
    """What is made and not ended, or ended and not made."""
    alive, wrong = [], []
    for c in calls:
        if c.name in makes[0].split() and not (c.name == "mmap" and c.args[4] == -1):
            alive.append(key(c, makes[1:]))
        elif c.name == ends[0]:
            k = key(c, ends[1:])
            if k in alive:
                alive.remove(k)
            else:
                wrong.append(c)
    return alive + wrong


def pairs():
    """Whatever is made is ended, once, by its own name."""
    for (name, (command, env)), (out, calls) in each(lambda name, row: run(row[0], **row[1]), list(RUNS.items())):
        check(out.returncode == 0 and not out.stderr, f"{name}: it runs", out.stderr)
        for makes, ends in PAIRS:
            if not calls.of(*makes[0].split()):
                continue
            if ends[0] == "close":	# descriptors that a driver gives, too
                calls = Calls(Call(f"main open {c.args[0]} = {c.args[0]:#x}") if c.name == "cuMemGetHandleForAddressRange" else c
                              for c in calls)
            left = unpaired(calls, makes, ends)
            check(not left, f"{name}: each {makes[0]} has its {ends[0]}", left)
        last = [c.name for c in calls][-3:]
        check(last == ["gdr_close", "cuCtxSetCurrent", "cuDevicePrimaryCtxRelease_v2"] and not calls[-2].args[0],
              f"{name}: the library is closed, then the context given back", last)


COPIES = "gdr_copy_to_mapping", "gdr_copy_from_mapping"


def copies(calls):
    """Of each copy by the library and by the driver: its size, its address in the buffer and in host memory."""
    gpu = calls.arg("gdr_pin_buffer_v2", 1)[0]
    va = calls.arg("gdr_map_v2", 2)[0]
    found = []
    for c in calls:
        if c.name == "gdr_copy_to_mapping":
            found.append((c.name, c.args[3], c.args[1] - va, c.args[2]))
        elif c.name == "gdr_copy_from_mapping":
            found.append((c.name, c.args[3], c.args[2] - va, c.args[1]))
        elif c.name == "cuMemcpyHtoD_v2":
            found.append((c.name, c.args[2], c.args[0] - gpu, c.args[1]))
        elif c.name == "cuMemcpyDtoH_v2":
            found.append((c.name, c.args[2], c.args[1] - gpu, c.args[0]))
    return found


def up(n, unit=PAGE):
    return (n + unit - 1) // unit * unit


def copybw():
    """Where the copies are, and of which sizes."""
    rows = [("-s 256", 256, 0, {256}), ("-s 65536 -o 64", 65536, 64, {65536 - 64}), ("-s 65537 -c 100 -o 65437", 65537, 65437, {100}),
            ("-s 300 -l", 300, 0, {1 << n for n in range(9)}), ("-s 300 -l -o 44", 300, 44, {1 << n for n in range(9)}),
            ("-s 300 -l -o 45", 300, 45, {1 << n for n in range(8)}), ("-s 70000 -l -c 7 -o 69993", 70000, 69993, {1, 2, 4}),
            ("", 131072, 0, {131072})]
    for (args, size, offset, sizes), (out, calls) in each(lambda args, *_: run(f"copybw -w 1 -r 1 {args}"), rows):
        found = copies(calls)
        said = {int(n) for n in re.findall(r"^writing test, size=(\d+) offset=%d num_iters=1 threads=1$" % offset, out.stdout, re.M)}
        check(out.returncode == 0 and said == sizes, f"copybw {args}: the sizes that it prints", out.stdout + out.stderr)
        check({n for _, n, _, _ in found} == sizes, f"copybw {args}: the sizes of the copies", found[:9])
        check({name for name, *_ in found} == {*COPIES, "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"} and
              {at for *_, at, _ in found} == {offset}, f"copybw {args}: they begin at {offset}", found[:9])
        check(calls.arg("gdr_mem_alloc", 3) == [] or calls.arg("gdr_mem_alloc", 2) == [up(size)], f"copybw {args}: the buffer", calls.of("gdr_mem_alloc"))
        check(calls.arg("gdr_pin_buffer_v2", 2) == [up(size)] == calls.arg("gdr_map_v2", 3), f"copybw {args}: all of it is pinned and mapped",
              calls.of("gdr_pin_buffer_v2", "gdr_map_v2"))
    # Which calls are limited by -w, and which by -r.
    for (args, writes, reads), (out, calls) in each(lambda args, *_: run(f"copybw -s 64 --budget 600 --json {args}"), [
            ("-w 1 -r 90", 1, 90), ("-w 90 -r 1", 90, 1), ("-w 1", 1, 10000), ("-r 1", 100000, 1)]):
        counts = {(r["op"], r["who"]): r["samples"] * r["batch"] for r in json.loads(out.stdout)["results"]}
        check(sorted(counts) == [(op, who) for op in ("read", "write") for who in ("cuMemcpy", "gdrcopy")] and
              all((n == 1) == (1 == {"write": writes, "read": reads}[op]) and n <= {"write": writes, "read": reads}[op]
                  for (op, _), n in counts.items()), f"copybw {args}: how many are timed", counts)
    # Each thread has its part; the parts are all.
    for n, (out, calls) in each(lambda n: run(f"copybw -s 1000 -w 1 -r 1 --threads {n}"), [(1,), (2,), (3,), (16,)]):
        n = n[0]
        parts = copies(calls)
        for name in COPIES:
            mine = [p[1:3] for p in parts if p[0] == name]
            whole = len(mine) // n
            check(len(mine) % n == 0 and sum(size for size, _ in mine) == 1000 * whole and
                  {i for size, at in set(mine) for i in range(at, at + size)} == set(range(1000)),
                  f"copybw --threads {n}: {name}: the parts are all of the copy", mine[:n])
        check(len(calls.of("pthread_create")) == n - 1 and all(
            sum(c.thread == "other" for c in calls.of(name)) == len(calls.of(name)) * (n - 1) // n for name in COPIES),
            f"copybw --threads {n}: {n - 1} more threads make copies")
    _, calls = run("copybw -s 64 -w 1 -r 1 --threads 3 --cpu 0")
    names = [c.name for c in calls.of("pthread_create", "sched_setaffinity")]
    check(names == ["pthread_create"] * 2 + ["sched_setaffinity"], "copybw --threads 3 --cpu 0: the CPU is the measuring thread's alone", names)


def memory():
    """-d, -a, -M, --cpu: for each tool."""
    for tool, env in ((BW, {}), (PERF, {}), (PING, KERNELS)):
        name = tool.split()[0]
        for gpu in 0, 1:
            for kind in "ext", "cumemalloc", "cumemcreate":
                out, calls = run(f"{tool} -d {gpu} -a {kind}", **env)
                check(out.returncode == 0 and f"\n# memory: {kind}\n" in out.stdout and f"\n# gpu: Simulated GPU {gpu}\n" in out.stdout,
                      f"{name} -d {gpu} -a {kind}: it says so", out.stdout + out.stderr)
                check(calls.arg("cuDeviceGet", 1) == [gpu] == calls.arg("cuDevicePrimaryCtxRetain", 1) and
                      calls.arg("cuDevicePrimaryCtxRelease_v2", 0) == [gpu], f"{name} -d {gpu} -a {kind}: the GPU")
                sizes = {"copybw": [256], "apiperf": [PAGE, PAGE], "pplat": [PAGE + 4]}[name]
                made = calls.of("gdr_mem_alloc", "cuMemAlloc_v2", "cuMemCreate")
                if kind == "ext":
                    ok = [(c.name, c.args[1], c.args[2], c.args[3]) for c in made] == [("gdr_mem_alloc", gpu, up(n), 0) for n in sizes]
                elif kind == "cumemalloc":
                    ok = [(c.name, c.args[1]) for c in made] == [("cuMemAlloc_v2", up(n) + PAGE - 1) for n in sizes]
                else:
                    # pinned memory, of a descriptor, on that GPU, which the GPU's peers may reach
                    want = [1, 1, 1, gpu, 0, 0, 0x100, 0]
                    ok = [(c.name, c.args[1], c.args[3]) for c in made] == [("cuMemCreate", up(n, 2 << 20), 0) for n in sizes]
                    ok &= all([int(w, 16) for w in c.args[2].split(",")] == want for c in made)
                    ok &= all([int(w, 16) for w in c.args[2].split(",")] == [1, gpu, 3] for c in calls.of("cuMemSetAccess"))
                    ok &= len(calls.of("cuMemSetAccess")) == len(made)
                check(ok, f"{name} -d {gpu} -a {kind}: what is allocated", made + calls.of("cuMemSetAccess"))
                check(set(calls.arg("gdr_pin_buffer_v2", 3)) == {0}, f"{name} -d {gpu} -a {kind}: the flags of a pin", calls.of("gdr_pin_buffer_v2"))
        for word, flag in ("default", 0), ("wc", 1), ("device", 3):
            out, calls = run(f"{tool} -M {word}", **env)
            check(set(calls.arg("gdr_map_v2", 4)) == {flag}, f"{name} -M {word}: each mapping", calls.of("gdr_map_v2"))
            check(out.returncode == (word == "device") and (word != "device" or name == "apiperf" or "gdr_map_v2 with this -M: " in out.stderr),
                  f"{name} -M {word}: how it ends", out.stderr)
        out, calls = run(f"{tool} --cpu 0", **env)
        check([c.args[2].split(",") for c in calls.of("sched_setaffinity")] == [["0x1", "0", "0", "0"]] and
              calls.arg("sched_setaffinity", 0) == [0] and out.returncode == 0, f"{name} --cpu 0: the CPU", calls.of("sched_setaffinity"))
        out, calls = run(tool, **env)
        check(not calls.of("sched_setaffinity"), f"{name} without --cpu: any CPU")
        for option, variable in ("--backend dmabuf", "GDRCOPY_BACKEND dmabuf 1"), ("", ""):
            out, calls = run(f"{tool} {option}", **env)
            check([" ".join(map(str, c.args)) for c in calls.of("setenv")] == ([variable] if variable else []),
                  f"{name} {option}: the library is told", calls.of("setenv"))


def apiperf():
    """How often, in which order, and of which sizes."""
    for (n, w), (out, calls) in each(lambda n, w: run(f"apiperf -s 1M -n {n} -w {w} --budget 60000 --csv"), [(1, 0), (2, 3), (7, 1), (4, 0)]):
        rows = [line.split(",") for line in out.stdout.replace('", ', "").splitlines()[1:]]
        check(out.returncode == 0 and {r[-4] for r in rows if "first" not in r} == {str(n)}, f"apiperf -n {n} -w {w}: samples", out.stdout[:2000])
        opens = 1 + n + w + 1	# the first, those that count or warm up, and one to work with
        check(len(calls.of("gdr_open")) == opens, f"apiperf -n {n} -w {w}: gdr_open", len(calls.of("gdr_open")))
        for size, more in (65536, 2), (1 << 20, 0):
            check(calls.arg("gdr_pin_buffer_v2", 2).count(size) == n + w + more, f"apiperf -n {n} -w {w}: pins of {size}")
        # 1000 in a row, one after a miss, which is timed, and one before it, which is not
        check(len(calls.of("gdr_cache_get")) == 2 * (n + w) * 1003, f"apiperf -n {n} -w {w}: gdr_cache_get", len(calls.of("gdr_cache_get")))
        check(calls.arg("gdr_cache_open", 1) == [(1 << 64) - 1] * 2, f"apiperf -n {n} -w {w}: the caches have no limit", calls.of("gdr_cache_open"))
        queries = [c for c in calls.of("cuPointerGetAttribute") if c.args[1] == 7]
        check(len(queries) == 2 * (n + w) * 1001, f"apiperf -n {n} -w {w}: queries", len(queries))
    # Three of each if the time is over; not before it is.
    out, calls = run("apiperf -s 1 -n 100000000 -w 0 --budget 1 --json")
    counts = {r["samples"] for r in json.loads(out.stdout)["results"] if r["size"]}
    check(min(counts) >= 3 and max(counts) < 100000000, "apiperf --budget 1: three of each at least", counts)
    _, calls = run("apiperf -s 1 -n 1")
    check(len(calls.of("gdr_open")) == 13, "apiperf warms up ten times if nobody says how often", len(calls.of("gdr_open")))
    # What each figure is of: its name is the call's.
    for (name, env), (out, calls) in each(lambda name, env: run("apiperf -s 1 -n 3 -w 2 --json", **env),
                                          [("dmabuf", {}), ("gdrdrv", GDRDRV)]):
        facts = json.loads(out.stdout)
        check(facts["backend"] == name, f"apiperf on {name}: the backend", facts["backend"])
        got = [(r["op"], r["who"], r["mode"], r["size"], r["threads"], r["batch"], r["samples"]) for r in facts["results"]]
        want = [(op, "gdrcopy", mode, 0, 1, 1, n) for mode, n in (("first", 1), ("again", 3)) for op in ("gdr_open", "gdr_close")]
        want += [(op, "gdrcopy", "first", 0, 1, 1, 1) for op in ("gdr_pin_buffer_v2", "gdr_map_v2", "gdr_unmap", "gdr_unpin_buffer")]
        steps = [(op, "gdrcopy") for op in (
            "gdr_pin_buffer_v2", "gdr_map_v2", "gdr_get_info", "gdr_get_callback_flag", "gdr_get_attribute",
            "gdr_copy_from_mapping, 16 x 64 B", "gdr_copy_from_mapping_v, 16 x 64 B", "gdr_copy_to_mapping, 64 x 8 B",
            "gdr_copy_to_mapping_v, 64 x 8 B", "gdr_unmap", "gdr_unpin_buffer", "gdr_cache_get, miss", "gdr_cache_get + put, hit",
            "gdr_cache_get + put, hits in a row")]
        steps += [("BUFFER_ID queries in a row", "driver"), ("gdr_cache_flush", "gdrcopy"), ("cuMemGetAddressRange", "driver"),
                  ("cuPointerGetAttribute(BUFFER_ID)", "driver")]
        if calls.of("cuPointerSetAttribute") and not calls.of("cuPointerSetAttribute")[0].result:
            steps += [("cuPointerSetAttribute(SYNC_MEMOPS)", "driver")]
        steps += {"dmabuf": [("cuMemGetHandleForAddressRange", "driver"), ("mmap", "system"), ("munmap", "system"), ("close", "system")],
                  "gdrdrv": [(op, "system") for op in ("open(/dev/gdrdrv)", "ioctl(PIN_BUFFER)", "mmap", "munmap", "ioctl(UNPIN_BUFFER)", "close")]}[name]
        want += [(op, who, "alone", PAGE, 1, 1, 3) for op, who in steps]
        check(got == want, f"apiperf on {name}: its figures", set(got) ^ set(want))
        maps = [c.args for c in calls.of("mmap") if c.args[4] != -1]
        check(len(maps) == 5 and all(m[:4] == [0, PAGE, 3, 1] and (name == "gdrdrv" or not m[5]) for m in maps),
              f"apiperf on {name}: what the system maps", maps)
        check(all(c.args[2:] == [PAGE, 1, 0] for c in calls.of("cuMemGetHandleForAddressRange")), f"apiperf on {name}: what the driver maps",
              calls.of("cuMemGetHandleForAddressRange"))
    # The pieces: how many, of which size, how far apart; those of one by one are the same.
    for call, count, size in ("gdr_copy_from_mapping", 16, 64), ("gdr_copy_to_mapping", 64, 8):
        many = calls.of(call + "_v")[-1]
        pieces = [[int(w, 0) for w in p.split(",")] for p in many.args[2:]]
        check(many.args[1] == count == len(pieces) and all(p[3] == size for p in pieces) and
              {b[1] - a[1] for a, b in zip(pieces, pieces[1:])} == {960} and len({p[2] for p in pieces}) == count,
              f"apiperf: the pieces of {call}_v", pieces)
        at = calls.index(many)
        single = [c for c in calls[:at] if c.name == call and c.args[3] == size][-count:]
        want = [(p[0], p[1], p[2]) if "to" in call else (p[0], p[2], p[1]) for p in pieces]
        check([tuple(c.args[:3]) for c in single] == want, f"apiperf: the copies of {call} are these pieces", single)


def pplat():
    """What the kernel is given, where things lie, and what the figures are of."""
    host, gpu, both = ["hostmem"], ["gpumem"], ["hostmem", "gpumem"]
    one = {"answer": gpu, "data": 4, "grid": (1, 1)}
    rows = [("-B 9 -T 9 -C gpumem", {"answer": gpu}), ("-G hostmem -C hostmem -B 1 -T 2 -D hostmem -s 8 -m 1", {"word": host, "answer": host, "data": 8, "grid": (1, 2), "at": host, "make": 1}),
            ("-t 7 -s 4 -B 1 -T 1 -C gpumem", one | {"rounds": 7}), ("-u 0 -s 4 -B 1 -T 1 -C gpumem", one | {"limit": (1 << 64) - 1}),
            ("-u 9 -s 4 -B 1 -T 1 -C gpumem -G hostmem", one | {"limit": 9 * 10**9, "word": host}),
            ("-B 2 -T 4 -s 64 -C gpumem -m 0 -G gpumem", {"data": 64, "grid": (2, 4), "answer": gpu}),
            ("-B 3 -T 1 -s 4 -m 1 -C gpumem", {"data": 4, "grid": (3, 1), "make": 1, "answer": gpu}),
            ("-B 2 -T 2 -s 400 -D gpumem -C gpumem", {"data": 400, "grid": (2, 2), "answer": gpu})]
    for (args, want), (out, calls) in each(lambda args, _: run(f"pplat -t 1 {args}", **KERNELS), rows):
        facts = dict(line[2:].split(": ", 1) for line in out.stdout.splitlines() if line.startswith("# "))
        data, make = want.get("data", 0), want.get("make", 0)
        mapped = data and want.get("at", gpu) == gpu
        word = want.get("word", gpu)
        played = [(who, answer) for answer in want.get("answer", both) for who in ("gdrcopy", "plain")
                  if not (who == "plain" and mapped) and not (who == "gdrcopy" and answer == "hostmem" and word == host and not mapped)]
        figures = [line.split() for line in out.stdout.split("\n\n")[-1].splitlines()[1:]]
        rounds = want.get("rounds", 1)
        check(out.returncode == 0 and [(f[0], f[1]) for f in figures] == played and all(f[-1] == str(rounds) for f in figures),
              f"pplat {args}: its matches", out.stdout + out.stderr)
        grid = want.get("grid", (1, 1))
        launches = calls.of("cuLaunchKernel")
        check([c.args[1:8] for c in launches] == [[grid[0], 1, 1, grid[1], 1, 1, 0]] * len(played), f"pplat {args}: blocks and threads", launches)
        start = {"gpumem": calls.arg("gdr_pin_buffer_v2", 1)[0], "hostmem": calls.arg("cuMemHostGetDevicePointer_v2", 0)[0]}
        given = [c.args[11:] for c in launches]
        limit = want.get("limit", 5 * 10**9)
        check(given == [[start[word[0]], start[answer] + 4096, rounds + 200, 0x5a5a0000, limit, start[want.get("at", gpu)[0]] + PAGE, data // 4, make]
                        for _, answer in played], f"pplat {args}: what the kernel is given", given)
        size = PAGE + data
        check(calls.arg("gdr_mem_alloc", 2) == [up(size)] and calls.of("cuMemHostAlloc")[0].args[1:] == [size, 2], f"pplat {args}: the memory",
              calls.of("gdr_mem_alloc", "cuMemHostAlloc"))
        check(calls.arg("cuStreamCreate", 1) == [1], f"pplat {args}: a stream that waits for no other", calls.of("cuStreamCreate"))
        check(facts["word"] == word[0] and facts["data"] == ("verified, every answer and every word" if data else "verified, every answer") and
              facts.get("payload") == (f"{data} bytes in {want.get('at', gpu)[0]}, written by the {'GPU' if make else 'CPU'}" if data else None) and
              facts.get("grid") == (f"{grid[0]} x {grid[1]}" if data else None), f"pplat {args}: its facts", facts)
        moved = {c.args[3] for c in calls.of(*COPIES)} - {4}
        check(moved == ({data} - {4} if mapped else set()), f"pplat {args}: the library copies the data where it is in GPU memory", moved)
    for form in "--json", "--csv":
        out, _ = run(f"pplat -t 3 -s 12 -B 1 -T 3 -C gpumem {form}", **KERNELS)
        if form == "--json":
            r = json.loads(out.stdout)["results"]
            check(len(r) == 1 and [r[0][k] for k in ("op", "who", "mode", "size", "threads", "batch", "samples")] ==
                  ["round-trip", "gdrcopy", "gpumem", 12, 1, 1, 3] and 0 < r[0]["p0_ns"] <= r[0]["p50_ns"] and "gb_per_s" not in r[0],
                  "pplat --json: its figure", r)
        else:
            check(re.search(r"\ngdrcopy_pplat,round-trip,gdrcopy,gpumem,12,1,1,3,[\d.]+,[\d.]+,\n$", out.stdout), "pplat --csv: its figure", out.stdout)


# The names in messages, where they are not the call's own less its version.
SAID = {
    "gdr_cache_put": "gdr_cache_", "cuGetErrorName": "", "sched_setaffinity": "CPU 0", "malloc": "out of memory", "calloc": "out of memory",
    "realloc": "out of memory", "aligned_alloc": "out of memory", "pthread_create": "thread", "open": "open(/dev/gdrdrv)",
}
# Without these the tools go on: what is left out, or said instead, is in others().
WITHOUT = {"fopen", "cuPointerSetAttribute", "cuModuleLoadData"}


def message(name, text):
    """Whether a line names the call that failed."""
    if name in COPIES and re.search(r"(write|read) of \d+ bytes by gdrcopy failed: 5 \(Input/output error\)", text):
        return True
    if name in ("cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2") and re.search(r"(write|read) of \d+ bytes by cuMemcpy failed: 5 \(", text):
        return True
    if name == "mmap" and "bytes of host memory: Input/output error" in text:
        return True
    if name == "ioctl" and re.search(r"ioctl\((PIN|UNPIN)_BUFFER\): Input/output error", text):
        return True
    if name == "gdr_open" and "gdr_open found no way to the GPU's memory" in text:
        return True
    said = SAID.get(name, re.sub(r"_v\d$", "", name))
    if "alloc" in name and "out of memory" in said:
        return said in text
    result = ("Input/output error" if name.startswith("gdr_") or name in ("open", "mmap", "munmap", "close", "ioctl", "setenv", "pthread_create",
                                                                           "sched_setaffinity") else "(5)")
    return said in text and result in text


def failing(name, command, env, call, k):
    """A run whose k-th call of that name fails, or an earlier one, if this run has made fewer."""
    out, calls = run(command, **env, TRACE_FAIL=f"{call}@{k}=5")
    made = len(calls.of(call))
    return failing(name, command, env, call, made // 2) if out.returncode == 0 and 1 < made < k else (out, calls)


def failures():
    """Each call of each run fails in turn: the status is 1, and one line names it."""
    plans = []
    for name, (command, env) in {**RUNS, "copybw with all options": (BW + " --backend dmabuf --read-threads 1 --write-threads 1 --cpu 0", {})}.items():
        _, calls = run(command, **env)
        counts = {}
        for c in calls:
            counts[c.name] = counts.get(c.name, 0) + 1
        for call, n in counts.items():
            if call in WITHOUT or call == "cuDeviceGetAttribute" and "pplat" in name:
                continue
            # Copies that are timed vary in number.
            which = range(1, n + 1) if n <= 6 else sorted({1, 2, 3, 4, n // 2})
            plans += [(name, command, env, call, k) for k in which]
    plans.sort(key=lambda p: p[0] != "copybw")
    seen = set()
    for (name, command, env, call, k), (out, _) in each(failing, plans):
        lines = out.stderr.splitlines()
        check(out.returncode == 1 and not out.stdout and len(lines) == 1 and message(call, lines[0]), f"{name}: {call} {k} fails",
              f"status {out.returncode}\n{out.stdout}{out.stderr}")
        seen.add(call)
    check({"gdr_open", "gdr_cache_close", "cuMemSetAccess", "ioctl", "cuStreamSynchronize", "setenv"} <= seen,
          "each kind of call failed once", sorted(seen))


# The copies outside the times, by what they are compared with: in order, the last from the end.
LOOKED_AT = {
    "copybw": {"gdr_copy_to_mapping": (1, -1), "gdr_copy_from_mapping": (1, -1), "cuMemcpyHtoD_v2": (2, 4, 5, -4, -2, -1),
               "cuMemcpyDtoH_v2": (1, 2, 3, -3, -2, -1)},
    "copybw of three threads": {call: (1, 2, 3, -3, -2, -1) for call in COPIES},
    "apiperf": {"cuMemcpyDtoH_v2": (1, 4), "gdr_copy_to_mapping": (1, 2, 3, 33, 65, -1),
                "gdr_copy_from_mapping": (1, 2, 8, 16)},
    "pplat": {"cuMemcpyDtoH_v2": (1,)},
}


def bad_copies():
    """Copies outside the times: a wrong last byte, or none that moved, is noticed."""
    plans = []
    for name, table in LOOKED_AT.items():
        command, env = RUNS[name]
        _, calls = run(command, **env)
        for call, which in table.items():
            n = len(calls.of(call))
            plans += [(name, command, env, call, k if k > 0 else n + 1 + k, how) for how in ("flip", "skip") for k in which]
    # The last byte of these is between two pieces.
    plans += [("apiperf", *RUNS["apiperf"], call, k, "skip") for call, k in (
        ("cuMemcpyHtoD_v2", 1), ("cuMemcpyHtoD_v2", 2), ("cuMemcpyDtoH_v2", 2), ("cuMemcpyDtoH_v2", 3))]
    for (name, _, _, call, k, how), (out, _) in each(lambda name, command, env, call, k, how: run(command, **env, TRACE_FAIL=f"{call}@{k}={how}"), plans):
        lines = out.stderr.splitlines()
        check(out.returncode == 1 and not out.stdout and len(lines) == 1 and
              re.search("byte \\d+ is 0x|has wrong bytes|is not in GPU memory|the last word is", lines[0]),
              f"{name}: {call} {k}, {how}: it is noticed", f"status {out.returncode}\n{out.stderr}")


# Calls that every driver of a GPU has: without one, the machine is none for these tools.
NEEDED = ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
          "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxSynchronize",
          "cuMemAlloc_v2", "cuMemFree_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemsetD8_v2", "cuPointerGetAttribute",
          "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemRelease", "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap",
          "cuMemUnmap", "cuMemSetAccess", "cuGetErrorName")
KERNEL = ("cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction", "cuLaunchKernel", "cuOccupancyMaxActiveBlocksPerMultiprocessor",
          "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostGetDevicePointer_v2", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize")
OTHERS = ("cuMemHostRegister_v2", "cuMemcpyHtoDAsync_v2", "cuPointerSetAttribute", "cuMemGetAddressRange_v2", "cuMemGetHandleForAddressRange")


def lacking():
    """A driver that has no such call."""
    plans = [(BW, {}, name, 77, f"NVIDIA's driver is needed: libcuda.so.1 has no {name}") for name in NEEDED]
    plans += [(PING, KERNELS, name, 77, f"needs a real GPU: this libcuda.so.1 has no {name}") for name in KERNEL]
    for (command, _, name, status, text), (out, _) in each(lambda command, env, name, *_: run(command, **env, TRACE_LACKS=name), plans):
        check(out.returncode == status and not out.stdout and out.stderr == f"gdrcopy_{command.split()[0]}: {text}\n",
              f"{command.split()[0]} without {name}", f"status {out.returncode}\n{out.stderr}")
    for (name,), (out, _) in each(lambda name: run(PING, **KERNELS, TRACE_LACKS=name), [(name,) for name in OTHERS]):
        check(out.returncode == 0 and out.stdout, f"pplat needs no {name}", f"status {out.returncode}\n{out.stderr}")

    def ops(**env):
        out, _ = run(PERF + " --csv", **env)
        return out.returncode, [line.split(",")[1] for line in out.stdout.splitlines()[1:]]

    _, whole = ops()
    for name, gone in (("cuMemGetHandleForAddressRange", ["cuMemGetHandleForAddressRange", "mmap", "munmap", "close"]),
                       ("cuMemGetAddressRange_v2", ["cuMemGetAddressRange"]), ("cuPointerSetAttribute", ["cuPointerSetAttribute(SYNC_MEMOPS)"])):
        got = ops(TRACE_LACKS=name)
        check(got == (0, [op for op in whole if op not in gone]), f"apiperf without {name} goes on", got)
    # Memory of cuMemCreate cannot have SYNC_MEMOPS, that of cuMemAlloc can.
    out, calls = run(PERF + " -a cumemalloc --csv")
    check(len(calls.of("cuPointerSetAttribute")) == 2 and "SYNC_MEMOPS" in out.stdout and
          calls.of("cuPointerSetAttribute")[1].args[:2] == ["0x1", 6] or calls.arg("cuPointerSetAttribute", 1) == [6, 6],
          "apiperf times SYNC_MEMOPS where it is", calls.of("cuPointerSetAttribute"))
    out, calls = run(PERF + " -a cumemalloc --csv", TRACE_FAIL="cuPointerSetAttribute@1=801")
    check(out.returncode == 0 and len(calls.of("cuPointerSetAttribute")) == 1 and "SYNC_MEMOPS" not in out.stdout, "and not where it is not", out.stderr)
    out, _ = run(PERF + " -a cumemalloc", TRACE_FAIL="cuPointerSetAttribute@2=5")
    check(out.returncode == 1 and "cuPointerSetAttribute(SYNC_MEMOPS) gave " in out.stderr, "it fails", out.stderr)


def answers():
    """What a tool makes of single answers."""
    plans = [
        (BW, {}, "cuInit@1=100", 77, "gdrcopy_copybw: NVIDIA's driver finds no GPU\n"),
        (BW, {}, "cuInit@1=999", 1, "gdrcopy_copybw: cuInit gave CUDA_ERROR_UNKNOWN (999)\n"),
        (BW, {}, "cuInit@1=12345", 1, "gdrcopy_copybw: cuInit gave an unknown result (12345)\n"),
        (BW, {}, "cuDeviceGetCount@1=empty", 77, "gdrcopy_copybw: CUDA sees no GPU\n"),
        (BW + " -a cumemalloc", {}, "gdr_pin_buffer_v2@1=95", 1, "gdrcopy_copybw: this backend cannot pin memory of 'cumemalloc': "
         "choose -a ext or -a cumemcreate\n"),
        (BW, {}, "gdr_map_v2@1=22", 1, "gdr_map_v2: Invalid argument; GDRCOPY_ENABLE_LOGGING=1 tells more\n"),
        (BW + " -M wc", {}, "gdr_map_v2@1=22", 1, "gdrcopy_copybw: gdr_map_v2 with this -M: Invalid argument; the backend may not have that type "
         "of mapping\n"),
        (PING, KERNELS, "cuOccupancyMaxActiveBlocksPerMultiprocessor@1=empty", 2,
         "gdrcopy_pplat: -B 1: this GPU runs at most 0 blocks of 1 threads at a time; see 'gdrcopy_pplat --help'\n"),
        ("pplat -s 4 -B 4 -T 1024 -C gpumem -t 1 --budget 5", KERNELS, "cuInit@2=5", 2, "gdrcopy_pplat: unknown option, or one that takes no value: "
         "--budget; see 'gdrcopy_pplat --help'\n"),
        ("pplat -s 4 -B 5 -T 1024", KERNELS, "cuInit@2=5", 2, "gdrcopy_pplat: -B 5: this GPU runs at most 4 blocks of 1024 threads at a time; "
         "see 'gdrcopy_pplat --help'\n"),
        ("pplat -s 4", KERNELS, "cuInit@2=5", 2, "gdrcopy_pplat: -B 8: this GPU runs at most 4 blocks of 1024 threads at a time; "
         "see 'gdrcopy_pplat --help'\n"),
    ]
    for (command, _, fail, status, text), (out, _) in each(lambda command, env, fail, *_: run(command, **env, TRACE_FAIL=fail), plans):
        check(out.returncode == status and out.stderr == text and (not status) == bool(out.stdout), f"{command}, {fail}: {status}, {text.strip()}",
              f"status {out.returncode}\n{out.stderr}")
    # A GPU that does not tell its clock: the kernel waits by one of 2 GHz.
    for how in "5", "empty":
        out, calls = run(PING, **KERNELS, TRACE_FAIL=f"cuDeviceGetAttribute@2={how}")
        check(out.returncode == 0 and calls.arg("cuLaunchKernel", 15) == [5 * 2 * 10**9], f"pplat: no clock, {how}", calls.of("cuLaunchKernel"))
    out, calls = run(PING, **KERNELS, TRACE_FAIL="cuModuleLoadData@1=218")
    check(out.returncode == 0 and len(calls.of("cuModuleLoadData")) == 2, "pplat: a driver without the first target", out.stderr)
    out, calls = run("copybw -s 64 -w 1 -r 1 -a cumemcreate", TRACE_FAIL="cuDeviceGetAttribute@1=empty")
    check(out.returncode == 0 and calls.of("cuMemCreate")[0].args[2].split(",")[6] == "0", "memory of cuMemCreate where no peer reaches it",
          calls.of("cuMemCreate"))


def machine():
    """The facts that are of files and of the clock."""
    folder = os.path.join(WORK, "root")
    for files, cpu, driver in (
            ({"proc/cpuinfo": "processor\t: 0\ncpu family\t: 6\nmodel name\t: A CPU: 2 GHz\nmodel name\t: Another\n"}, "A CPU: 2 GHz", None),
            ({"proc/cpuinfo": "processor\t: 0\ncpu\t\t: POWER9, altivec\n", "sys/module/nvidia/version": "580.65.06\n"}, "POWER9, altivec", "580.65.06"),
            ({"proc/cpuinfo": "no colon\nfamily\t: 8\n", "sys/module/nvidia/version": ""}, "unknown CPU", None),
            ({"sys/module/nvidia/version": "535.1"}, "unknown CPU", "535.1")):
        shutil.rmtree(folder, ignore_errors=True)
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
            with open(os.path.join(folder, path), "w", encoding="utf-8") as f:
                f.write(text)
        os.makedirs(folder, exist_ok=True)
        before = time.time()
        out, _ = run(BW + " --json", TRACE_PRETEND=folder, TZ="Asia/Tokyo")
        facts = json.loads(out.stdout)
        check(facts["cpu"] == f"{cpu}, {os.sysconf('SC_NPROCESSORS_ONLN')} online" and facts.get("driver") == driver,
              f"the CPU is {cpu}, the driver {driver}", [facts["cpu"], facts.get("driver")])
        minutes = {time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(t)) for t in range(int(before), int(time.time()) + 1)}
        check(facts["date"] in minutes, "the date is that of the run, in UTC", [facts["date"], minutes])


def other_library():
    """A libgdrapi that lacks extensions, as NVIDIA's does."""
    def lacks(names, command, **env):
        path = without(names.split(), os.path.join(BIN, "..", "libgdrapi.so.2"), tempfile.mkdtemp(dir=WORK))
        tool, *args = command.split()
        return subprocess.run([os.path.join(BIN, "gdrcopy_" + tool), *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120,
                              env={**os.environ, "LD_LIBRARY_PATH": path, **env})

    memory = "this libgdrapi has no gdr_mem_alloc: choose -a cumemalloc or -a cumemcreate; see 'gdrcopy_copybw --help'\n"
    for name in "gdr_mem_alloc", "gdr_mem_get_device_ptr", "gdr_mem_free":
        out = lacks(name, BW)
        check(out.returncode == 2 and out.stderr == "gdrcopy_copybw: " + memory and not out.stdout, f"copybw without {name}", out.stdout + out.stderr)
        out = lacks(name, BW + " -a cumemcreate")
        check(out.returncode == 0 and "\n# memory: cumemcreate\n" in out.stdout, f"copybw -a cumemcreate without {name}", out.stdout + out.stderr)
    out = lacks("gdr_ext_version", "copybw --version")
    check(out.returncode == 0 and out.stdout == "gdrcopy_copybw with libgdrapi 2.6 of another maker\n", "copybw --version without gdr_ext_version", out.stdout)
    facts = json.loads(lacks("gdr_get_backend gdr_ext_version", BW + " --json").stdout)
    check(facts["backend"] == "dmabuf" and "build" not in facts and facts["libgdrapi"] == "2.6", "copybw without a name of the backend", facts)

    def ops(names):
        out = lacks(names, PERF + " --csv")
        return [row["op"] for row in csv.DictReader(out.stdout.splitlines())] or out.stderr

    every = ops("")
    for names, word in (("gdr_copy_to_mapping_v", "to_mapping_v"), ("gdr_copy_from_mapping_v", "from_mapping_v"), ("gdr_cache_open", "cache|in a row")):
        got = ops(names)
        check(got == [op for op in every if not re.search(word, op)] and len(got) < len(every), f"apiperf without {names} goes on", got)
    rows = lacks("gdr_copy_to_mapping_v", "copylat --mode many --budget 1 --csv").stdout
    check(",gdrcopy," in rows and ",gdrcopy_v," not in rows, "copylat --mode many without gdr_copy_to_mapping_v", rows[:2000])


TESTS = pairs, copybw, memory, apiperf, pplat, failures, bad_copies, lacking, answers, machine, other_library
try:
    for test in TESTS:
        if not sys.argv[3:] or test.__name__ in sys.argv[3:]:
            test()
finally:
    shutil.rmtree(WORK)
done()
