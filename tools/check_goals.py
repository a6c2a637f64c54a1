"""Whether measured speeds meet the goals of this project: `python tools/check_goals.py results/FILE.json ...`.

The files are written by `sightline bench --preset goals` and `--preset soft`. Prints every run as in
docs/performance_tables.md, next to the figures of the public code. The exit status is 1 if a goal is not met.
"""

import argparse
import sys
from pathlib import Path

from tables.bench import section
from tables.goals import evaluate

from sightline.bench import Report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    goals = []
    for path in parser.parse_args(arguments).files:
        report = Report.read(path)
        goals += evaluate(report.rows, report.findings)
        print(section(path, report), end="\n\n")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
