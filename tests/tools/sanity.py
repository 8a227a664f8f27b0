# SPDX-License-Identifier: MIT
"""sanity.py BIN WRONG LIBRARY: whether gdrcopy_sanity notices a library that is wrong.

BIN is the folder of the tools, WRONG the preload of tests/tools/wrong.c, LIBRARY the file of
libgdrapi. The simulated drivers are those of the environment. It prints TAP.
"""

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from lacking import without
from tap import check, done

BIN, WRONG, LIBRARY = sys.argv[1:]
PROGRAM = os.path.join(BIN, "gdrcopy_sanity")
WORK = tempfile.mkdtemp(prefix="gdrcopy_sanity.")


class Ran:
    """One run of the program: what it printed, and what the preload wrote."""

    runs = 0

    def __init__(self, *args, preload=True, **env):
        Ran.runs += 1
        log = os.path.join(WORK, f"log.{Ran.runs}.{id(self)}")
        env = {"GDRCOPY_BACKEND": "dmabuf", **env}
        program = [PROGRAM]
        if preload:
            env["WRONG_LOG"] = log
            program = ["env", f"LD_PRELOAD={WRONG}", PROGRAM]
        if env["GDRCOPY_BACKEND"] == "rm":
            program.insert(0, os.environ["RM_SIM"])
        # What a case leaves behind holds the pipes until its alarm, for 300 s.
        out = subprocess.run([*program, *args], env={**os.environ, **env}, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200)
        self.status, self.out, self.err = out.returncode, out.stdout, out.stderr
        self.lines = self.out.splitlines()
        self.log = []
        if os.path.exists(log):
            with open(log, encoding="utf-8") as f:
                self.log = [line.split() for line in f]
            os.remove(log)
        self.cases, self.why, self.notes, said = {}, {}, {}, []
        for line in self.lines:
            m = re.fullmatch(r"(not )?ok \d+ - (\w+)(?: # SKIP (.*)| # .*)?", line)
            if m:
                self.cases[m[2]] = "failed" if m[1] else "passed" if m[3] is None else "skipped"
                self.why[m[2]], self.notes[m[2]], said = m[3], said, []
            elif line.startswith("#   "):
                said.append(line[4:])

    def those(self, how):
        return [name for name, result in self.cases.items() if result == how]

    def __str__(self):
        return f"status {self.status}\n{self.out}{self.err}"


def chosen(names):
    return ("-t", ",".join(names))


# Which sites each kind is for: those of which the preload wrote that word.
KINDS = {"error": "call", "success": "bad", "keep": "good_out", "keep_second": "good_second", "scribble": "bad_out",
         "scribble_second": "bad_second", "first": "moved", "last": "moved"}

# What a case may let pass, and why: (kind, case, function).
MAY_PASS = {
    # Any error will do there.
    ("error", "fork_opens_again", "gdr_pin_buffer"),
}


def sites(backend, names, **env):
    """Each answer of each call of each case is spoiled in turn: the case fails."""
    clean = Ran(*chosen(names), GDRCOPY_BACKEND=backend, **env)
    check(clean.status == 0 and clean.those("passed") == names, f"{backend}: nothing fails if nothing is spoiled", clean)
    found = {}
    for word, number, depth, *rest in clean.log:
        if int(number) > 0 and len(rest) == 2:
            found.setdefault((names[int(number) - 1], depth, rest[0], rest[1]), set()).add(word)

    def spoil(kind, turn, of_case):
        """One site of each case that has so many."""
        these = [(name, of_case[name][turn]) for name in names if turn < len(of_case.get(name, ()))]
        path = os.path.join(WORK, f"sites.{backend}.{kind}.{turn}")
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(f"{i} {site[1]} {site[2]}\n" for i, (_, site) in enumerate(these, 1))
        ran = Ran(*chosen([name for name, _ in these]), GDRCOPY_BACKEND=backend, WRONG_HOW=kind, WRONG_SITES=path, **env)
        os.remove(path)
        unseen = []
        for name, site in these:
            said, call = "\n".join(ran.notes.get(name, ["no result"])), site[3].removesuffix("_v2")
            # The call's own check says it, none of a later call.
            own = kind != "error" or re.search({"gdr_open": r" hold: .*!= NULL", "gdr_map": r" gave 5 |m\[n\]\.va == NULL"}.get(
                call, rf": ({call}\w*\(.*|v1\(.*|rc) gave 5 "), said)
            if not (ran.cases.get(name) == "failed" and own) and (kind, name, site[3]) not in MAY_PASS:
                unseen.append((site, said))
        return unseen

    for kind, word in KINDS.items():
        of_case = {}
        for site, had in found.items():
            # These tell no error.
            silent = kind == "error" and (site[3] == "gdr_runtime_get_version" or site[3] == "gdr_open" and "good" not in had)
            if word in had and not silent:
                of_case.setdefault(site[0], []).append(site)
        turns = range(max(map(len, of_case.values()), default=0))
        with ThreadPoolExecutor(2) as pool:
            unseen = [miss for misses in pool.map(lambda turn, k=kind, o=of_case: spoil(k, turn, o), turns) for miss in misses]
        if of_case or backend == "dmabuf":
            check(of_case and not unseen, f"{backend}: each answer with '{kind}' fails its case",
                  "\n".join(f"{' '.join(site)}: {said}" for site, said in unseen))
    return clean


# What the library may do wrongly all the time, by the cases that must fail then. wrong.c says
# what each is.
LIES = """
open:once: two_opens threads access_after_close foreign_handle no_leaks close_on_exec fork_after_open fork_opens_again
open:any: errno_open
open:errno: errno_open
open:descriptor: no_leaks
close:nothing: two_opens access_after_close no_leaks errno_open errno_mem
close:first: two_opens access_after_close
close:last: access_after_close
close:descriptor: no_leaks
pin:descriptor: no_leaks fd_limit
pin:inherited: close_on_exec
pin:context: child_thread
pin:late: sync_memops
pin:number: two_pins stale_handle many_small
pin:shifted: many_small many_buffers sub_ranges partial_map write_every_size
pin:emfile: fd_limit
pin:freed: errno_pin
pin:shared: two_pins fd_limit
unpin:first: access_after_unpin access_after_free
unpin:spoils: many_small two_pins two_gpus
unpin:last: access_after_unpin access_after_free
map:read_only: basic_cumemalloc basic_vmm basic_mem_alloc access_after_unmap
map:inherited: fork_with_mapping fork_while_busy
map:empty: access_after_unmap
map:odd: unaligned_size info_sizes callback_flag
map:first: two_pins two_opens
map:drops: errno_map
map:eio: mapping_types errno_map
map:eopnotsupp: mapping_types errno_map
map:refused: basic_v2 mapping_types mixed errno_map
unmap:nothing: partial_map info access_after_unmap errno_unmap
unmap:first: access_after_unmap errno_unmap access_after_close
unmap:last: access_after_close
unmap:refused: foreign_handle errno_unmap
unmap:end: errno_unmap
unmap:part: errno_unmap
unmap:other: errno_unmap
fork:unmaps: fork_with_mapping fork_opens_again fork_while_busy
fork:first: fork_with_mapping fork_while_busy
fork:last: fork_with_mapping
wait:fails: fork_first fork_after_open fork_with_mapping fork_opens_again fork_twice fork_exits fork_while_busy
thread:fails: child_thread threads fork_while_busy
guard=1: host_guards
guard=2: host_guards
fork:fails: fork_first fork_after_open fork_with_mapping fork_opens_again fork_twice fork_exits fork_while_busy
child:crash: fork_first fork_after_open fork_with_mapping fork_opens_again fork_twice fork_exits fork_while_busy
to:nothing: small_writes stale_handle errno_unmap fork_with_mapping
from:nothing: sync_memops access_after_unmap errno_copy stale_handle
from:scribbles: access_after_unmap access_after_unpin access_after_close access_after_free stale_handle fork_with_mapping fork_opens_again fork_while_busy errno_copy
copies:flipped: basic_cumemalloc unaligned_size many_small many_buffers partial_map sync_memops small_writes fork_first errno_unmap
to:skips=1: basic_cumemalloc access_after_free unaligned_size small_writes errno_copy
to:skips=2: small_writes
to:skips=4: small_writes two_opens stale_handle fork_with_mapping
to:skips=8: two_gpus many_buffers unaligned_size small_writes fork_while_busy errno_unmap
to:skips=64: partial_map
to:skips=100: sub_ranges
to:skips=256: access_after_free
to:skips=300: mem_alloc_first
to:skips=777: threads
to:skips=1000: two_pins
to:skips=5000: fork_first fork_after_open fork_with_mapping fork_opens_again fork_twice fork_exits
to:border: write_every_size big_copies
from:border: read_every_size big_copies sub_ranges
to:empty: write_every_size
from:empty: read_every_size errno_copy
from:stale: basic_cumemalloc partial_map sync_memops access_after_free fork_while_busy
to:before: write_every_size big_copies basic_cumemalloc
to:behind: write_every_size big_copies small_writes sub_ranges
to:reads: host_guards
to:reads_before: host_guards
from:before: read_every_size big_copies host_guards
from:behind: read_every_size big_copies host_guards
from:writes: read_every_size big_copies sub_ranges
to:size=1: write_every_size basic_v2 unaligned_size host_guards small_writes access_after_free errno_copy
to:size=2: write_every_size host_guards small_writes
to:size=3: write_every_size unaligned_size host_guards
to:size=4: write_every_size small_writes two_opens fork_with_mapping
to:size=8: write_every_size small_writes two_gpus unaligned_size errno_unmap
to:size=64: write_every_size partial_map
to:size=2048: write_every_size
to:size=4095: write_every_size
to:size=4096: write_every_size many_small
to:size=65536: big_copies basic_cumemalloc basic_vmm basic_mem_alloc
to:size=65537: big_copies
to:size=131072: basic_cumemalloc basic_vmm basic_mem_alloc basic_v2
to:size=1114112: basic_cumemalloc basic_vmm basic_mem_alloc
to:size=1048577: big_copies
to:size=4194321: big_copies
to:size=16777088: big_copies
to:gpu=1: write_every_size big_copies host_guards
to:gpu=33: write_every_size big_copies many_buffers threads
to:gpu=64: write_every_size big_copies host_guards
to:size*64+host=6401: write_every_size
to:size*64+host=6402: write_every_size
to:host=1: write_every_size host_guards
to:host=64: write_every_size host_guards
from:size=1: read_every_size unaligned_size host_guards small_writes access_after_unmap errno_copy
from:size=2: read_every_size host_guards small_writes
from:size=3: read_every_size unaligned_size host_guards
from:size=4: read_every_size small_writes two_opens sync_memops
from:size=8: read_every_size small_writes two_gpus fork_while_busy
from:size=256: read_every_size sync_memops access_after_free
from:size=2048: read_every_size
from:size=4095: read_every_size
from:size=4096: read_every_size sub_ranges sync_memops
from:size=12288: sub_ranges
from:size=65536: big_copies sync_memops
from:size=131072: basic_cumemalloc basic_vmm basic_mem_alloc basic_v2
from:size=262144: sync_memops
from:size=1114112: basic_cumemalloc basic_vmm basic_mem_alloc
from:size=1048577: big_copies
from:size=4194321: big_copies
from:size=16777088: big_copies
from:gpu=1: read_every_size big_copies host_guards
from:gpu=64: read_every_size big_copies host_guards
from:size*64+host=6401: read_every_size
from:size*64+host=6402: read_every_size
from:host=1: read_every_size host_guards
from:host=64: read_every_size host_guards
info:va: info unaligned_address many_small
info:size: info unaligned_address info_sizes
info:page: info info_sizes
info:tm: info info_sizes
info:rate: info info_sizes
info:is: info basic_v2 unaligned_address info_sizes fork_while_busy
info:wc: info info_sizes
info:none: info force_pcie mapping_types mixed
info:type: info force_pcie mapping_types
info:max: info force_pcie mapping_types mixed
info:new:va: info unaligned_address
info:new:is: info unaligned_address
info:new:wc: info
info:new:type: info
info:mapped:va: info
info:mapped:is: info basic_v2 info_sizes fork_while_busy
info:mapped:wc: info info_sizes
info:mapped:none,info:mapped:wc: info force_pcie mapping_types mixed
info:mapped:max,info:mapped:wc: info force_pcie mapping_types mixed
info:mapped:type,info:mapped:wc: force_pcie mapping_types
info:unmapped:is: info
info:unmapped:type: info
info:is,old_info:is: info info_sizes
info:long: info_sizes
info:tail: access_after_unpin access_after_close access_after_free foreign_handle fork_with_mapping fork_opens_again fork_while_busy errno_query
old_info:va: info_sizes
old_info:size: info_sizes
old_info:page: info_sizes
old_info:tm: info_sizes
old_info:rate: info_sizes
old_info:is: info_sizes
old_info:wc: info_sizes
old_info:long: info_sizes
flag: callback_flag access_after_free
probe:persistent,flag: callback_flag access_after_free
probe:persistent,flag:unmaps: access_after_free
attribute=1: attributes
attribute=2: attributes
attribute=3: attributes fork_opens_again
attributes:2: attributes
attribute:kept: access_after_close errno_query fork_after_open fork_with_mapping
version:null: versions
version:major: versions fork_after_open fork_with_mapping
version:minor: versions fork_after_open fork_with_mapping
driver:major: versions
driver:minor: versions
probe:gdrdrv,driver=19: versions
string=1: type_strings
string=2: type_strings fork_after_open
string=3: type_strings
string=4: type_strings
mem:unaligned: mem_alloc_first basic_mem_alloc
mem:small: basic_mem_alloc
mem:odd: mem_alloc_first
mem:tiny: mem_alloc_first basic_mem_alloc
mem:context: child_thread
"""


def lies(all_names):
    """What the library does wrongly all the time."""
    rows = [line.rpartition(": ") for line in LIES.strip().splitlines()]
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda row: Ran(*chosen(row[2].split()), WRONG_LIE=row[0]), rows))
    for (lie, _, names), ran in zip(rows, runs):
        names = names.split()
        check(set(names) <= set(all_names) and sorted(ran.those("failed")) == sorted(names) and ran.status == 1,
              f"{lie}: {' '.join(names)} fail", ran)


# CASE CALL TIMES: the checks that fail where the first, the second, ... call fails; the library's
# own calls are among them. "probe" is no case.
CUDA = """
basic_cumemalloc cuMemAlloc_v2 3: util.c mem_alloc
basic_cumemalloc cuMemFree_v2 3: util.c mem_free
basic_cumemalloc cuMemcpyHtoD_v2 3: util.c to_gpu
basic_cumemalloc cuMemcpyDtoH_v2 6: util.c from_gpu
basic_cumemalloc cuMemsetD8_v2 3: basic.c set8
basic_cumemalloc cuCtxSynchronize 3: basic.c ctx_sync, util.c ctx_sync, util.c ctx_sync
basic_vmm cuMemGetAllocationGranularity 3: util.c granularity
basic_vmm cuMemCreate 3: util.c create
basic_vmm cuMemAddressReserve 3: util.c reserve
basic_vmm cuMemMap 3: util.c map
basic_vmm cuMemSetAccess 3: util.c set_access
basic_vmm cuMemUnmap 3: util.c unmap
basic_vmm cuMemRelease 3: util.c release
basic_vmm cuMemAddressFree 3: util.c unreserve
vmm_no_fd cuDeviceGet 4: util.c device_get, util.c device_get
vmm_no_fd cuDeviceGetAttribute 6: util.c device_attribute
info cuInit 1: util.c init
info cuDeviceGet 5: util.c device_get, basic.c device_get
info cuDeviceGetAttribute 8: basic.c result
info cuDevicePrimaryCtxRetain 1: util.c primary_retain
info cuCtxSetCurrent 1: util.c ctx_set
child_thread cuCtxGetCurrent 7: basic.c ctx_get, basic.c ctx_get, basic.c ctx_get
sync_memops cuMemcpyHtoD_v2 3: data.c to_gpu
sync_memops cuCtxSynchronize 3: data.c ctx_sync
two_gpus cuDeviceGet 4: util.c device_get, basic.c device_get
two_gpus cuDevicePrimaryCtxRetain 3: util.c primary_retain, basic.c primary_retain
two_gpus cuDevicePrimaryCtxRelease 9: basic.c primary_release
two_gpus cuCtxSetCurrent 14: util.c ctx_set, basic.c ctx_set, basic.c ctx_set, basic.c ctx_set
probe cuInit 2: main.c result, util.c init
probe cuDeviceGetCount 1: main.c device_count
probe cuDeviceGet 4: util.c device_get, main.c device_get
probe cuDeviceGetName 1: main.c device_name
probe cuDevicePrimaryCtxRetain 1: util.c primary_retain
probe cuCtxSetCurrent 1: util.c ctx_set
probe cuDriverGetVersion 9: main.c driver_version
"""


def cuda():
    """Calls of CUDA that fail, in a case and in the probe."""
    def run(case, call, turn):
        if case == "probe":
            return Ran("-t", "versions", preload=False, CUDA_SIM_FAIL=f"{call}=999@{turn}")
        return Ran("-t", case, WRONG_CUDA=f"{call}=999@{turn}")
    for row in CUDA.strip().splitlines():
        key, _, wants = row.partition(": ")
        case, call, times = key.split()
        with ThreadPoolExecutor(2) as pool:
            runs = list(pool.map(lambda turn, c=case, f=call: run(c, f, turn), range(1, int(times) + 1)))
        found = set()
        for ran in runs:
            bail = not ran.cases and "Bail out! CUDA does not work" in ran.out and ran.lines[-1] == "0 passed, 1 failed, 0 skipped"
            for m in re.finditer(r"^#   (\w+\.c):(\d+): (?:e->cu\.)?(\w+).* gave CUDA_ERROR_UNKNOWN \(999\)$", ran.out, re.M):
                if ran.status == 1 and (bail if case == "probe" else ran.those("failed") == [case]):
                    found.add(m.groups())
        check(sorted(f"{file} {what}" for file, _, what in found) == sorted(wants.split(", ")), f"{case}: {call} fails: {wants}",
              "\n".join(str(ran) for ran in runs))


# The cases that leave their gdr_t to the end of the process; all others close theirs.
LEFT_OPEN = """basic_v2 vmm_no_fd force_pcie tokens unaligned_address unaligned_size many_small many_buffers sub_ranges
partial_map info info_sizes callback_flag attributes versions mapping_types mixed two_pins child_thread two_gpus
write_every_size read_every_size big_copies host_guards sync_memops small_writes access_after_unmap access_after_unpin
access_after_free stale_handle foreign_handle fd_limit fork_opens_again fork_twice fork_while_busy errno_pin errno_map
errno_unmap errno_copy errno_query errno_mem""".split()


def left(clean, names):
    """Each case unpins and frees what it pinned and allocated."""
    ends = {names[int(number) - 1]: what for word, number, depth, *what in clean.log if word == "left" and depth == "0" and int(number) > 0}
    check(list(ends) == names or sorted(ends) == sorted(names), "each case ends by way of the exit handlers", sorted(set(names) - set(ends)))
    for i, word in enumerate(("pins", "opens", "cuda")):
        some = {name: what[i] for name, what in ends.items()
                if what[i] != f"{word}={1 if word == 'opens' and name in LEFT_OPEN else 0}"}
        check(not some, f"what the cases leave: {word}", some)


def summary(ran, failures=(), skips=()):
    """The last lines of that run."""
    count = [sum(r == how for r in ran.cases.values()) for how in ("passed", "failed", "skipped")]
    return [*["# Failed:"], *([f"#   {n}" for n in failures] or ["#   none"]), "# Skipped:",
            *([f"#   {n}: {ran.why[n]}" for n in skips] or ["#   none"]),
            f"{count[0]} passed, {count[1]} failed, {count[2]} skipped"]


def output():
    """What a run prints."""
    listed = Ran("-l", preload=False)
    names = listed.lines
    check(listed.status == 0 and len(set(names)) == len(names) > 50 and not listed.err, "-l lists each case once", listed)
    for args in ["--list"], ["-l", "-v"], ["-l", "-t", "*"], ["-l", "--test", "?*"], ["-l", "-s", "-e", "--no-summary", "--extended", "--verbose"]:
        check(Ran(*args, preload=False).out == listed.out, f"{' '.join(args)} lists the same")
    some = [n for n in names if n.startswith("fork_") or n == "info"]
    for args in ["-t", "fork_*,info"], ["-t", "info", "-t", "fork_*"], ["--test=info", "-t", "nonesuch,fork_[a-z]*"]:
        check(Ran("-l", *args, preload=False).lines == some, f"-l {' '.join(args)} lists those", some)
    check(Ran("-l", "-t", "inf", preload=False).status == 2, "a pattern must match all of a name")

    ran = Ran("-v", preload=False)
    facts = ["# libgdrapi 2.6, backend dmabuf (driver 2.6), persistent mappings",
             "# CUDA driver 13.3, GPU 0 of 2: Simulated GPU 0", f"1..{len(names)}"]
    check(ran.lines[:3] == facts and ran.status == 0 and not ran.err, "the first lines: the library, the GPU, the plan", ran)
    tests = [line for line in ran.lines if re.match("(not )?ok ", line)]
    check([line.split(" - ")[0] for line in tests] == [f"ok {i + 1}" for i in range(len(names))] and list(ran.cases) == names,
          "one line for each case, in the order of -l", ran)
    check(all(re.fullmatch(r"ok \d+ - \w+ # [1-9]\d* checks, \d+\.\d\d s", line) for line in tests if "# SKIP" not in line),
          "-v says how many checks, and the time", "\n".join(tests))
    check(len(ran.lines) == len(set(ran.lines) - {"#   none"}) + ran.lines.count("#   none"), "nothing is printed twice", ran.out)
    check(ran.lines[-len(summary(ran, skips=ran.those("skipped"))):] == summary(ran, skips=ran.those("skipped")), "the summary", ran)
    why = {"overlapping_ranges": "the simulated libcuda exports memfds, which cannot overlap at different offsets",
           "fd_passing": "the only descriptors here are the CUDA driver's, which does not ask who holds them",
           "errno_rm": "only rm asks the NVIDIA driver by itself"}
    check({n: ran.why[n] for n in ran.those("skipped")} == why, "what is skipped on dmabuf, and why", ran)
    quiet = Ran(preload=False)
    check(quiet.lines == [re.sub(r" # \d+ checks, .*", "", line) for line in ran.lines if not line.startswith("#   ") or ": " in line and line[4:].split(":")[0] in why or line == "#   none"],
          "without -v there are only results", quiet)
    ran = Ran("-s", "-t", "info*", preload=False)
    check(ran.lines == [*facts[:2], "1..2", "ok 1 - info", "ok 2 - info_sizes"], "-s prints no summary", ran)
    check(Ran("-e", "-t", "info*", "--no-summary", preload=False).out == ran.out, "-e changes nothing, --no-summary is -s")
    ran = Ran("-v", "-t", "info*", "--skip", "info,errno*", preload=False)
    check(ran.cases == {"info": "skipped", "info_sizes": "passed"} and ran.lines[3] == "ok 1 - info # SKIP asked" and
          ran.lines[-4:] == ["#   none", "# Skipped:", "#   info: asked", "1 passed, 0 failed, 1 skipped"] and ran.status == 0, "--skip", ran)
    ran = Ran("-t", "info", "--skip", "info", "--skip", "versions", preload=False)
    check(ran.status == 0 and ran.lines[-1] == "0 passed, 0 failed, 1 skipped", "all that -t names is skipped", ran)
    help_text = Ran("--help", preload=False).out
    check(all(re.search(rf"^  (-\w, |    )--{name}\b", help_text, re.M) for name in
              "help version verbose no-summary list extended test skip device".split()), "--help names each option", help_text)
    return names


def usage():
    """What is wrong with the arguments is said in one line, with status 2."""
    rows = (("-q", "unknown option -q"), ("--nonesuch", "unknown option --nonesuch"), ("-v -t", "-t needs a value"),
            ("--skip", "--skip needs a value"), ("-d 0 -d", "-d needs a value"), ("-v more", "'more' is no option"),
            ("-t info,nonesuch -t inf", None), ("-t nonesuch", "-t nonesuch names no case; -l lists them"),
            ("-t inf -t nf?", "-t inf,nf? names no case; -l lists them"), ("-t info --skip inf", "--skip inf names no case; -l lists them"),
            *((f"-d {bad}", f"-d takes a number from 0 to 1023, not '{bad}'") for bad in ("-1", "1024", "1x", "x")))
    for args, said in rows:
        ran = Ran("-l", *args.split(), preload=False)
        want = (2, "", f"gdrcopy_sanity: {said}; see 'gdrcopy_sanity --help'\n") if said else (0, "info\n", "")
        check((ran.status, ran.out, ran.err) == want, f"'{args}' is answered", ran)


def terminal(names):
    """On a terminal each case has a line of progress, which is gone before anything is printed."""
    def settle(text):
        return re.sub(r" # \d+ checks, .*", "", text)
    for lie in "version:major", "version:null":
        args = ["-v", "-t", "info,attributes,callback_flag,versions", "--skip", "attributes"]
        plain = Ran(*args, WRONG_LIE=lie)
        main, side = os.openpty()
        env = {**os.environ, "GDRCOPY_BACKEND": "dmabuf", "LD_PRELOAD": WRONG, "WRONG_LIE": lie, "TERM": "xterm"}
        with subprocess.Popen([PROGRAM, *args], env=env, stdin=subprocess.DEVNULL, stdout=side, stderr=side):
            os.close(side)
            text = b""
            try:
                while more := os.read(main, 4096):
                    text += more
            except OSError:     # the program has ended
                pass
        os.close(main)
        text = text.decode().replace("\r\n", "\n")
        line = r"\r\x1b\[K\[[# ]{24}\] (\d+) of (\d+)(?:, \d+:\d\d left)?  (\w+)"
        some = [n for n in names if n in args[2].split(",")]
        check(re.findall(line, text) == [(str(i), "4", name) for i, name in enumerate(some, 1)], f"{lie}: a line of progress for each case", repr(text))
        rest = re.sub(r"(?:^|(?<=\n))(?:\r\x1b\[K)+", "", re.sub(line + r"(?:\r\x1b\[K)+", "", text))
        check(settle(rest) == settle(plain.out), f"{lie}: it is wiped before anything is printed", repr(text))


def gpus():
    """-d: the GPU on which all is done."""
    for args, gpu, other in (([], "0", "1"), (["-d", "1"], "1", "0"), (["--device", "0x1"], "1", "0")):
        ran = Ran(*args, "-t", "basic_*,two_gpus", WRONG_LIE="tell:gpu")
        on = [line[3] for line in ran.log if line[0] == "gpu" and line[1] != "5"]
        two = {line[3] for line in ran.log if line[0] == "gpu" and line[1] == "5"}
        check(ran.status == 0 and f"# CUDA driver 13.3, GPU {gpu} of 2: Simulated GPU {gpu}" in ran.lines and
              len(on) > 9 and set(on) == {gpu} and two == {gpu, other}, f"{' '.join(args)}: it is on GPU {gpu}", f"{ran}{ran.log}")
    ran = Ran("-t", "two_gpus", preload=False, CUDA_SIM_DEVICES="1")
    check(ran.status == 0 and ran.why == {"two_gpus": "one GPU here"} and "GPU 0 of 1:" in ran.out, "two_gpus where there is one", ran)
    for args in ["-d", "1"], ["-d", "1023"]:
        ran = Ran(*args, preload=False, CUDA_SIM_DEVICES="1")
        check(ran.status == 2 and not ran.out and ran.err ==
              f"gdrcopy_sanity: there is no GPU {args[1]}: CUDA sees 1; see 'gdrcopy_sanity --help'\n", f"{' '.join(args)} where there is one", ran)
    for env, why in (({"CUDA_SIM_FAIL": "cuInit=100"}, "NVIDIA's driver finds no GPU"),
                     ({"LD_LIBRARY_PATH": os.path.join(BIN, "..")}, "NVIDIA's driver is needed: libcuda.so.1: .*")):
        ran = Ran(preload=False, **env)
        check(ran.status == 77 and re.fullmatch(f"1\\.\\.0 # SKIP {why}\n", ran.out) and re.fullmatch(f"gdrcopy_sanity: {why}\n", ran.err), why, ran)


def ends():
    """A case that ends as it should not, between two others."""
    names = ["basic_v2", "info", "attributes"]
    how = {"crash": "crashed: signal 11 (Segmentation fault) after 0 checks", "stuck": "stuck: signal 14 (Alarm clock) after 0 checks",
           "0": "the case checked nothing", "1": None, "2": None}
    for end, note in how.items():
        for args in [], ["-s"]:
            ran = Ran(*args, *chosen(names), WRONG_LIE=f"end:{end}", WRONG_CASE="2")
            check(ran.status == 1 and list(ran.cases.values()) == ["passed", "failed", "passed"] and
                  ran.notes["info"] == ([note] if note else []) and not ran.notes["attributes"], f"a case that ends with {end}: it has failed", ran)
            check(bool(args) or ran.lines[-5:] == summary(ran, failures=["info"]), f"{end}: the summary names it", ran)
    ran = Ran(*chosen(["basic_v2", "info", "attributes"]), WRONG_LIE="end:77", WRONG_CASE="2")
    check(ran.status == 0 and list(ran.cases.values()) == ["passed", "skipped", "passed"] and ran.lines[-5:] == summary(ran, skips=["info"]),
          "a case that ends with 77 is skipped", ran)
    ran = Ran(*chosen(["overlapping_ranges", "info"]), WRONG_LIE="end:77", WRONG_CASE="2")
    check(list(ran.cases.values()) == ["skipped", "skipped"] and ran.why["overlapping_ranges"] and ran.why["info"] == "",
          "why a case is skipped is not said of the next", ran)
    ran = Ran("-t", "versions", WRONG_LIE="version:null")
    check(ran.notes["versions"] == ["crashed: signal 11 (Segmentation fault) after 2 checks"], "the checks before a crash are counted", ran)
    for sig, said in (("segv", "11 (Segmentation fault)"), ("bus", "7 (Bus error)")):
        ran = Ran("-t", "access_after_unmap", WRONG_LIE=f"late:{sig}")
        note = ran.notes["access_after_unmap"]
        check(len(note) == 1 and re.fullmatch(rf"crashed: signal {re.escape(said)} after \d+ checks", note[0]), f"{said} after a fault that a case waited for", ran)
    ran = Ran("-v", "-t", "fork_first", WRONG_LIE="child:crash")
    check(ran.notes["fork_first"][0] == "the child died of signal 11", "-v: a child that crashed", ran)
    ran = Ran(*chosen(names), WRONG_FORK="3")
    check(ran.status == 1 and list(ran.cases.values()) == ["passed", "failed", "passed"] and
          ran.notes["info"] == ["fork: Resource temporarily unavailable"], "a fork of the runner that fails", ran)
    ran = Ran(*chosen(names), WRONG_LIE="end:1", WRONG_CASE="2", WRONG_WAIT="1")
    check(ran.status == 1 and ran.those("failed") == ["info"], "a wait of the runner that a signal interrupts", ran)
    ran = Ran("-t", "fork*", WRONG_WAIT="1")
    check(ran.status == 0 and len(ran.those("passed")) == 7, "waits of the cases that a signal interrupts", ran)
    for name, lie, said in (("versions", "version:major", r"basic\.c:\d+: major is 3, not 2"),
                            ("two_opens", "open:once", r"basic\.c:\d+: this does not hold: second != NULL && second != first"),
                            ("fd_limit", "pin:emfile", r"util\.c:\d+: gdr_pin_buffer_v2\(.*\) gave 24 \(Too many open files\), not 0 \(Success\)")):
        for args in [], ["-v"]:
            ran = Ran(*args, "-t", name, WRONG_LIE=lie)
            check(len(ran.notes[name]) == 1 and re.fullmatch(said, ran.notes[name][0]), f"{lie}: where it failed, and how {' '.join(args)}", ran)
    ran = Ran("-v", "-t", "small_writes", WRONG_LIE="to:size=4")
    check(ran.notes["small_writes"][0] == "byte 3 of 4 is 0x10, not 0", "-v: which byte is wrong", ran)
    ran = Ran("-v", "-t", "write_every_size", WRONG_LIE="to:size=100")
    check(ran.notes["write_every_size"][0] == "size 100, GPU offset 0: byte 99 is wrong", "-v: which size is wrong", ran)


def watchdogs(names):
    """Each case, and each child of a case, is ended some time."""
    ran = Ran(*chosen(names), WRONG_LIE="tell:alarm")
    left_s = {}
    for word, number, depth, *rest in ran.log:
        if word == "alarm":
            left_s.setdefault((names[int(number) - 1], int(depth)), set()).add(int(rest[0]))
    check({name for name, _ in left_s} == set(names) and {depth for _, depth in left_s} == {0, 1, 2} and
          all(0 < s <= 300 for seconds in left_s.values() for s in seconds), "each case and each child has an alarm",
          [key for key, seconds in left_s.items() if 0 in seconds])


# What these call has too many sizes; the lies are about them.
TOO_MANY = ("write_every_size", "read_every_size", "small_writes")


def calls_of(backend, names):
    """What each case calls, a line for each function: the arguments, as "tell:args" has them."""
    ran = Ran(*chosen(names), GDRCOPY_BACKEND=backend, WRONG_LIE="tell:args")
    found = {}
    for word, number, depth, *call in ran.log:
        if word == "args" and number != "0":
            found.setdefault((int(number), int(depth), call[0]), Counter())[" ".join(call[1:])] += 1
    for (number, depth, function), args in sorted(found.items(), key=lambda item: item[0][:2]):
        name = names[number - 1]
        if name == "fork_while_busy":   # it calls as often as it can
            args = Counter(dict.fromkeys(args, 1))
        if len(args) > 24:
            total = sum(n * sum(map(int, re.findall(r"-?\d+", one))) for one, n in args.items())
            said = f"{len(args)} of {args.total()}, their numbers add up to {total}"
        else:
            said = "; ".join(one if n == 1 else f"{one} x{n}" for one, n in args.items())
        yield f"{backend} {name}{depth * ' child'} {function}: {said}".strip()


def calls(names):
    """What the cases call, with what arguments and how often, is what sanity_calls.txt says."""
    with open(os.path.join(os.path.dirname(__file__), "sanity_calls.txt"), encoding="utf-8") as f:
        want = [line for line in f.read().splitlines() if not line.startswith("#")]
    got = [*calls_of("dmabuf", [n for n in names if n not in TOO_MANY]), *calls_of("rm", ["overlapping_ranges", "errno_rm"])]
    diff = difflib.unified_diff(want, got, "sanity_calls.txt", "the cases", n=0, lineterm="")
    check(got == want, "what the cases call", "\n".join(diff))


def probes():
    """What the probe finds is what the run goes by."""
    def probe(lie, *args):
        return Ran(*args, WRONG_LIE=lie, **({} if lie.startswith("probe:") else {"WRONG_CASE": "0"}))
    ran = probe("probe:version", "-t", "type_strings")
    check(ran.lines[0] == "# libgdrapi 3.9, backend dmabuf (driver 5.7), persistent mappings" and ran.status == 0, "the versions", ran)
    ran = probe("probe:persistent", "-t", "callback_flag,access_after_free,type_strings")
    check(ran.lines[0].endswith(", traditional mappings") and list(ran.cases.values()) == ["failed", "passed", "failed"] and
          re.search("flag is 0, not 1", ran.out), "no persistent mappings: the flag must be 1", ran)
    ran = probe("probe:pcie", "-v", "-t", "force_pcie,mixed")
    check(ran.cases == {"force_pcie": "failed", "mixed": "passed"} and ran.notes["force_pcie"][0] == "not supported here: checking for EINVAL" and
          ran.notes["mixed"] == ["6 mappings, set of types 0x2"], "no forced PCIe", ran)
    ran = Ran("-v", "-t", "mixed")
    check(ran.notes["mixed"] == ["12 mappings, set of types 0x2"], "forced PCIe", ran)
    wants = {"gdrdrv": (["errno_rm", "fd_limit"], "i.page_size is 4096, not 65536"), "rm": (["fd_limit", "fd_passing"], "i.page_size is 4096, not 65536")}
    for backend, (skips, said) in wants.items():
        ran = probe(f"probe:{backend}", "-t", "info,errno_rm,fd_limit,fd_passing")
        check(f", backend {backend} (" in ran.lines[0] and sorted(ran.those("skipped")) == skips and
              all((n in skips) == (ran.why[n] is not None) for n in ran.cases), f"the backend is {backend}: what is skipped", ran)
        check(re.search(re.escape(said), ran.out), f"the backend is {backend}: its page", ran)
    ran = probe("probe:gdrdrv", "-t", "attributes")
    check("v[GDR_ATTR_USING_DMA_BUF_MMAP] is 1, not 0" in ran.out, "gdrdrv maps no dma-bufs", ran)
    ran = probe("probe:gdrdrv,driver=20", "-t", "versions")
    check(ran.cases == {"versions": "passed"}, "gdrdrv 2.0 is new enough", ran)
    ran = Ran("-t", "info", WRONG_LIE="info:mapped:type", CUDA_SIM_COHERENT="1")
    check("i.mapping_type is 3, not 2" in ran.out, "the mapping of a coherent GPU is cached", ran)
    bail = "Bail out! CUDA does not work, or gdr_open fails: set GDRCOPY_ENABLE_LOGGING=1 to see why"
    for lie in "probe:unknown", "end:crash", "end:0", "end:1":
        ran = probe(lie)
        check(ran.status == 1 and ran.lines[-2:] == [bail, "0 passed, 1 failed, 0 skipped"] and len(ran.lines) < 4, f"{lie}: there is no case", ran)
    ran = Ran(GDRCOPY_BACKEND="nonesuch", preload=False)
    check(ran.status == 1 and ran.lines[-2:] == [bail, "0 passed, 1 failed, 0 skipped"] and "this does not hold: e->g != NULL" in ran.lines[0],
          "gdr_open fails: there is no case", ran)


def other_library():
    """NVIDIA's library has none of what gdrapi_ext.h adds: neither a backend's name nor a build's."""
    folder = os.path.join(WORK, "other")
    os.mkdir(folder)
    path = without(("gdr_get_backend", "gdr_ext_version"), LIBRARY, folder)
    ran = Ran("-t", "info,attributes", preload=False, LD_LIBRARY_PATH=path)
    check(ran.status == 0 and ran.lines[0] == "# libgdrapi 2.6, backend dmabuf (driver 2.6), persistent mappings", "no gdr_get_backend: dmabuf", ran)
    ran = Ran("--version", preload=False, LD_LIBRARY_PATH=path)
    check(ran.status == 0 and ran.out == "gdrcopy_sanity with libgdrapi 2.6 of another maker\n", "--version with another library", ran)


try:
    everything = output()
    usual = [n for n in everything if n not in ("overlapping_ranges", "fd_passing", "errno_rm")]
    left(sites("dmabuf", usual), usual)
    sites("rm", ["errno_rm"])
    lies(everything)
    cuda()
    usage()
    terminal(everything)
    gpus()
    ends()
    watchdogs(usual)
    calls(usual)
    probes()
    other_library()
finally:
    shutil.rmtree(WORK)
done()
