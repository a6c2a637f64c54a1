"""Whether measured speeds meet the goals of this project: `python tools/check_goals.py results/FILE.json ...`.

The files are written by `sightline bench --preset goals`, `--preset soft` and `--preset plain`. Prints every run as in
docs/performance_tables.md, next to the figures of the public code; `--short` prints the goals only. Goals of plain
calls are evaluated over all files of that preset together. The exit status is 1 if a goal is not met, 2 if a file
cannot be read.
"""

import argparse
import sys
from pathlib import Path

from tables.bench import is_plain, section
from tables.goals import Goal, evaluate, goal_table
from tables.markdown import table
from tables.plain_goals import evaluate_plain

from sightline.bench import Report
from sightline.util.errors import FileError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--short", action="store_true", help="goals only")
    options = parser.parse_args(arguments)
    goals: list[Goal] = []
    try:
        reports = {path: Report.read(path) for path in options.files}
    except (OSError, FileError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path, report in reports.items():
        goals += [] if is_plain(report) else evaluate(report.rows, report.findings)
        if not options.short:
            print(section(path, report), end="\n\n")
    if plain := [report for report in reports.values() if is_plain(report)]:
        found = evaluate_plain(plain)
        goals += found
        if not options.short:
            print(_goals("Goals of plain calls", found))
    if options.short:
        print(_goals("Goals", goals))
    return 0 if all(goal.met for goal in goals) else 1


def _goals(title: str, goals: list[Goal]) -> str:
    shown = goal_table(goals)
    return f"### {title}\n\n{sum(g.met for g in goals)} of {len(goals)} met.\n\n{table(shown.titles, shown.rows, 3)}"


if __name__ == "__main__":
    sys.exit(main())
