"""Which commit runs, for files that say what made them."""

import os
import subprocess
from pathlib import Path

COMMIT_VARIABLE = "SIGHTLINE_COMMIT"  # names the commit where the package runs outside of its repository


def source_commit() -> tuple[str | None, bool | None]:
    """The commit of the source tree, and whether it was unchanged; None where there is no such repository.

    A repository that does not track this file, such as one around an environment, is another's.
    """
    if given := os.environ.get(COMMIT_VARIABLE):
        return given, None
    here = Path(__file__).resolve()
    commands = (
        ("ls-files", "--error-unmatch", here.name),
        ("rev-parse", "HEAD"),
        ("status", "--porcelain", "--untracked-files=no", "--", ".."),
    )
    answers = []
    for command in commands:
        try:
            done = subprocess.run(
                ["git", *command], cwd=here.parent, capture_output=True, text=True, check=True, timeout=5
            )
        except (OSError, subprocess.SubprocessError):
            return None, None
        answers.append(done.stdout.strip())
    return answers[1], not answers[2]
