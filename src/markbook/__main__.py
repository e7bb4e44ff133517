"""`python -m markbook`."""

import sys

from markbook.cli import main

sys.exit(main())
