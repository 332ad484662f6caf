"""`python -m switchgear`."""

import sys

from switchgear.cli import main

sys.exit(main())
