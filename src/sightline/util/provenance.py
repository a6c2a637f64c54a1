"""Which commit and which versions of packages are running, for files that record how they were produced."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

COMMIT_VARIABLE = "SIGHTLINE_COMMIT"  # names the commit if the package runs outside its repository


def source_commit() -> tuple[str | None, bool | None]:
    """The commit of the source tree, and whether the tree is unchanged; None outside the repository.

    A repository that does not track this file, such as one that contains the environment, does not count.
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


def package_version(name: str) -> str | None:
    """The installed version of a package, or None.

    >>> package_version("no-such-package") is None
    True
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return None


VERSION = package_version("sightline") or "0+unknown"  # a source tree that is not installed


def boot_id() -> str:
    """A short word that changes whenever the machine starts; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def machine_name(device_type: str) -> str:
    """The name of the current GPU, or the processor and its threads in use."""
    import torch

    if device_type == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} cpu {torch.get_num_threads()} threads"
