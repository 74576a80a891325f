"""Properties over every kernel of every catalog: extents, launches, parameters; and files that anybody may write.

Shapes reach 2**31 - 1; what is expected comes from Python's integers, which do not overflow.
"""

import contextlib
import json
import math
import re
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from compare import runs
from compare.contenders import KernelContender, every_contender
from compare.diff import diff_rows
from compare.possible import RANGES
from compare.report import closing_lines, tables
from compare.rows import COLUMNS, NAMES, row
from compare.shapes import Shape
from cutlass_ref.catalog import CutlassKernel
from handwritten.kernel import HandwrittenKernel
from handwritten.pass_tile import PackingPassKernel, TransposingPassKernel
from handwritten.split_tile import BlockSplitKernel
from handwritten.stream_tile import ClusterSplitKernel, StreamKTileKernel
from handwritten.tensor_catalog import MmaSyncKernel, PackedKernel, SplitKernel, WgmmaKernel
from handwritten.wide_tile import SM_COUNT, StreamKKernel
from kernel.contract import (
    FAMILIES,
    ITEMSIZE,
    LAYOUTS,
    MAX_GRID_X,
    MAX_GRID_YZ,
    TRACKS,
    Argument,
    Pointers,
    Problem,
)
from kernel.errors import GemmTracksError, ProblemError, RunFileError
from kernel.plan import arguments, plan

LAST = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38
KERNELS = [c.kernel for c in every_contender() if isinstance(c, KernelContender)]
OURS = [kernel for kernel in KERNELS if not isinstance(kernel, CutlassKernel)]
EMITTED = [
    pytest.param(kernel, marks=[pytest.mark.cppgen, pytest.mark.nvcc, pytest.mark.slow], id=kernel.name)
    for kernel in KERNELS
    if isinstance(kernel, CutlassKernel)
]
EVERY = [*(pytest.param(kernel, id=kernel.name) for kernel in OURS), *EMITTED]

# Powers of two and their neighbours, where 16, 31 and 32 bits end, beside everything between.
EDGES = sorted({max(0, min(2**e + d, LAST)) for e in range(32) for d in (-1, 0, 1)} | {LAST - 511, LAST - 512})
extents = st.one_of(st.sampled_from(EDGES), st.integers(0, LAST), st.integers(0, 300))
scalars = st.floats(-FLOAT32_MAX, FLOAT32_MAX, width=32) | st.sampled_from([0.0, -0.0, 1.0, 1e-46, math.nan, math.inf])
pads = st.sampled_from([0, 0, 1, 3, 8, 64, 2**33])
aligns = st.sampled_from([2, 4, 8, 16, 128, 256])
addresses = st.integers(1, 2**40).map(lambda number: 256 * number)
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def problems(draw, kernel=None):
    layouts = LAYOUTS if kernel is None else kernel.layouts
    types = () if kernel is None else ("dtype_in", "dtype_acc", "dtype_out")
    values = {name: draw(extents) for name in "mnk"} | {name: getattr(kernel, name) for name in types}
    values |= {"layout": draw(st.sampled_from(layouts)), "alpha": draw(scalars), "beta": draw(scalars)}
    values |= {f"align_{name}": max(4, draw(aligns)) for name in "abc"}
    packed = Problem(**values)
    return packed.replace(lda=packed.lda + draw(pads), ldb=packed.ldb + draw(pads), ldc=packed.ldc + draw(pads))


@given(problems())
def test_extents_of_operands_are_exact(problem):
    m, n, k, layout = problem.m, problem.n, problem.k, problem.layout
    rows = {"a": (m, k) if layout[0] == "r" else (k, m), "b": (k, n) if layout[1] == "r" else (n, k), "c": (m, n)}
    for name, (outer, inner) in rows.items():
        pitch = getattr(problem, f"ld{name}")
        assert problem.extent(name) == (0 if not outer * inner else (outer - 1) * pitch + inner)
        assert pitch >= max(inner, 1)
    assert problem.flop == 2 * m * n * k
    assert problem.is_empty == (m * n == 0)
    size, passes = ITEMSIZE[problem.dtype_out], 1 if problem.beta == 0 else 2
    assert problem.bytes_min == ITEMSIZE[problem.dtype_in] * (m * k + k * n) + size * passes * m * n
    assert str(problem).startswith(f"{m}x{n}x{k} {layout}")
    assert problem.replace() == problem or math.isnan(problem.alpha) or math.isnan(problem.beta)


@given(st.sampled_from("mnk"), st.integers(max_value=-1) | st.integers(2**31) | st.floats() | st.text() | st.booleans())
def test_an_extent_is_an_integer_from_0_to_2_31(name, value):
    with pytest.raises(ProblemError, match=f"^{name} "):
        Problem(**{"m": 1, "n": 1, "k": 1, name: value})


too_large = st.floats(1e39, 1e308) | st.integers(10**39, 10**400) | st.text() | st.none()


@given(st.sampled_from(["alpha", "beta"]), too_large)
def test_a_scalar_is_a_number_that_float32_can_hold(name, value):
    with pytest.raises(GemmTracksError, match=f"^{name} "):
        Problem(m=1, n=1, k=1, **{name: value})


def cover(kernel, problem, launches):
    """Asserts that the grid is what exact arithmetic asks for."""
    kernel = kernel.runner(problem)
    tile = kernel.tile
    tiles = [-(-extent // block) for extent, block in ((problem.m, tile.BLOCK_M), (problem.n, tile.BLOCK_N))]
    whole = tiles[0] * tiles[1]
    if isinstance(kernel, (StreamKKernel, StreamKTileKernel)):
        *before, launch = launches
        assert len(before) == isinstance(kernel, TransposingPassKernel) + isinstance(kernel, PackingPassKernel)
        across = (-(-problem.m // 64), -(-problem.n // 256))  # blocks beside each other, of the pass and of the copy
        assert all(one.threads == 256 and one.blocks % count == 0 for one, count in zip(before, across, strict=False))
        steps = -(-problem.k // tile.BLOCK_K)
        cut = kernel.shares(problem) if isinstance(kernel, StreamKKernel) else kernel.cut(problem)
        at_once = SM_COUNT * getattr(kernel, "blocks_per_sm", 1)
        assert cut.blocks == min(at_once, -(-whole * steps // kernel.least_steps)) == launch.blocks
        assert cut.whole_tiles * steps + cut.shared_steps == whole * steps
        assert cut.shared_steps == 0 or launch.workspace >= 4 * tile.BLOCK_M * tile.BLOCK_N * launch.blocks
    elif isinstance(kernel, BlockSplitKernel):
        launch, *adding = launches
        slices, parts = kernel.cut(problem)
        assert launch.grid == (whole * slices * parts, 1, 1)
        assert launch.cluster == (slices, 1, 1)
        assert len(adding) == (parts > 1)
        assert all(one.blocks * one.threads >= problem.m * problem.n for one in adding)
        assert launch.workspace == (4 * parts * problem.m * problem.n if adding else 0)
    elif isinstance(kernel, ClusterSplitKernel):
        (launch,) = launches
        (slices, *_) = launch.cluster
        assert slices in (1, 2, 4, 8)
        assert launch.grid == (whole * slices, 1, 1)
    elif isinstance(kernel, HandwrittenKernel):
        assert [launch.grid for launch in launches] == [(whole, 1, 1)]
    elif isinstance(kernel, SplitKernel):
        launch, *adding = launches
        slices, parts = kernel.cut(problem)
        assert slices in (1, 2, 4, 8)
        assert slices * parts <= max(-(-problem.k // tile.BLOCK_K), 1)
        assert launch.cluster == (slices, 1, 1)
        assert launch.blocks <= min(SM_COUNT, whole * slices * parts)
        assert launch.blocks % slices == 0
        assert len(adding) == (parts > 1)
        assert all(4 * one.blocks * one.threads >= problem.m * problem.n for one in adding)
        pitch = -(-problem.n // 4) * 4
        assert {one.workspace for one in launches} == {4 * parts * problem.m * pitch if adding else 0}
    elif isinstance(kernel, WgmmaKernel):
        *before, launch = launches
        packs = isinstance(kernel, PackedKernel) and bool(kernel.copied_rows(problem))
        assert len(before) == packs
        for one in before:
            sizes = [2 * rows * -(-width // 8) * 8 for rows, width in kernel.copied_rows(problem).values()]
            assert sum(sizes) <= one.workspace <= 2**40
            assert one.blocks == sum(kernel.packing_blocks(problem).values())
        shares = max(tile.CLUSTER_M, 1), max(tile.CLUSTER_N, 1)
        padded = math.prod(-(-count // share) * share for count, share in zip(tiles, shares, strict=True))
        cluster = math.prod(shares)
        assert launch.cluster == (cluster, 1, 1)
        assert launch.blocks == min(padded, SM_COUNT // cluster * cluster)
    elif isinstance(kernel, MmaSyncKernel):
        assert [launch.grid for launch in launches] == [(whole, 1, 1)]
    elif isinstance(kernel, CutlassKernel) and kernel.recipe.arch == 80 and kernel.recipe.swizzle == 1:
        gemms = [launch for launch in launches if launch.unit.name != "cutlass_clear_flags.sm_90a"]
        if not kernel.recipe.is_stream_k:
            columns = sum(launch.grid[1] for launch in gemms)
            assert all(launch.grid[0] == tiles[0] for launch in gemms)
            assert columns == tiles[1]
            assert all(1 <= launch.grid[2] <= kernel.split_k for launch in gemms)


@pytest.mark.parametrize("kernel", EVERY)
@few
@given(st.data())
def test_launches_are_exact_or_refused_with_a_reason(kernel, data):
    problem = data.draw(problems(kernel))
    reason = kernel.rejects_type_or_layout(problem)
    settled = problem.is_empty or problem.is_scale_only
    reason = reason or (None if settled else kernel.rejects(problem))
    if reason is not None:
        with pytest.raises(ProblemError, match="^" + kernel.name):
            plan(kernel, problem)
        return
    found = plan(kernel, problem)
    assert (len(found.launches) == 0) == problem.is_empty
    for launch in found.launches:
        assert 1 <= launch.threads <= 1024
        assert all(extent >= 1 for extent in (*launch.grid, *launch.block, *launch.cluster))
        assert launch.grid[0] <= MAX_GRID_X
        assert max(launch.grid[1:]) <= MAX_GRID_YZ
        assert all(g % c == 0 for g, c in zip(launch.grid, launch.cluster, strict=True))
        assert 0 <= launch.dynamic_smem <= 232448
        assert 0 <= launch.workspace_zeroed <= launch.workspace
    if settled:
        assert found.variant == ("empty" if problem.is_empty else "scale_only")
    else:
        known = {unit.name for unit in kernel.runner(problem).units()}
        assert {launch.unit.name for launch in found.launches} <= known | {unit.name for unit in kernel.units()}
        cover(kernel, problem, found.launches)


def number(argument: Argument, form: str):
    (value,) = struct.unpack(form, argument.data)
    return value


@pytest.mark.parametrize("kernel", EVERY)
@few
@given(st.data())
def test_parameters_hold_what_was_given(kernel, data):
    problem = data.draw(problems(kernel))
    where = Pointers(*(), **{name: data.draw(addresses) for name in ("a", "b", "c", "workspace")})
    try:
        launches = plan(kernel, problem).launches
    except ProblemError:
        return
    packed = arguments(kernel, problem, where)
    assert len(packed) == len(launches)
    for values in packed:
        for value in values:
            assert all(0 <= offset <= len(value.data) - 128 for offset, _ in value.tensor_maps)
    if problem.is_empty:
        return
    settled = problem.is_empty or problem.is_scale_only
    adds = not settled and isinstance(kernel.runner(problem), (BlockSplitKernel, SplitKernel))
    flat = packed[0 if adds else -1]  # what adds the parts comes last
    if problem.is_scale_only:
        assert number(flat[0], "<Q") == where.c
        assert [number(value, "<q") for value in flat[1:4]] == [problem.ldc, problem.m, problem.n]
        assert same_single(number(flat[4], "<f"), problem.beta)
        return
    if not isinstance(kernel.runner(problem), (HandwrittenKernel, MmaSyncKernel, WgmmaKernel)):
        return  # what others emit is packed by code of theirs, which has tests of its own
    maps = [tensor_map for value in flat for _, tensor_map in value.tensor_maps]
    plain = [value for value in flat if not value.tensor_maps]
    turned = isinstance(kernel.runner(problem), TransposingPassKernel)
    if maps:
        runner = kernel.runner(problem)
        mapped = [where.workspace + runner.copy_offset(problem), where.b] if turned else [where.a, where.b, where.c]
        if isinstance(runner, PackedKernel):
            offsets, lacking = runner.copy_offsets(problem)[0], runner.lacking(problem)
            mapped = [where.workspace + offsets[name] if name in offsets else getattr(where, name) for name in "ab"]
            mapped += [] if "c" in lacking else [where.c]
        if isinstance(runner, PackingPassKernel):
            mapped[1] = where.workspace + runner.packed_offset(problem)
            assert [number(value, "<Q") for value in packed[1][:2]] == [mapped[1], where.b]
            assert [number(value, "<i") for value in packed[1][2:4]] == [problem.n, problem.k]
            assert number(packed[1][4], "<q") == problem.ldb
            assert mapped[1] + 4 * problem.k * runner.packed_pitch(problem) == where.workspace + launches[1].workspace
        assert [one.address for one in maps] == mapped
        assert all(stride % 16 == 0 for one in maps for stride in one.strides)
        assert all(1 <= extent <= 2**32 for one in maps for extent in one.shape)
        assert all(1 <= extent <= 256 for one in maps for extent in one.box)
    if turned:
        assert [number(value, "<Q") for value in packed[0][:3]] == [where.workspace, mapped[0], where.a]
        assert [number(value, "<i") for value in packed[0][3:5]] == [problem.m, problem.k]
        assert number(packed[0][5], "<q") == problem.lda
        assert number(plain[0], "<Q") == where.c
        assert [number(value, "<i") for value in plain[1:4]] == [problem.m, problem.n, problem.k]
        assert number(plain[4], "<q") == problem.ldc
        assert same_single(number(plain[5], "<f"), problem.alpha)
        assert same_single(number(plain[6], "<f"), problem.beta)
    elif not maps:
        assert [number(value, "<Q") for value in plain[:3]] == [where.a, where.b, where.c]
        assert [number(value, "<i") for value in plain[3:6]] == [problem.m, problem.n, problem.k]
        assert [number(value, "<q") for value in plain[6:9]] == [problem.lda, problem.ldb, problem.ldc]
        assert same_single(number(plain[9], "<f"), problem.alpha)
        assert same_single(number(plain[10], "<f"), problem.beta)


def same_single(got, given):
    return got == struct.unpack("<f", struct.pack("<f", given))[0] or (math.isnan(got) and math.isnan(given))


@given(st.integers(1, LAST), st.integers(1, LAST), st.integers(1, LAST))
def test_pointers_decide_nothing_but_themselves(m, n, k):
    """The same problem at other addresses: the same launches, the same parameters but for the addresses."""
    kernel, problem = OURS[2], Problem(m=m, n=n, k=k)
    one, other = (kernel.pack(problem, Pointers(a=p, b=p + 8, c=p + 16)) for p in (2**20, 2**45))
    assert one[0][3:] == other[0][3:]
    assert [number(value, "<Q") for value in other[0][:3]] == [2**45, 2**45 + 8, 2**45 + 16]


@given(problems())
def test_a_shape_gives_the_problem_it_states(problem):
    shape = Shape(m=problem.m, n=problem.n, k=problem.k, pad_a=3, align_b=4, seed=1)
    contender = KernelContender.of(OURS[0])
    made = shape.problem(contender)
    assert (made.m, made.n, made.k) == (problem.m, problem.n, problem.k)
    assert (made.lda, made.ldb, made.align_b) == (max(problem.k, 1) + 3, max(problem.n, 1), 4)


# ---------------------------------------------------------------------- run files

words = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
CELLS = {
    "str": words.map(lambda text: text or None) | st.none(),
    "int": st.integers(-(2**60), 2**60) | st.none(),
    "bool": st.booleans() | st.none(),
}
NEEDED = {
    "name": words.filter(bool),
    "family": st.sampled_from(FAMILIES),
    "track": st.sampled_from(TRACKS),
    "layout": st.sampled_from(LAYOUTS),
    **{name: st.integers(0, LAST) for name in "mnk"},
}


def within(column):
    """What a column of numbers can hold, its ends included."""
    low, high = RANGES[column.name]
    if column.type == "int":
        return st.none() | st.integers(low, high)
    return st.none() | st.floats(low, min(high, 1e300), allow_nan=False, allow_infinity=False)


any_row = st.fixed_dictionaries(
    {c.name: within(c) if c.name in RANGES else CELLS[c.type] for c in COLUMNS} | NEEDED
).map(lambda one: one if one["m"] * one["n"] * one["k"] else one | {"tflops": None})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": None}, "name"),
        ({"family": "mine"}, "family"),
        ({"track": "int8"}, "track"),
        ({"layout": "xx"}, "layout"),
        ({"k": -1}, "k"),
        ({"m": 2**31}, "m"),
        ({"time_us": 0.0}, "time_us"),
        ({"time_us": math.inf}, "'inf' is not finite"),
        ({"x_cublas": -1.0}, "x_cublas"),
        ({"kernel_name": "\x1b[2Jgone"}, "control characters"),
    ],
)
def test_a_row_that_no_run_of_ours_holds_is_refused(change, words):
    good = row(name="v0", family="cublas", track="fp32_simt", layout="rr", m=1, n=1, k=1)
    assert runs.parse_rows(runs.format_rows([good]), "memory") == [good]
    with pytest.raises(RunFileError, match=f"line 2: (v0: )?{re.escape(words)}"):
        runs.parse_rows(runs.format_rows([good | change]), "memory")


@given(st.lists(any_row, max_size=4))
@settings(max_examples=60, deadline=None)
def test_rows_of_any_kind_survive_the_round_trip(rows):
    back = runs.parse_rows(runs.format_rows(rows), "memory")
    assert len(back) == len(rows)
    for before, after in zip(rows, back, strict=True):
        for column in COLUMNS:
            a, b = before[column.name], after[column.name]
            assert b == (pytest.approx(a, rel=1e-6) if column.type == "float" and a is not None else a), column.name
    assert runs.format_rows(back) == runs.format_rows(runs.parse_rows(runs.format_rows(back), "memory"))


HEAD = ",".join(NAMES) + "\n"
GOOD = runs.format_rows([row(name="v0", family="cublas", track="fp32_simt", layout="rr", m=1, n=1, k=1)])


text = st.text(max_size=80)


@given(text | text.map(lambda end: HEAD + end) | text.map(lambda end: GOOD + end))
@settings(max_examples=200, deadline=None)
def test_no_table_escapes_the_error_family(content):
    with contextlib.suppress(RunFileError):
        for found in runs.parse_rows(content, "somewhere"):
            assert not any(runs.CONTROL.search(value) for value in found.values() if isinstance(value, str))


GPU = {"name": "G", "slug": "g"}
PROVENANCE = {"revision": "0123456789", "date": "2031-02-03T00:00:00", "request": "r", "gpu": GPU}


@contextlib.contextmanager
def fresh():
    """A folder for each example, which tmp_path is not, gone after it."""
    with tempfile.TemporaryDirectory(prefix="gemm-tracks-test-") as folder:
        yield Path(folder) / "run"


@given(st.lists(st.tuples(words, st.lists(any_row, max_size=2)), max_size=3, unique_by=lambda one: one[0]), st.data())
@settings(max_examples=40, deadline=None)
def test_a_journal_cut_anywhere_keeps_every_whole_shard(shards, data):
    with fresh() as folder:
        writer = runs.RunWriter(folder, PROVENANCE)
        journal = folder / runs.JOURNAL_FILE
        ends = [len(journal.read_bytes())]
        for name, rows in shards:
            writer.add(name, rows)
            ends.append(len(journal.read_bytes()))
        cut = data.draw(st.integers(0, ends[-1]))
        journal.write_bytes(journal.read_bytes()[:cut])
        again = runs.RunWriter(folder, PROVENANCE)
        whole = [name for (name, _), end in zip(shards, ends[1:], strict=True) if end <= cut]
        assert again.finished == frozenset(whole)
        again.add("last", ())
        assert runs.RunWriter(folder, PROVENANCE).finished == frozenset([*whole, "last"])
        again.finish(complete=True)
        _, rows = runs.read_run(folder)
        assert len(rows) == sum(len(rows) for (name, rows) in shards if name in whole)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=100, deadline=None)
def test_no_file_of_a_run_escapes_the_error_family(content):
    with fresh() as folder:
        runs.RunWriter(folder, PROVENANCE).finish(complete=True)
        for name in (runs.RUN_FILE, runs.ROWS_FILE, runs.JOURNAL_FILE):
            (folder / name).write_bytes(content)
            for read in (runs.read_run, runs.load_run, lambda path: runs.RunWriter(path, PROVENANCE)):
                with contextlib.suppress(RunFileError):
                    read(folder)


@given(st.lists(any_row, max_size=4))
@settings(max_examples=60, deadline=None, phases=[Phase.generate])
def test_whatever_a_table_holds_can_be_compared_and_shown(rows):
    """Rows are data: a report of rows that no run of ours would hold may say little, and does not fail."""
    kept = runs.parse_rows(runs.format_rows(rows), "memory")
    diff_rows(kept, (), kept, ()).lines()
    tables(kept)
    list(closing_lines(kept))
