"""The command `python -m switchgear`."""

import sys

from switchgear_tools.cli import main

sys.exit(main())
