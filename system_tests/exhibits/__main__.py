"""Runs exhibits, and writes the table of their index.

Owns the command line. It must never judge a run. Invariant: the exit code is 0 only if every run is
as its page says. Run::

    python -m system_tests.exhibits                  all, with all versions
    python -m system_tests.exhibits NAME --show      one, with what it prints
    python -m system_tests.exhibits --index          only write the table
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from system_tests.exhibits.page import INDEX, Exhibit, exhibits, with_table
from system_tests.exhibits.running import problems, run_exhibit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the exhibits of the command line, or all of them."""
    known = exhibits()
    parser = argparse.ArgumentParser(prog="python -m system_tests.exhibits")
    parser.add_argument("name", nargs="*", help=f"by default all: {', '.join(_names(known))}")
    parser.add_argument("--show", action="store_true", help="print all that a run shows")
    parser.add_argument("--index", action="store_true", help="write the table of the index")
    options = parser.parse_args(arguments)
    if unknown := set(options.name) - set(_names(known)):
        parser.error(f"no such exhibit: {', '.join(unknown)}")
    if options.index:
        INDEX.write_text(with_table(INDEX.read_text(), known))
        return 0
    failed = False
    for exhibit in known:
        if options.name and exhibit.name not in options.name:
            continue
        for version in exhibit.versions:
            started = time.monotonic()
            run = run_exhibit(exhibit, version)
            different = problems(exhibit, version, run)
            failed = failed or bool(different)
            if options.show:
                print(run.text())
            took = f"{time.monotonic() - started:.1f} s"
            found = ", ".join(run.found()) or "nothing found"
            print(f"{exhibit.name} {version}: {found} ({took})")
            print("".join(f"  {line}\n" for line in different), end="")
    return int(failed)


def _names(known: Sequence[Exhibit]) -> list[str]:
    return [exhibit.name for exhibit in known]


if __name__ == "__main__":
    sys.exit(main())
