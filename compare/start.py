"""Where the command begins: stopping it is quiet from its first moment on.

The command line takes a tenth of a second to import; what is imported here takes none.
"""

import os
import signal
import sys
from types import FrameType

STOPPED = 130


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"gemm-tracks: stopped\n")
    os._exit(STOPPED)


def main() -> int:
    """Import the command line and run it; the exit status."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else the caller wants it ignored
    if ours:
        signal.signal(signal.SIGINT, _stop)
    from compare.cli import main as run

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run()
    finally:
        if ours:
            signal.signal(signal.SIGINT, _stop)


if __name__ == "__main__":
    sys.exit(main())
