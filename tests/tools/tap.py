# SPDX-License-Identifier: MIT
"""tap.py - the lines and the end of a test that prints TAP."""

import sys

passed = failed = 0


def check(ok, name, note=""):
    """One result; the note's last lines say why it failed."""
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
    print(f"{'ok' if ok else 'not ok'} {passed + failed} - {name}")
    if not ok and note != "":
        print("".join(f"# {line}\n" for line in str(note).splitlines()[-30:]), end="")
    sys.stdout.flush()


def done():
    """Ends the program. It fails also if nothing was checked."""
    print(f"1..{passed + failed}\n{passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed or not passed else 0)
