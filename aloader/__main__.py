"""`python -m aloader`."""

import sys

from aloader.cli import main

sys.exit(main())
