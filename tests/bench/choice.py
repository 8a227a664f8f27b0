# SPDX-License-Identifier: MIT
"""choice.py FILE...: the library's choice beside each single way to make a copy.

A FILE is what `gdrcopy_copylat -m pause --csv` prints. It is named WAY-ROUND.csv. The
library's choice is the way auto. The table has the least of the rounds' medians, in
microseconds, and how long auto takes beside the best of the others. It is the least, for a
machine has slower times, for all ways alike: on an H200 cuMemcpy took 10 to 30 us for 4 KiB
after 2 ms, by the process.
"""
import csv
import sys
from pathlib import Path

LEAST = {"read": 4096, "write": 65536}  # bytes from which the library chooses


def load(names):
    """{(op, bytes, pause): {way: [us of each round]}}"""
    cells = {}
    for name in names:
        way = Path(name).stem.rsplit("-", 1)[0]
        with open(name, encoding="ascii") as file:
            for row in csv.DictReader(file):
                if row["who"] != "gdrcopy" or int(row["size"]) < LEAST[row["op"]]:
                    continue
                cell = cells.setdefault((row["op"], int(row["size"]), row["mode"]), {})
                cell.setdefault(way, []).append(float(row["p50_ns"]) / 1000)
    return cells


def show(op, cells):
    ways = sorted({way for cell in cells.values() for way in cell} - {"auto"})
    near = 0
    print(f"\n| {op}, bytes | pause | " + " | ".join(ways) + " | auto | auto / best |")
    print("| ---: | --- |" + " ---: |" * (len(ways) + 2))
    for (_, size, pause), cell in cells.items():
        us = {way: min(rounds) for way, rounds in cell.items()}
        ratio = us["auto"] / min(us[way] for way in ways)
        near += ratio <= 1.1
        print(f"| {size} | {pause} | " + " | ".join(f"{us[way]:.3g}" for way in ways)
              + f" | {us['auto']:.3g} | {ratio:.2f} |")
    print(f"\n{op}: auto is within 10 % of the best way, or ahead of it, in {near} of {len(cells)}")


def main():
    cells = load(sys.argv[1:])
    if not cells:
        sys.exit(__doc__)
    for op in LEAST:
        show(op, {key: cell for key, cell in cells.items() if key[0] == op})


main()
