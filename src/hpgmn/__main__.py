"""``python -m hpgmn``: the same as the command ``hpgmn``."""

import sys

from hpgmn.cli import main

if __name__ == "__main__":
    sys.exit(main())
