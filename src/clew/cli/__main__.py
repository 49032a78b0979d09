"""Makes ``python -m clew.cli`` the same as ``clew``."""

from __future__ import annotations

import sys

from clew.cli import main

sys.exit(main())
