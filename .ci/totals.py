"""Add up pytest's JUnit reports and say what was left out.

Owns the last word of a test run. Prints one line of totals per report and every skipped test with
its reason; exits with 1 if anything failed, or if CI=true and anything was skipped.
"""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def main(reports: list[str]) -> int:
    """Print the totals of ``reports``; return the exit code."""
    failed = skipped = 0
    for report in reports:
        if not Path(report).exists():
            print(f"{report}: no report was written")
            return 1
        for suite in ET.parse(report).getroot().iter("testsuite"):
            count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors")}
            left_out = list(suite.iter("skipped"))
            bad = count["failures"] + count["errors"]
            passed = count["tests"] - bad - len(left_out)
            seconds = float(suite.get("time", 0))
            print(
                f"{Path(report).stem}: {passed} passed, {bad} failed, "
                f"{len(left_out)} left out, {seconds:.0f} s"
            )
            for case in suite.iter("testcase"):
                for skip in case.iter("skipped"):
                    where = f"{case.get('classname')}::{case.get('name')}"
                    print(f"  left out: {where}: {skip.get('message')}")
            failed += bad
            skipped += len(left_out)
    if skipped and os.environ.get("CI") == "true":
        print("in CI no test may be left out")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
