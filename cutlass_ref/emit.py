"""Asks nvidia-cutlass for C++ source: the only file that imports cutlass_cppgen.

The package opens a database in the current folder when imported, and looks for a device and nvcc. So it
runs in a child process: scratch folder, compiler version and device stated beforehand, no GPU visible.
The child returns text; nothing stays. Its sm90 lists come out of sets of objects, in an order that
changes from run to run even with a fixed hash seed (two outcomes of one seed seen 2026-11-30), and its
default plan with them; so nothing is ever taken by its place in a list: every kernel is asked for by a
whole description.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cutlass_ref.recipe import SCHEDULERS, SCHEDULES, Recipe
from kernel.build import content_folder
from kernel.errors import BuildError, MissingToolError

PACKAGE = "nvidia-cutlass"
VERSION = "4.2.0.0"
HEADERS = f"{PACKAGE} {VERSION}"
HASH_SEED = "0"
"""PYTHONHASHSEED of the child: it takes one source of disorder out, not all of them."""
NVCC_VERSION = "13.0"
"""What the package is told: it lists kernels by compiler version, and these are listed from 12.4 on."""

_one_at_a_time = threading.Lock()
"""Parallel builds wait for one child that emits the whole catalog, rather than start one each."""


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """The C++ of one kernel. ``name`` is the package's own, which is also the entry symbol."""

    name: str
    includes: tuple[str, ...]
    type_text: str
    """Definitions that end in ``struct <name>_type``."""
    kernel_text: str
    """The ``extern "C" __global__`` function."""
    listed: bool
    """Whether the package lists this description among those it generates for the layout."""

    @property
    def source(self) -> str:
        """One translation unit for the device."""
        lines = "".join(f"#include <{include}>\n" for include in self.includes)
        return f"// Emitted by {HEADERS} through its Python interface.\n{lines}{self.type_text}{self.kernel_text}"


def include_folders() -> tuple[Path, ...]:
    """Folders with the C++ headers of the package.

    Raises:
        MissingToolError: the package is not installed, or in another version.
    """
    root = package_folder() / "source"
    return root / "include", root / "tools" / "util" / "include"


@functools.cache
def package_folder() -> Path:
    """Folder of cutlass_library, which brings the headers.

    Raises:
        MissingToolError: the package is not installed, or in another version than the catalog was written for.
    """
    cure = f"pip install {PACKAGE}=={VERSION} (nvidia-cutlass-dsl, whose import name is cutlass, is another package)"
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise MissingToolError(f"{PACKAGE} (import name cutlass_cppgen) is not installed; {cure}") from None
    if version != VERSION:
        raise MissingToolError(f"{PACKAGE} {version} is installed; the catalog was written for {VERSION}: {cure}")
    origins = {name: importlib.util.find_spec(name) for name in ("cutlass_cppgen", "cutlass_library")}
    for name, spec in origins.items():
        if spec is None or spec.origin is None:
            raise MissingToolError(f"{PACKAGE} {version} is installed, but {name} cannot be found; {cure}")
    library = origins["cutlass_library"]
    assert library is not None
    assert library.origin is not None
    return Path(library.origin).parent


def missing() -> str:
    """Why nothing can be emitted here, or empty; file look-ups only."""
    try:
        package_folder()
    except MissingToolError as error:
        return str(error)
    return ""


def emit(recipe: Recipe) -> Emitted:
    """The C++ of one kernel, from a cache that is filled for the whole catalog at once.

    Raises:
        MissingToolError: nvidia-cutlass is not installed and the text was never emitted here.
        BuildError: the package refused the description; says with what words.
    """
    from cutlass_ref.catalog import recipes

    known = recipes()
    with _one_at_a_time:
        return _emitted(known if recipe in known else (recipe,))[recipe.text()]


@functools.cache
def _emitted(recipes: tuple[Recipe, ...]) -> dict[str, Emitted]:
    """Emit recipes in one child process (the package needs seconds to list its kernels), or read the cache."""
    key = json.dumps([HEADERS, HASH_SEED, NVCC_VERSION, Path(__file__).read_text(encoding="utf-8")])
    texts = "\n".join(recipe.text() for recipe in recipes)

    def make(folder: Path) -> None:
        answer = run_child({"do": "emit", "recipes": [asdict(recipe) for recipe in recipes]})
        (folder / "emitted.json").write_text(json.dumps(answer, indent=1), encoding="utf-8")

    folder = content_folder("emitted/cutlass", f"{key}\n{texts}", make)
    answers = json.loads((folder / "emitted.json").read_text(encoding="utf-8"))
    found: dict[str, Emitted] = {}
    for recipe, answer in zip(recipes, answers, strict=True):
        answer["includes"] = tuple(answer["includes"])
        found[recipe.text()] = Emitted(**answer)
    return found


def default_facts(dtype: str, *, simt: bool = False) -> dict[str, Any]:
    """What the package picks when only a data type and row-major layouts are given, this time.

    Returns its name, the tile of one block, cluster, stages and C++.
    """
    answer: dict[str, Any] = run_child({"do": "default", "dtype": dtype, "simt": simt})
    return answer


def run_child(request: dict[str, Any]) -> Any:
    """Run :func:`child` on a request in a process of its own; its answer.

    Raises:
        MissingToolError: nvidia-cutlass is not installed.
        BuildError: the package raised; carries its words, and its traceback as the log.
    """
    package_folder()
    places = [str(Path(place).absolute()) for place in sys.path if place]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": HASH_SEED,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), *places]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    # Another checkout of CUTLASS that the variable names would not be what the catalog was written for.
    environment.pop("CUTLASS_PATH", None)
    with tempfile.TemporaryDirectory(prefix="gemm-tracks-emit-") as scratch:
        done = subprocess.run(
            [sys.executable, "-c", "from cutlass_ref import emit; emit.child()"],
            input=json.dumps({**request, "answer": str(Path(scratch) / "answer.json")}),
            capture_output=True,
            text=True,
            cwd=scratch,
            env=environment,
            check=False,
        )
        answer = Path(scratch) / "answer.json"
        if done.returncode != 0 or not answer.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BuildError(f"{HEADERS} could not emit: {last}", done.stderr)
        return json.loads(answer.read_text(encoding="utf-8"))


def child() -> None:
    """Entry of the child process: a request on standard input, the answer in the file it names."""
    request = json.loads(sys.stdin.read())
    if request["do"] == "default":
        answer: Any = _default_facts(request["dtype"], request["simt"])
    else:
        answer = [_emit_one(Recipe(**_tuples(fields))) for fields in request["recipes"]]
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


@functools.cache
def _package() -> Any:
    """cutlass_cppgen, told the compiler and the device before its first plan so that it looks for neither."""
    import cutlass_cppgen
    from cutlass_cppgen.library_defaults import OptionRegistry

    cutlass_cppgen._nvcc_version = NVCC_VERSION
    cutlass_cppgen._option_registry = OptionRegistry(90)
    return cutlass_cppgen


def _plan(recipe: Recipe) -> Any:
    """The package's plan with data types, layouts, opcode class and math operation of a recipe."""
    package = _package()
    types = {"float32": package.DataType.f32, "float16": package.DataType.f16}
    layouts = {"r": package.LayoutType.RowMajor, "c": package.LayoutType.ColumnMajor}
    plan = package.op.Gemm(
        element_A=types[recipe.dtype_in],
        element_B=types[recipe.dtype_in],
        element_C=types[recipe.dtype_out],
        element_D=types[recipe.dtype_out],
        # Left out, the package accumulates FP16 operands in FP16.
        element_accumulator=package.DataType.f32,
        layout_A=layouts[recipe.layout[0]],
        layout_B=layouts[recipe.layout[1]],
        layout_C=package.LayoutType.RowMajor,
        cc=90,
        kernel_cc=recipe.arch,
    )
    # Without the opcode class a float32 plan is a TF32 Tensor Core kernel.
    plan.opclass = package.OpcodeClass.Simt if recipe.opclass == "simt" else package.OpcodeClass.TensorOp
    if recipe.three_pass:
        plan.math_operation = package.MathOperation.multiply_add_fast_f32
    elif recipe.opclass == "tensorop" and recipe.arch == 80:
        plan.math_operation = package.MathOperation.multiply_add
    if recipe.arch == 80:
        functors = {0: "ThreadblockSwizzleStreamK"}
        name = functors.get(recipe.swizzle, f"IdentitySwizzle{recipe.swizzle}")
        plan.swizzling_functor = getattr(package.swizzle, name)
    return plan


def _wanted(recipe: Recipe) -> dict[str, Any]:
    """The package's tile dictionary for a recipe. Its sm90 threadblock_shape is the tile of the whole cluster."""
    package = _package()
    m, n, k = recipe.block
    wanted: dict[str, Any] = {
        "threadblock_shape": [m * recipe.cluster[0], n * recipe.cluster[1], k],
        "stages": recipe.stages,
        "cluster_shape": [*recipe.cluster, 1],
    }
    if recipe.arch == 80:
        return {**wanted, "warp_count": list(recipe.warps)}
    main_loop, epilogue = SCHEDULES[recipe.schedule]
    return {
        **wanted,
        "kernel_schedule": getattr(package.KernelScheduleType, main_loop),
        "epilogue_schedule": getattr(package.EpilogueScheduleType, epilogue),
        "tile_scheduler": getattr(package.TileSchedulerType, SCHEDULERS[recipe.scheduler]),
    }


def _emit_one(recipe: Recipe) -> dict[str, Any]:
    from cutlass_library import SubstituteTemplate

    plan = _plan(recipe)
    wanted = _wanted(recipe)
    descriptions = plan.tile_descriptions()

    def fits(description: Any) -> bool:
        stated = {name: getattr(description, name) for name in wanted}
        return all(
            list(stated[n]) == want if isinstance(want, list) else stated[n] == want for n, want in wanted.items()
        )

    listed = next((description for description in descriptions if fits(description)), None)
    if listed is not None:
        # As the package takes its defaults: without the check that it makes of a caller's description, which
        # refuses some of its own (an automatic main loop with a transposed epilogue).
        plan._tile_description = listed
    operation = plan.construct(
        None if listed is not None else descriptions[0].clone_and_update(wanted),
        alignment_A=recipe.alignment,
        alignment_B=recipe.alignment,
        alignment_C=recipe.alignment_c,
    )
    runtime = operation.rt_module
    name = operation.procedural_name()
    names = {"operation_name": name, "operation_suffix": runtime.emitter.operation_suffix}
    if recipe.opclass == "simt" and "simt_sgemm" not in name:
        raise RuntimeError(f"a SIMT kernel was asked for and the package answered {name}")
    return {
        "name": name,
        "includes": list(runtime.emitter.includes),
        "type_text": runtime.emit(),
        "kernel_text": SubstituteTemplate(runtime.KernelTemplate, names),
        "listed": listed is not None,
    }


def _default_facts(dtype: str, simt: bool) -> dict[str, Any]:
    package = _package()
    element = {"float32": package.DataType.f32, "float16": package.DataType.f16}[dtype]
    plan = package.op.Gemm(
        element=element,
        element_accumulator=package.DataType.f32,
        layout=package.LayoutType.RowMajor,
        cc=90,
        kernel_cc=80 if simt else 90,
    )
    if simt:
        plan.opclass = package.OpcodeClass.Simt
    operation = plan.construct()
    tile = operation.tile_description
    return {
        "name": operation.procedural_name(),
        "block": list(tile.blackwell_threadblock_shape),
        "cluster": list(tile.cluster_shape),
        "stages": tile.stages,
        "source": operation.rt_module.emit(),
    }
