"""`python -m graft`: the command line."""

import sys

from graft.cli import main

sys.exit(main())
