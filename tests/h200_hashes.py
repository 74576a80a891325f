"""Hashes of what FP32 kernels compute on a GPU, for the PTX machine to be compared with.

On a machine with a GPU, with GEMM_TRACKS_BUNDLE where sources cannot be built or emitted:

    python -m tests.h200_hashes tests/data/h200_hashes.json

tests/test_machine_h200.py computes the same cases on the CPU.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernel.contract import Kernel, Problem
from kernel.errors import GemmTracksError

RECORDED = Path(__file__).parent / "data" / "h200_hashes.json"
SPECIAL = np.array([np.nan, np.inf, -np.inf, 1e-42, -1e-40, 1.1754944e-38, 3e38, -3e38, 0.0, -0.0], np.float32)


@dataclass(frozen=True)
class Case:
    """One GEMM with fixed inputs."""

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    special: bool = False
    offset: int = 0
    """Elements by which bases are shifted: 1 forces the builds that need no alignment."""

    @property
    def name(self) -> str:
        """The key in the recorded file."""
        text = f"{self.m}x{self.n}x{self.k}"
        if (self.alpha, self.beta) != (1.0, 0.0):
            text += f",alpha={self.alpha:g},beta={self.beta:g}"
        return text + (",special" if self.special else "") + (f",offset={self.offset}" if self.offset else "")

    def problem(self, kernel: Kernel) -> Problem:
        """The case as a problem in the kernel's first layout; leading dimensions are multiples of four."""
        layout = kernel.layouts[0]
        width_a = self.k if layout[0] == "r" else self.m
        width_b = self.n if layout[1] == "r" else self.k
        align = 4 * self.offset or 256
        return Problem(
            m=self.m,
            n=self.n,
            k=self.k,
            layout=layout,
            lda=-(-width_a // 4) * 4,
            ldb=-(-width_b // 4) * 4,
            ldc=-(-self.n // 4) * 4,
            alpha=self.alpha,
            beta=self.beta,
            align_a=align,
            align_b=align,
            align_c=align,
        )

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, B and the old C: uniform in [-1, 1), with special values sprinkled in where asked for."""
        generator = np.random.default_rng([self.m, self.n, self.k])
        shapes = ((self.m, self.k), (self.k, self.n), (self.m, self.n))
        a, b, c = (generator.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
        if self.special:
            for array in (a, b, c):
                at = generator.random(array.shape) < 1 / max(64, self.k)
                array[at] = generator.choice(SPECIAL, int(at.sum()))
        return a, b, c


CASES = (
    Case(1, 1, 1),
    Case(17, 33, 5),
    Case(35, 79, 19),
    Case(64, 64, 64),
    Case(100, 100, 17, offset=1),
    Case(128, 128, 128),
    Case(129, 65, 40, alpha=0.37, beta=-1.25),
    Case(130, 130, 35, special=True),
    Case(127, 129, 8, offset=1),
    Case(256, 192, 96, alpha=-1.5, beta=2.0, special=True),
    Case(300, 257, 77),
    Case(97, 140, 255, special=True),
    Case(259, 130, 33, alpha=0.1, beta=0.7, offset=1),
    Case(66, 514, 24),
)


def kernels() -> list[Kernel]:
    """Every FP32 SIMT kernel whose results are compared: the ladder, and CUTLASS's tiles and layouts."""
    from cutlass_ref.catalog import KERNELS as CUTLASS
    from handwritten.catalog import KERNELS as LADDER

    tiles = [k for k in CUTLASS if k.track == "fp32_simt" and k.name.endswith("_s1_rr")]
    others = [k for k in CUTLASS if k.name.startswith("cutlass_simt_128x128x5_s1_") and k not in tiles]
    return [k for k in LADDER if k.track == "fp32_simt"] + tiles + others


def digest(c: np.ndarray) -> str:
    """SHA-256 of C's bytes, m x n without padding."""
    return hashlib.sha256(np.ascontiguousarray(c, np.float32).tobytes()).hexdigest()


def on_gpu(kernel: Kernel, case: Case) -> np.ndarray:
    """C as the GPU computes it."""
    import cupy

    from kernel.contract import Pointers
    from kernel.launch import prepare

    problem = case.problem(kernel)
    a, b, c = case.inputs()
    laid = []
    for array, letter, pitch in (
        (a, problem.layout[0], problem.lda),
        (b, problem.layout[1], problem.ldb),
        (c, "r", problem.ldc),
    ):
        rows = array if letter == "r" else array.T
        padded = np.zeros((rows.shape[0], pitch), np.float32)
        padded[:, : rows.shape[1]] = rows
        flat = cupy.zeros(padded.size + case.offset, cupy.float32)
        flat[case.offset :] = cupy.asarray(padded.reshape(-1))
        laid.append(flat)
    addresses = [int(flat.data.ptr) + 4 * case.offset for flat in laid]
    pointers = Pointers(a=addresses[0], b=addresses[1], c=addresses[2])
    stream = cupy.cuda.get_current_stream()
    prepare(kernel, problem, pointers).enqueue(stream.ptr)
    stream.synchronize()
    output = cupy.asnumpy(laid[2])[case.offset :].reshape(problem.m, problem.ldc)
    return output[:, : problem.n].copy()


def record() -> dict[str, Any]:
    """Hashes of every case of every kernel that can be launched here, with what cannot and why."""
    import cupy

    found: dict[str, dict[str, str]] = {}
    skipped: dict[str, str] = {}
    for kernel in kernels():
        try:
            found[kernel.name] = {
                case.name: digest(on_gpu(kernel, case))
                for case in CASES
                if kernel.rejects(case.problem(kernel)) is None
            }
        except GemmTracksError as error:
            skipped[kernel.name] = str(error)
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    git = shutil.which("git")
    asked = subprocess.run([git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False) if git else None
    revision = asked.stdout.strip() if asked else ""
    return {
        "gpu": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "revision": revision,
        "hashes": found,
        "skipped": skipped,
    }


def main() -> None:
    """Write the hashes to the path given, or to where the test looks for them."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED
    result = record()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    count = sum(len(cases) for cases in result["hashes"].values())
    print(f"{path}: {count} hashes of {len(result['hashes'])} kernels on {result['gpu']}")  # noqa: T201
    for name, reason in result["skipped"].items():
        print(f"left out {name}: {reason}")  # noqa: T201


if __name__ == "__main__":
    main()
