"""Machine code as text. PTX is assembled first and never shown as SASS."""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
from pathlib import Path

from kernel.build import content_folder
from kernel.errors import BuildError, CatalogError
from kernel.toolchain import Tool, find

KEPT = "sass.txt.gz"


def _run(tool: Tool, *arguments: str) -> str:
    done = subprocess.run([str(tool.path), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        detail = (done.stderr or done.stdout).strip()
        raise BuildError(
            f"{tool} refused {arguments[-1]}: {detail.splitlines()[0] if detail else 'no message'}", detail
        )
    return done.stdout


def entries(cubin: Path) -> tuple[str, ...]:
    """Entry symbols of a cubin."""
    return tuple(
        re.findall(r"^\s*Function\s+([\w$]+):", _run(find("cuobjdump"), "-res-usage", str(cubin)), re.MULTILINE)
    )


def sass(cubin: Path, entry: str | None = None) -> str:
    """nvdisasm's listing of a cubin, or of one entry of it.

    Raises:
        CatalogError: the cubin has no such entry.
        BuildError: the file is no cubin.
        MissingToolError: nvdisasm is not there.
    """
    listing = _listing(cubin)
    if entry is None:
        return listing
    for section in re.split(r"(?m)^(?=//-+ \.text\.)", listing):
        header = re.match(r"//-+ \.text\.(\S+)", section)
        if header and header[1] == entry:
            return section
    raise CatalogError(f"{cubin.name} has no entry {entry}; it has {', '.join(entries(cubin)) or 'none'}")


def _listing(cubin: Path) -> str:
    """nvdisasm's text, which takes it half a second and is kept under the cubin's bytes and the tool's version."""
    tool = find("nvdisasm")

    def listed() -> str:
        return _run(tool, "-c", str(cubin))

    def keep(folder: Path) -> None:
        (folder / KEPT).write_bytes(gzip.compress(listed().encode("utf-8"), compresslevel=6, mtime=0))

    try:
        key = f"{tool.version}\n{hashlib.sha256(cubin.read_bytes()).hexdigest()}"
        kept = (content_folder("sass/listing", key, keep) / KEPT).read_bytes()
        return gzip.decompress(kept).decode("utf-8")
    except (OSError, BuildError):  # no such file, a file that is no cubin, or a cache that cannot be written
        return listed()


def assemble(ptx: Path, arch: str, cubin: Path) -> None:
    """Assemble a PTX file for ``arch`` (such as sm_90a) into ``cubin``."""
    _run(find("ptxas"), f"-arch={arch}", "-o", str(cubin), str(ptx))
