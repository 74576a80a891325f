"""``python -m compare`` is ``gemm-tracks``."""

import sys

from compare.cli import main

sys.exit(main())
