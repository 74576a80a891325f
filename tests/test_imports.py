"""Imports point one way, and nothing heavy is imported, or a driver touched, before it is needed."""

import ast
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "kernel": {"kernel"},
    "handwritten": {"kernel", "handwritten"},
    "cutlass_ref": {"kernel", "cutlass_ref"},
    "compare": {"kernel", "handwritten", "cutlass_ref", "compare"},
}
HEAVY = ("cupy", "torch", "pandas", "numba", "numpy", "cutlass_cppgen", "cutlass", "pynvml", "matplotlib", "jinja2")
HEAVY += ("cuda.bindings.driver", "cuda.bindings.runtime", "dask", "distributed")
ONLY_EMITTER = ROOT / "cutlass_ref" / "emit.py"
DSL_PROGRAMS = {ROOT / "cutlass_ref" / "cute" / name for name in ("sgemm.py", "hgemm.py")}
"""Imported in the child process of cutlass_ref/cute/emit.py alone: the optional DSL comes with them."""


def modules():
    for package in MAY_IMPORT:
        yield from sorted((ROOT / package).rglob("*.py"))


def imported_names(tree, package_of_file):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "") if not node.level else package_of_file, node.lineno


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package):
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for name, line in imported_names(ast.parse(path.read_text(encoding="utf-8")), package):
            top = name.partition(".")[0]
            if top in {*MAY_IMPORT, "tests"} and top not in MAY_IMPORT[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong


def test_the_walk_finds_imports_inside_functions():
    tree = ast.parse("def f():\n    from compare import runs\n    import handwritten.catalog\n")
    assert sorted(name for name, _ in imported_names(tree, "kernel")) == ["compare", "handwritten.catalog"]


def test_only_the_emitter_imports_cutlass_cppgen():
    users = [
        path
        for path in modules()
        for name, _ in imported_names(ast.parse(path.read_text(encoding="utf-8")), "")
        if name.partition(".")[0] in ("cutlass_cppgen", "cutlass_library")
    ]
    assert set(users) <= {ONLY_EMITTER}


def test_only_the_dsl_programs_import_the_dsl():
    users = {
        path
        for path in modules()
        for name, _ in imported_names(ast.parse(path.read_text(encoding="utf-8")), "")
        if name.partition(".")[0] == "cutlass" or name.startswith(("cutlass_ref.cute.sgemm", "cutlass_ref.cute.hgemm"))
    }
    assert users == DSL_PROGRAMS


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_help_and_list_import_nothing_heavy():
    code = f"""
import sys
from compare.cli import main
assert main(["--help"]) == 0
assert main(["list"]) == 0
assert main(["list", "--json"]) == 0
loaded = [name for name in {HEAVY!r} if name in sys.modules]
assert not loaded, loaded
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_importing_any_module_touches_no_heavy_package():
    names = []
    for path in modules():
        relative = path.relative_to(ROOT).with_suffix("")
        if relative.name == "__main__" or path == ONLY_EMITTER or path in DSL_PROGRAMS:
            continue
        names.append(".".join(relative.parts[:-1] if relative.name == "__init__" else relative.parts))
    # NumPy and Numba are part of the base install, and what computes on a CPU may import them.
    barred = tuple(name for name in HEAVY if name not in ("numpy", "numba", "pandas"))
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
    loaded = [heavy for heavy in {barred!r} if heavy in sys.modules]
    assert not loaded, (name, loaded)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["--help", "list"])
def test_start_is_quick(command):
    """The bar is 0.4 s. Processor time, best of five: what else the machine does must not decide."""

    # Counting lines (make coverage) is no part of starting.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}

    def once():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        words = [sys.executable, "-m", "compare", command]
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(5)) < 0.4
