# SPDX-License-Identifier: MIT
"""output.py BIN SPOIL: what the tools print, and whether they notice a bad copy.

BIN is the folder of the tools, SPOIL the preload of tests/tools/spoil.c. The simulated
drivers are those of the environment. It prints TAP.
"""

import csv
import io
import json
import os
import re
import subprocess
import sys

from tap import check, done

BIN, SPOIL = sys.argv[1:]

# A short run of each benchmark.
RUNS = {
    "copybw": ["-s", "4K", "--budget", "8"],
    "copybw of two threads": ["-s", "4K", "--budget", "8", "--threads", "2"],
    "copylat": ["-s", "16", "--budget", "8"],
    "copylat, cold": ["-s", "4", "--budget", "8", "--cold"],
    "copylat, used": ["-s", "4", "--mode", "used", "--budget", "8"],
    "copylat, many": ["--mode", "many", "--budget", "8"],
    "copylat, callers": ["--mode", "callers", "--budget", "8"],
    "copylat, pause": ["-s", "64", "--mode", "pause", "--budget", "8"],
    "apiperf": ["-s", "64K", "-n", "5"],
}


def cpu():
    """The CPU's name, and how many there are."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        names = [line.split(":", 1)[1].strip() for line in f if re.match("(model name|cpu)\\s*:", line)]
    return f"{names[0] if names else 'unknown CPU'}, {os.sysconf('SC_NPROCESSORS_ONLN')} online"


# What each benchmark says on the simulated GPU.
FACTS = {"gpu": "Simulated GPU 0", "cuda_driver": "13.3", "libgdrapi": "2.6", "memory": "ext", "backend": "dmabuf",
         "mapping": "Write Combining", "cpu": cpu(), "kernel": " ".join((os.uname()[0], os.uname()[2], os.uname()[4]))}


def run(tool, *args, stdout=subprocess.PIPE, **env):
    program = os.path.join(BIN, "gdrcopy_" + tool.split()[0].rstrip(","))
    return subprocess.run([program, *args], stdout=stdout, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, env={**os.environ, **env}, timeout=120)


def spoilt(tool, *args, spoil):
    return run(tool, *args, LD_PRELOAD=SPOIL, SPOIL=spoil)


def pieces(row):
    """How many copies of its size one operation makes: "16 reads" makes 16."""
    m = re.match(r"\d+", row["op"])
    return int(m[0]) if m else 1


def forms():
    """JSON and CSV: the fields, their order and their units."""
    build = run("copybw", "--version").stdout.partition(" with ")[2].strip()
    for name, args in RUNS.items():
        out = run(name, *args, "--json")
        try:
            result = json.loads(out.stdout)
        except ValueError as e:
            check(False, f"{name}: --json is JSON", f"{e}\n{out.stderr}")
            continue
        check(out.returncode == 0 and not out.stderr, f"{name}: --json is JSON", out.stderr)
        check(result["tool"] == "gdrcopy_" + name.split()[0].rstrip(","), f"{name}: it names itself")
        check(result["data"].startswith("verified"), f"{name}: it says what of the data was verified")
        check(result["build"] == build, f"{name}: it names the library's build", result.get("build"))
        said = {key: result.get(key) for key in FACTS}
        check(said == FACTS, f"{name}: its facts are this machine's", said)
        check(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", result["date"]), f"{name}: its date", result["date"])
        rows = result["results"]
        check(len(rows) > 0, f"{name}: there are figures")
        check(all(0 <= r["p0_ns"] <= r["p50_ns"] <= r.get("p99_ns", r["p50_ns"]) for r in rows),
              f"{name}: P0 is at most P50, P50 at most P99", rows)
        check(all(r["samples"] >= 1 and r["batch"] >= 1 and r["threads"] >= 1 for r in rows),
              f"{name}: samples, batch and threads are counted", rows)
        moved = [r for r in rows if "gb_per_s" in r and r["p50_ns"] > 0]
        # p50_ns has two digits after the point, gb_per_s four.
        check(all(abs(r["gb_per_s"] - pieces(r) * r["size"] / r["p50_ns"]) <= 0.0002 + 0.01 * r["gb_per_s"] / r["p50_ns"] * 2
                  for r in moved), f"{name}: a bandwidth is the bytes over P50", moved)

        out = run(name, *args, "--csv")
        table = list(csv.reader(io.StringIO(out.stdout), strict=True))
        check(out.returncode == 0 and table[0] == ["tool", "op", "who", "mode", "size", "threads", "batch", "samples",
                                                   "p0_ns", "p50_ns", "gb_per_s"], f"{name}: the header of --csv", table[:1])
        check(all(len(r) == len(table[0]) for r in table), f"{name}: each line of --csv has as many fields", out.stdout)
        lines = [dict(zip(table[0], r)) for r in table[1:]]
        key = ("op", "who", "mode", "size", "threads")
        check(sorted(tuple(str(r[k]) for k in key) for r in rows) == sorted(tuple(r[k] for k in key) for r in lines),
              f"{name}: --csv has the figures of --json")
        check(all(float(r["p0_ns"]) <= float(r["p50_ns"]) for r in lines), f"{name}: in --csv, too, P0 is at most P50")


def one_sample():
    """-r 1 -w 1 and -n 1 take one."""
    rows = json.loads(run("copylat", "-s", "64", "-r", "1", "-w", "1", "--json").stdout)["results"]
    check(all(r["samples"] * r["batch"] == 1 for r in rows), "copylat -r 1 -w 1 takes one sample of one copy", rows)
    out = run("copybw", "-s", "4096", "-r", "1", "-w", "1").stdout
    check(out.count("num_iters=1 ") == 2, "copybw -r 1 -w 1 takes one sample", out)
    rows = json.loads(run("apiperf", "-s", "64K", "-n", "1", "--json").stdout)["results"]
    check(all(r["samples"] == 1 for r in rows), "apiperf -n 1 takes one sample", rows)


def variables():
    """The options that set the library's variables, each its own."""
    for args in (["--backend", "dmabuf"], ["--read-threads", "3"], ["--write-threads", "2"],
                 ["--backend", "dmabuf", "--read-threads", "64", "--write-threads", "1"], []):
        out = run("copybw", *RUNS["copybw"], *args, LD_PRELOAD=SPOIL, SPOIL="open:tell:1", GDRCOPY_LOG_LEVEL="5")
        want = {"GDRCOPY_LOG_LEVEL=5", *(f"GDRCOPY_{name[2:].upper().replace('-', '_')}={value}" for name, value in zip(args[::2], args[1::2]))}
        check(out.returncode == 0 and set(out.stderr.splitlines()) == want, f"copybw {' '.join(args)}: what the library is told", out.stderr)


def plans():
    """Which copies are timed, of which sizes: at a limit, and past it."""
    def sizes_of(tool, *args):
        """The sizes of each op, who and mode."""
        found = {}
        for r in json.loads(run(tool, *args, "--json").stdout)["results"]:
            found.setdefault((r["op"], r["who"], r["mode"]), []).append(r["size"])
        return found

    small = [1, 2, 3, 4, 7, 8, 16, 32, 48, 64, 96, 128, 192, 256] + [1 << n for n in range(9, 17)]
    small = sorted(set(small))
    for most in 65536, 131072:
        found = sizes_of("copylat", "-s", str(most), "-w", "1", "-r", "1")
        both = [n for n in small + [131072] if n <= most]
        for key, want in ((("write", "gdrcopy", "alone"), small),
                          (("write", "gdrcopy", "back-to-back"), both), (("read", "gdrcopy", "back-to-back"), both),
                          (("write", "cuMemcpy", "back-to-back"), both), (("read", "cuMemcpy", "back-to-back"), both),
                          (("write", "memcpy", "back-to-back"), both), (("read", "memcpy", "back-to-back"), small)):
            check(found.get(key) == want, f"copylat -s {most}: the sizes of {' '.join(key)}", found.get(key))
        out = run("copylat", "-s", str(most), "-w", "1", "-r", "1").stdout
        for title, last in (("Writes alone, P50", 65536), ("Writes back to back, P50", most), ("Reads, P50", most)):
            table = out.split("\n" + title + "\n\n")[1].split("\n\n")[0].splitlines()
            check(table[-1].split()[0] == str(last), f"copylat -s {most}: the last line of {title}", table[-1])
    for most, want in ((1, [65536]), (65536, [65536]), ((1 << 20) - 1, [65536]), (1 << 20, [65536, 1 << 20]),
                       ((16 << 20) - 1, [65536, 1 << 20]), (16 << 20, [65536, 1 << 20, 16 << 20])):
        found = sizes_of("apiperf", "-s", str(most), "-n", "1", "-w", "0")
        check(sorted({n for sizes in found.values() for n in sizes} - {0}) == want, f"apiperf -s {most}: the sizes", found)


def offsets():
    """Each mode of copylat works past an offset. The loops need a line's begin."""
    for mode, args in (("each", ["-s", "64"]), ("used", ["-s", "64"]), ("many", []), ("pause", ["-s", "64"]), ("callers", [])):
        for offset, loops in ((1, False), (32, False), (64, True), (65537, False), (65600, True)):
            out = run("copylat", "--mode", mode, *args, "--budget", "1", "-o", str(offset), "--json")
            who = {r["who"] for r in json.loads(out.stdout)["results"]} if not out.returncode else set()
            others = {w for w in who if not w.startswith(("gdrcopy", "cuMemcpy", "plain, 1 fence", "movdiri"))}
            check("gdrcopy" in who and bool(others) == (loops and mode != "pause"), f"copylat --mode {mode} -o {offset}: who copies",
                  f"{sorted(who)} {out.stderr}")


def bad_copies():
    """Each copy that is wrong or refused: status 1, and a line that says so."""
    each = "copybw", "copylat", "copylat, cold", "apiperf", "copylat, pause"
    plans = [(name, f"{call}:{how}:{which}") for name in each for call in ("to", "from")
             for how, which in (("flip", "1"), ("nothing", "1"), ("refuse", "1"), ("flip", "all"), ("refuse", "40"))]
    # Threads that write the same again and again: a wrong byte stays if all are wrong.
    plans += [("copylat, callers", f"{call}:{how}") for call in ("to", "from") for how in ("flip:all", "nothing:all", "refuse:400")]
    # What only one thread of several does, and what one of many pieces is.
    plans += [(name, f"{call}:{how}:others") for name in ("copybw of two threads", "copylat, callers")
              for call in ("to", "from") for how in ("flip", "refuse")]
    plans += [(name, f"{call}:{how}:{which}") for name in ("copylat, many", "apiperf") for call in ("to_v", "from_v")
              for how, which in (("flip", "1"), ("nothing", "1"), ("refuse", "2"))]
    plans += [("copylat, used", f"from:{how}") for how in ("flip:1", "nothing:1", "refuse:20")]
    plans += [("apiperf", f"to:{how}:2") for how in ("flip", "nothing")]	# those that are timed
    plans += [("apiperf", f"from:{how}:16") for how in ("flip", "nothing")]
    plans += [(name, f"{call}:refuse:1") for name in ("copybw", "copylat", "apiperf") for call in ("pin", "map", "unmap")]
    plans += [("apiperf", f"{call}:refuse:{which}") for call in ("get", "put") for which in (1, 20)]
    for name, plan in plans:
        out = spoilt(name, *RUNS[name], spoil=plan)
        lines = out.stderr.splitlines()
        check(out.returncode == 1 and not out.stdout and len(lines) == 1 and
              any(word in lines[0] for word in ("byte", "wrong", "is not in GPU memory", "Input/output error")),
              f"{name}, {plan}: it is noticed", f"status {out.returncode}\n{out.stdout}{out.stderr}")


def sanity():
    for plan in ("to:flip:1", "from:flip:1", "to:nothing:all", "from:refuse:1", "pin:refuse:1", "map:refuse:1", "unmap:refuse:1"):
        out = spoilt("sanity", "-t", "basic*,copy*,data*,pin*,map*,life*", spoil=plan)
        bad = [line for line in out.stdout.splitlines() if line.startswith("not ok ")]
        check(out.returncode == 1 and bad and f" {len(bad)} failed, " in out.stdout.splitlines()[-1],
              f"sanity, {plan}: a case fails, and the status says so", f"status {out.returncode}\n{out.stdout}{out.stderr}")
        check("#   " + bad[0].split(" - ")[1] in out.stdout if bad else False, f"sanity, {plan}: the summary names it", out.stdout)


def report(folder="report"):
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"gdrcopy_{folder}.{os.getpid()}")
    out = spoilt("report", "-o", path, "--size", "64", "--budget", "5", spoil="to:flip:1")
    check(out.returncode == 1 and "gdrcopy_copylat failed" in out.stderr, "report, to:flip:1: it is noticed",
          f"status {out.returncode}\n{out.stderr}")
    for name in os.listdir(path) if os.path.isdir(path) else []:
        os.remove(os.path.join(path, name))
    if os.path.isdir(path):
        os.rmdir(path)


# What getopt takes in the sources of GDRCopy 2.4 to 2.6.
THEIRS = {"sanity": "hvsltde", "copybw": "hsdocwralM", "copylat": "hsdwraMcC", "apiperf": "hsdnwaM",
          "pplat": "hdtuasBTmGCDM"}


def table(page="docs/tools.md"):
    """Each command of the table of the reference's flags, and each flag in a command."""
    with open(page, encoding="utf-8") as f:
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in f if line.startswith("| `gdrcopy_")]
    commands = [(command.replace("'", "").split(), row[2]) for row in rows if len(row) == 4 and not row[1].startswith(("checks", "the "))
                for command in re.findall("`([^`]+)`", row[0])]
    said = {(words[0][len("gdrcopy_"):], flag) for words, _ in commands for flag in words[1:] if flag.startswith("-")}
    missing = [f"{tool} -{c}" for tool, letters in THEIRS.items() for c in letters if (tool, "-" + c) not in said]
    check(not missing, "each flag of the reference is in the table", missing)
    for (tool, *args), here in commands:
        command = " ".join([tool] + args)
        tool = tool[len("gdrcopy_"):]
        if "-h" not in args and tool in ("copybw", "copylat"):
            args += ["--budget", "5"]
        if "-h" not in args and tool == "apiperf" and "-n" not in args:
            args += ["-n", "3"]
        out = run(tool, *args)
        lines = out.stderr.splitlines()
        refused = out.returncode == 2 and not out.stdout and len(lines) == 1 and f"see 'gdrcopy_{tool} --help'" in lines[0]
        works = (out.returncode == 0 and out.stdout and not lines or
                 tool == "pplat" and out.returncode == 77 and "needs a real GPU" in out.stderr)
        impossible = out.returncode == 1 and len(lines) == 1 and not out.stdout
        ok = {"refused": refused, "the same": works}.get(here, here.startswith("where ") and (works or impossible))
        check(ok, f"{command}: {here}", f"status {out.returncode}\n{out.stdout}{out.stderr}")


def versions():
    """One line each; what is of the library is in its file, too. The backends are those of the Go table."""
    shape = re.compile(r"(\S+) (?:with libgdrapi )?(\d+\.\d+\.\d+\S*) \(commit (\S+), (go\S+), backends ([a-z ]+)\)\n")
    backends = set()
    for tool in "copybw", "copylat", "apiperf", "pplat", "sanity", "report", "doctor":
        for option in "--version", "-V":
            out = run(tool, option)
            m = shape.fullmatch(out.stdout)
            check(out.returncode == 0 and not out.stderr and m and m[1] == "gdrcopy_" + tool, f"{tool} {option}", out.stdout + out.stderr)
            backends.add(m[5] if m else None)
    check(len(backends) == 1, "all name the same backends", backends)
    line = run("copybw", "--version").stdout.split(" with ")[1].strip()
    with open(os.path.join(BIN, "..", "libgdrapi.so.2"), "rb") as f:
        check(line.encode() + b"\0" in f.read(), "the library's file has the line")


def full_disk():
    """What cannot be written is a failure."""
    runs = [(t, a) for t in ("copybw", "copylat", "apiperf", "pplat", "sanity", "report", "doctor") for a in (["--help"], ["--version"])]
    runs += [(name, RUNS[name] + form) for name in ("copybw", "copylat", "apiperf") for form in ([], ["--json"], ["--csv"])]
    runs += [("sanity", ["-l"]), ("sanity", ["-t", "basic*"])]
    for tool, args in runs:
        with open("/dev/full", "w") as full:
            out = run(tool, *args, stdout=full)
        check(out.returncode == 1 and "No space left" in out.stderr.replace("no space", "No space"),
              f"{tool} {' '.join(args)} to a full disk", f"status {out.returncode}\n{out.stderr}")


forms()
one_sample()
variables()
plans()
offsets()
bad_copies()
sanity()
report()
table()
versions()
full_disk()
done()
