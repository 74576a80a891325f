"""NVIDIA's own FP16 GEMMs in the DSL, compiled ahead of time from nvidia-cutlass-operators (BSD-3-Clause).

Two kernels of that package, both C = A @ B without alpha and beta: ``Sm90StaticPersistentGemmKernel`` (wgmma and TMA,
one producer warp, consumer warpgroups) and ``Sm80TensorOpGemmKernel`` (mma.sync and cp.async), the public Ampere
example. Their files are loaded by path: importing the package as a whole needs torch, which its base install does not
bring, and looks for a device.

Runs in the child process of ``emit.py`` only: importing it imports the DSL.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import cutlass.cute as cute
from cutlass import Float16, Float32
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from cutlass_ref.cute.emit import OPERATORS, Program

MAX_ACTIVE_CLUSTERS = 1
"""A constant of the host code alone, which nobody runs: the catalog lays out its own grid."""


def implementation(file_name: str, class_name: str) -> tuple[Any, Path]:
    """(class, file) of one of the package's kernels."""
    files = importlib.metadata.files(OPERATORS) or []
    path = next((Path(str(file.locate())) for file in files if file.name == file_name), None)
    if path is None:
        raise RuntimeError(f"{OPERATORS} has no file {file_name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, class_name), path


def operand(rows: Any, columns: Any, row_major: bool, name: str) -> Any:
    """A 1 x rows x columns operand whose extents and leading dimension are known at launch."""
    pitch = cute.sym_int64(divisibility=8, symbol=f"ld{name}")
    stride = (0, pitch, 1) if row_major else (0, 1, pitch)
    return make_fake_tensor(Float16, (1, rows, columns), stride, assumed_align=16)


def compile_program(program: Program, scratch: str) -> dict[str, Any]:
    """PTX, program text, layouts and facts of one build; see :class:`cutlass_ref.cute.emit.Emitted`."""
    options = dict(program.options)
    layout = options["layout"]
    lines: list[str] = []
    if options["arch"] == 90:
        kind, path = implementation("sm90_static_persistent_impl.py", "Sm90StaticPersistentGemmKernel")
        maps: list[dict[str, Any]] = []
        kernel = hopper(kind, lines, maps)(Float32, options["tile"], options["cluster"])
        further: tuple[Any, ...] = (MAX_ACTIVE_CLUSTERS,)
    else:
        kind, path = implementation("sm80_tensorop_gemm_impl.py", "Sm80TensorOpGemmKernel")
        kernel = ampere(kind, lines)(Float16, Float16, Float16, Float32)
        further = ()
    kind.kernel.set_name_prefix(program.entry, remove_cutlass_symbol=not program.marked, keep_mangled_name=False)
    m, n, k = (cute.sym_int32(symbol=name) for name in "mnk")
    compiled = cute.compile(
        kernel,
        operand(m, k, layout[0] == "r", "a"),
        operand(k, n, layout[1] == "r", "b"),
        operand(m, n, True, "c"),
        *further,
        make_fake_stream(),
        options=f"--keep-ptx --dump-dir={scratch} --gpu-arch=sm_90a",
    )
    if options["arch"] == 90:
        facts = {
            "threads": kernel.threads_per_cta,
            "stages": kernel.ab_stage,
            "store_stages": kernel.epi_stage,
            "store_tile": list(kernel.epi_tile),
            "tensor_maps": maps,
        }
    else:
        facts = {"threads": kernel.num_threads, "stages": kernel.num_stages, "tile": list(kernel.cta_tiler)}
    return {
        "ptx": compiled.__ptx__,
        "python": path.read_text(encoding="utf-8"),
        "layouts": "\n".join(lines) + "\n",
        "facts": facts,
    }


def hopper(kind: Any, lines: list[str], maps: list[dict[str, Any]]) -> Any:
    """The package's Hopper kernel, which writes down its layouts and tensor maps while it is compiled."""

    class Described(kind):  # type: ignore[misc]
        def _setup_attributes(self) -> None:
            super()._setup_attributes()
            lines[:] = [
                f"A in shared memory ((m), (k), stage): {self.a_smem_layout_staged}",
                f"B in shared memory ((n), (k), stage): {self.b_smem_layout_staged}",
                f"C on its way out ((m), (n), stage): {self.epi_smem_layout_staged}",
                f"C leaves in tiles of (m, n): {self.epi_tile}",
                f"blocks of a cluster over (m, n, k): {self.cta_layout_mnk}",
                f"MMA: warpgroups over (m, n, k): {self.atom_layout_mnk}",
                f"MMA: C's elements of a thread: {self.tiled_mma.tv_layout_C}",
            ]

        @staticmethod
        def _make_tma_atoms_and_tensors(*given: Any) -> Any:
            made = kind._make_tma_atoms_and_tensors(*given)
            maps.append(tensor_map(str(made[0].type)))
            return made

        @staticmethod
        def _make_tma_store_atoms_and_tensors(*given: Any) -> Any:
            made = kind._make_tma_store_atoms_and_tensors(*given)
            maps.append(tensor_map(str(made[0].type)))
            return made

    return Described


def ampere(kind: Any, lines: list[str]) -> Any:
    """The package's Ampere kernel, which writes down its layouts while it is compiled."""

    class Described(kind):  # type: ignore[misc]
        def _make_smem_layout_AB(self, *given: Any) -> Any:
            made = super()._make_smem_layout_AB(*given)
            lines.append(f"{'B' if lines else 'A'} in shared memory (row, k, stage): {made}")
            return made

        def _make_smem_layout_C(self, *given: Any) -> Any:
            made = super()._make_smem_layout_C(*given)
            lines.append(f"C on its way out (m, n): {made}")
            return made

        def _make_gmem_tiled_copy_AB(self, *given: Any) -> Any:
            made = super()._make_gmem_tiled_copy_AB(*given)
            operand = "A" if len(lines) == 3 else "B"
            lines.append(f"copy of {operand}: thread and value over the tile: {made.layout_tv_tiled}")
            return made

    return Described


def tensor_map(atom: str) -> dict[str, Any]:
    """Box (elements, innermost first) and multicast of a TMA atom, as the DSL states its type."""
    box = re.search(r'tma_gbasis = <"\(([\d,]+)\)', atom)
    if box is None:
        raise RuntimeError(f"the DSL's TMA atom states no box: {atom}")
    return {"box": [int(extent) for extent in box[1].split(",")], "atom": atom}
