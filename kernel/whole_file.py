"""Files that are written whole or not at all: beside their place first, then renamed into it."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes ``path``'s place at the block's end; where the block fails the old file stays.

    A link keeps pointing where it did, and the file its mode. A pipe or a device is written to as it is.

    Raises:
        OSError: it cannot be written; names ``path``, whichever file the system spoke of.
    """
    place = Path(os.path.realpath(path))
    direct = place.exists() and not place.is_file()
    # Short whatever the file is called: a name ends at 255 bytes.
    partial = place if direct else place.with_name(f".gemm-tracks-{os.getpid()}-{threading.get_ident()}.partial")
    try:
        yield partial
        if not direct:
            if place.exists():
                shutil.copymode(place, partial)
            partial.replace(place)
    except OSError as error:
        if error.strerror is None:
            raise OSError(f"{path}: {error}") from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        if not direct:
            partial.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` in place of what ``path`` holds, or raise OSError and leave that."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """The same for text, as UTF-8."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
