"""Find a C++ compiler for packages, one that links C++'s standard library and does not copy it into what it makes.

A package with a copy in it crashes when it is loaded: torch has loaded the library already, and the two share locales.
Compilers do so where the shared library is missing, as in small container images.
"""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCE = "#include <locale>\nstd::locale made() { return std::locale(); }\n"
SHARED = (b"libstdc++.so", b"libc++.so")  # GNU's and LLVM's
OTHERS = ("g++", "c++", "clang++")


def choose_compiler(preferred: Sequence[str], others: Sequence[str] = OTHERS) -> str | None:
    """The first compiler that links the shared library; None if none does, or the first preferred one does.

    Args:
        preferred: commands that are used anyway.
        others: commands to use in their place.
    """
    found = next((command for command in (*preferred, *others) if links_shared(command)), None)
    return None if found in preferred[:1] else found


def links_shared(command: str) -> bool:
    """Whether a compiler exists and links C++'s standard library as a shared one."""
    with TemporaryDirectory() as folder:
        made = Path(folder, "made.so")
        try:
            words = shlex.split(command)
            arguments = [*words, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(made)]
            subprocess.run(arguments, input=SOURCE, text=True, capture_output=True, timeout=60, check=True)
            content = made.read_bytes()
        except (OSError, ValueError, subprocess.SubprocessError):
            return False
    return any(name in content for name in SHARED)
