"""The console script `sightline`.

Importing the package registers its models with timm, and that imports torch: seconds that `sightline --help` need not
take. The command line is therefore imported without it; a command imports the models when it runs.
"""

import os

REGISTER = "SIGHTLINE_REGISTER"  # see sightline/__init__.py


def main() -> int:
    """Run the command line; returns the exit status."""
    given = os.environ.get(REGISTER)
    os.environ[REGISTER] = "0"
    from sightline.cli.main import main as run

    if given is None:
        del os.environ[REGISTER]  # processes that a command starts are not concerned
    else:
        os.environ[REGISTER] = given
    return run()
