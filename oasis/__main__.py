"""`python -m oasis` is the command line."""

import sys

from oasis.cli import main

if __name__ == "__main__":
    sys.exit(main())
