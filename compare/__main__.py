"""``python -m compare`` is ``gemm-tracks``."""

import sys

from compare.start import main

sys.exit(main())
