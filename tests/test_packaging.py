"""What is handed out: sdist and wheel hold what they need and run from a fresh environment; pins and versions agree."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from compare import runs

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    tomllib = None

ROOT = runs.repository()
PACKAGES = ("kernel", "handwritten", "cutlass_ref", "compare")
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]


def run(*words, cwd=ROOT, timeout=600, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=timeout,
        env={**clean, **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def tracked():
    """Files under version control, except links."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = run("git", "ls-files", "-s").splitlines()
    return [line.partition("\t")[2] for line in listed if not line.startswith("120000")]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(sdist, wheel): the wheel is built from the unpacked sdist, so what the sdist lacks the wheel lacks."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(folder)
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_the_wheel_holds_every_source_table_and_recorded_run_and_nothing_else(built):
    files = tracked()
    wanted = {name for name in files if name.partition("/")[0] in PACKAGES}
    wanted |= {f"compare/recorded/{name.removeprefix('results/')}" for name in files if name.startswith("results/")}
    names = {name for name in zipfile.ZipFile(built[1]).namelist() if ".dist-info/" not in name}
    assert wanted - names == set()
    assert names - wanted == set()


@pytest.mark.slow
def test_the_sdist_holds_what_is_under_version_control(built):
    with tarfile.open(built[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert {name for name in tracked() if name != ".gitignore"} - names == set()


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The command of a fresh environment with the wheel in it; its dependencies are this environment's."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", built[1])
    # A line of a .pth file is a folder to search; the .pth files in that folder, such as an editable install's, are not
    # read, so this project itself comes from the wheel alone.
    roots = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "dependencies.pth").write_text("\n".join(dict.fromkeys(roots)) + "\n", encoding="utf-8")
    where = run(python, "-c", "import compare; print(compare.__file__)", cwd=folder).strip()
    assert Path(where).is_relative_to(site)
    return folder / "venv" / "bin" / "gemm-tracks", folder


@pytest.mark.slow
def test_an_installed_package_lists_reads_its_recorded_run_and_names_its_version(installed):
    command, folder = installed
    listed = json.loads(run(command, "list", "--json", cwd=folder))
    assert {"v0_naive", "h1_wgmma_tma", "cublas_sgemm"} <= {one["name"] for one in listed}
    code = "import compare; run = compare.load_run(); print(len(run), run.attrs['run']['complete'])"
    count, complete = run(command.with_name("python"), "-c", code, cwd=folder).split()
    assert int(count) > 100
    assert complete == "True"
    code = "from compare import runs; print(runs.revision())"
    plain = dict.fromkeys(("GEMM_TRACKS_REVISION", "GEMM_TRACKS_BUNDLE"), "")
    assert run(command.with_name("python"), "-c", code, cwd=folder, **plain).strip() == f"v{VERSION}"


@pytest.mark.slow
@pytest.mark.nvcc
def test_an_installed_package_builds_checks_and_compares(installed):
    command, folder = installed
    verdicts = json.loads(
        run(command, "check", "--device", "cpu", "--kernels", "v0_naive", "--shapes", "35x79x19", "--json", cwd=folder)
    )
    assert [verdict["ok"] for verdict in verdicts] == [True]
    answer = json.loads(run(command, "compare", "--kernels", "v2_block_tile", "--shapes", "4096", "--json", cwd=folder))
    assert [row["name"] for row in answer["built"]] == ["v2_block_tile"]
    assert any(row["name"] == "v2_block_tile" and row["time_us"] for row in answer["rows"])


def test_pre_commit_has_the_pins_of_ci():
    if tomllib is None:
        pytest.skip("tomllib is not in this Python")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = {pin.partition("==")[0]: pin for pin in project["optional-dependencies"]["dev"] if "==" in pin}
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    used = re.findall(r'additional_dependencies: \["([^"]+)"\]', text)
    assert {pin.partition("==")[0] for pin in used} == {"ruff", "clang-format"}
    assert all(pins[pin.partition("==")[0]] == pin for pin in used)


def test_version_and_licence_are_one_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {VERSION}\n" in citation
    assert "\nlicense: BSD-3-Clause\n" in citation
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("BSD 3-Clause License")
    assert f"\n## {VERSION}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_make_alone_explains_every_target():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)[1].split()
    shown = run("make", "--no-print-directory")
    assert sorted(line.split()[1] for line in shown.splitlines()) == sorted(phony)
    assert all(len(line.split()) > 3 for line in shown.splitlines())
