"""`python -m sightline` is the command `sightline`."""

import sys

from sightline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
