"""Claims of both texts that follow from extents and published figures alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compare.claims.record import CHAPTER_GPU, CONDITION, PLAIN_TILE, Claim, Evidence, Finding, verdict
from compare.peaks import peak
from kernel import intensity, occupancy
from kernel.contract import Problem, ceil_div

Floats = NDArray[np.float32]

T = PLAIN_TILE
THREADS = T.BLOCK_M * T.BLOCK_N // (T.THREAD_M * T.THREAD_N)
FLOAT = 4

QUOTED = {"naive": 1986.0, "smem": 2980.0, "2D blocktiling": 15972.0, "cuBLAS": 23250.0}
"""GFLOP/s that the chapter quotes from Simon Boehm's worklog, RTX A6000, 4092^3."""
QUOTED_SHARES = {"naive": 8.5, "smem": 12.8, "2D blocktiling": 68.7}
A6000 = "NVIDIA RTX A6000"


def crossover(_: Evidence) -> Finding:
    published = peak(CHAPTER_GPU, "fp32_simt").datasheet or 0.0
    roof = intensity.Roof(CHAPTER_GPU, published, intensity.BANDWIDTH[CHAPTER_GPU])
    value = f"{roof.tflops} TFLOP/s / {roof.terabytes_per_s} TB/s = {roof.crossover:.2f} FLOP/byte"
    return verdict(abs(roof.crossover - 20) < 0.5, value)


def shared_bytes(_: Evidence) -> Finding:
    a, b = FLOAT * T.BLOCK_M * T.BLOCK_K, FLOAT * T.BLOCK_K * T.BLOCK_N
    return verdict((a, b, a + b) == (8192, 8192, 16384), f"A {a} + B {b} = {a + b} bytes")


def threads_per_block(_: Evidence) -> Finding:
    return verdict(THREADS == 256, f"128 * 128 / (8 * 8) = {THREADS}")


def warp_tile(_: Evidence) -> Finding:
    area = 32 * T.THREAD_M * T.THREAD_N
    return verdict(area == T.WARP_M * T.WARP_N == 2048, f"32 * 8 * 8 = {area} = {T.WARP_M} * {T.WARP_N}")


def block_tile(_: Evidence) -> Finding:
    area = THREADS // 32 * T.WARP_M * T.WARP_N
    return verdict(area == T.BLOCK_M * T.BLOCK_N, f"8 * 2048 = {area} = 128 * 128")


def warp_grid(_: Evidence) -> Finding:
    rows, columns = T.BLOCK_M // T.WARP_M, T.BLOCK_N // T.WARP_N
    return verdict(rows * columns == THREADS // 32, f"{rows} * {columns} = {rows * columns} warps")


def lane_grid(_: Evidence) -> Finding:
    rows, columns = T.WARP_M // T.THREAD_M, T.WARP_N // T.THREAD_N
    return verdict((rows, columns) == (8, 4), f"{rows} * {columns} = {rows * columns} lanes")


def square_warp(_: Evidence) -> Finding:
    accumulators = 64 * 64 // 32
    warps = (T.BLOCK_M // 64) * (T.BLOCK_N // 64)
    value = f"64 * 64 / 32 = {accumulators} accumulators a thread, {warps} warps = {32 * warps} threads, not {THREADS}"
    return verdict(accumulators == 128 and warps == 4 and 32 * warps != THREADS, value)


def naive_eightfold(_: Evidence) -> Finding:
    own, naive = intensity.thread_tile(8, 8).value, intensity.naive().value
    return verdict(own == 8 * naive, f"{own:g} / {naive:g} = {own / naive:g}")


def twice_four_by_four(_: Evidence) -> Finding:
    own, small = intensity.thread_tile(8, 8).value, intensity.thread_tile(4, 4).value
    return verdict(own == 2 * small, f"{own:g} / {small:g} = {own / small:g}")


def quoted_shares(_: Evidence) -> Finding:
    shares = {name: 100 * QUOTED[name] / QUOTED["cuBLAS"] for name in QUOTED_SHARES}
    value = ", ".join(f"{name} {share:.1f} %" for name, share in shares.items())
    return verdict(all(abs(shares[name] - quoted) < 0.06 for name, quoted in QUOTED_SHARES.items()), value)


def quoted_peak_share(_: Evidence) -> Finding:
    published = peak(A6000, "fp32_simt").datasheet or 0.0
    share = 100 * QUOTED["cuBLAS"] / (1000 * published)
    return verdict(abs(share - 60) < 1, f"23250 / {1000 * published:g} GFLOP/s = {share:.1f} %")


def scalars_per_tile(_: Evidence) -> Finding:
    scalars = T.BLOCK_K * (T.THREAD_M + T.THREAD_N)
    return verdict(scalars == 256, f"16 * (8 + 8) = {scalars}")


def quarter_of_loads(_: Evidence) -> Finding:
    tiled, single = intensity.loads_per_fma(4, 4), intensity.loads_per_fma(1, 1)
    return verdict(tiled / single == 0.25, f"{tiled:g} against {single:g} loads per multiply-add")


def block_intensity(_: Evidence) -> Finding:
    found = intensity.block_tile(T.BLOCK_M, T.BLOCK_N)
    moved, flop = T.BLOCK_K * found.bytes, T.BLOCK_K * found.flop
    value = f"{flop:g} FLOP / {moved:g} bytes = {found.value:g} FLOP/byte"
    return verdict((moved, flop, found.value) == (16384, 524288, 32), value)


def two_orders(_: Evidence) -> Finding:
    ratio = intensity.block_tile(T.BLOCK_M, T.BLOCK_N).value / intensity.naive().value
    return verdict(ratio >= 100, f"32 / 0.25 = {ratio:g}")


def block_64(_: Evidence) -> Finding:
    large, small = (intensity.block_tile(side, side).value for side in (128, 64))
    roof = intensity.Roof(
        CHAPTER_GPU, peak(CHAPTER_GPU, "fp32_simt").datasheet or 0.0, intensity.BANDWIDTH[CHAPTER_GPU]
    )
    value = f"{large:g} and {small:g} FLOP/byte around the crossover of {roof.crossover:.1f}"
    return verdict(small < roof.crossover < large, value)


def factor_15(_: Evidence) -> Finding:
    fp32, fp16 = (peak(CHAPTER_GPU, track) for track in ("fp32_simt", "fp16_tensor"))
    published = (fp16.datasheet or 0.0) / (fp32.datasheet or 1.0)
    same_clock = (fp16.per_sm_clock or 0) / (fp32.per_sm_clock or 1)
    value = f"{fp16.datasheet} / {fp32.datasheet} = {published:.1f}"
    condition = f"the two published peaks use different clocks; at the same clock the factor is {same_clock:g}"
    return verdict(abs(published - 15) < 0.5, value, condition)


def fp32_peak(_: Evidence) -> Finding:
    found = peak(CHAPTER_GPU, "fp32_simt")
    at_clock = found.at_clock(1980) or 0.0
    value = f"{found.formula(1980)} TFLOP/s against {found.datasheet} published"
    return verdict(abs(at_clock - (found.datasheet or 0.0)) < 0.1 and round(at_clock) == 67, value)


def fp16_peak(_: Evidence) -> Finding:
    found = peak(CHAPTER_GPU, "fp16_tensor")
    at_clock = found.at_clock(1830) or 0.0
    value = f"{found.formula(1830)} TFLOP/s against {found.datasheet} published"
    return verdict(abs(at_clock - (found.datasheet or 0.0)) < 1 and int(found.datasheet or 0) == 989, value)


# --- the second text ---------------------------------------------------------------------------------


def flop_count(_: Evidence) -> Finding:
    m, n, k = 7, 5, 3
    multiplications = additions = 0
    for _row in range(m):
        for _column in range(n):
            multiplications += k
            additions += k - 1
    value = f"7x5x3: {multiplications} multiplications + {additions} additions against 2mnk = {2 * m * n * k}"
    condition = "exactly mn(2k - 1); 2mnk counts the addition to the initial zero, as an FMA does"
    return verdict(multiplications + additions == m * n * (2 * k - 1), value, condition)


def block_products(_: Evidence) -> Finding:
    random = np.random.default_rng(0)
    a, b = random.integers(-9, 9, (35, 19)), random.integers(-9, 9, (19, 79))
    c = np.zeros((35, 79), np.int64)
    for m in range(0, 35, 16):
        for n in range(0, 79, 16):
            for k in range(0, 19, 16):
                c[m : m + 16, n : n + 16] += a[m : m + 16, k : k + 16] @ b[k : k + 16, n : n + 16]
    wrong = int(np.count_nonzero(c != a @ b))
    return verdict(wrong == 0, f"35x79x19 in tiles of 16, integers: {wrong} elements differ")


def launch_threads(_: Evidence) -> Finding:
    return verdict(100 * 256 == 25600, f"100 * 256 = {100 * 256} threads")


def warps_of_block(_: Evidence) -> Finding:
    warps = [set(range(32 * w, 32 * w + 32)) for w in range(ceil_div(256, 32))]
    last = max(warps[7])
    covered = set().union(*warps) == set(range(256))
    return verdict(len(warps) == 8 and covered and last == 255, f"{len(warps)} warps, the last ends at thread {last}")


def blocks_by_shared_memory(_: Evidence) -> Finding:
    formula = [64 // size for size in (16, 32, 48)]
    reserved = occupancy.RESERVED_SMEM // 1024
    real = [64 // (size + reserved) for size in (16, 32, 48)]
    condition = f"on sm_80 and later {reserved} KB more is taken per block, so {real} blocks of 64 KB"
    return verdict(formula == [4, 2, 1], f"64 // 16, 32, 48 = {formula}", condition)


def unused_remainder(_: Evidence) -> Finding:
    left = 64 - 48
    return verdict(left == 16 and left < 48, f"64 - 48 = {left} KB, less than another 48")


def registers_of_block(_: Evidence) -> Finding:
    few, many = (occupancy.registers_per_block(count, 256) for count in (32, 128))
    return verdict((few, many) == (8192, 32768), f"{few} and {many} registers, by the allocation rules as well")


def bound_by_minimum(_: Evidence) -> Finding:
    mismatches, tried, worst = 0, 0, ""
    for registers in range(16, 256, 4):
        for threads in (64, 96, 128, 160, 256, 512):
            real = occupancy.occupancy("sm_90", registers=registers, threads=threads).by_resource["registers"]
            formula = occupancy.REGISTERS // (registers * threads)
            tried += 1
            if real != formula:
                mismatches += 1
                if (registers, threads) == (100, 160):
                    worst = f"; 100 registers x 160 threads: {formula} by the formula, {real} in fact"
            if real > formula:
                return Finding("differs", f"{registers} registers x {threads} threads: {real} blocks exceed {formula}")
    condition = f"it is an upper bound: registers come in units of 256 a warp{worst}"
    return verdict(mismatches > 0, f"formula equals the rules in {tried - mismatches} of {tried} cases", condition)


def resident_warps(_: Evidence) -> Finding:
    warps = [blocks * 256 // 32 for blocks in (4, 2, 1)]
    return verdict(warps == [32, 16, 8], f"4, 2, 1 blocks of 256 threads: {warps} warps")


def larger_tile_fewer_blocks(_: Evidence) -> Finding:
    blocks = {}
    for side, registers, threads in ((64, 128, 64), (128, 128, 256), (256, 255, 256)):
        smem = 2 * FLOAT * side * 16
        blocks[side] = occupancy.occupancy("sm_90a", registers=registers, threads=threads, static_smem=smem)
    value = ", ".join(f"{side}x{side}: {fits.blocks} blocks, {fits.warps} warps" for side, fits in blocks.items())
    counts = [fits.blocks for fits in blocks.values()]
    return verdict(counts[0] > counts[1] > counts[2], value)


def fp16_intensity(_: Evidence) -> Finding:
    size = 4096
    problem = Problem(m=size, n=size, k=size, dtype_in="float16", dtype_out="float16")
    counted = intensity.compulsory(problem).value
    formula = 2 * size**3 / (2 * 3 * size**2)
    value = f"4096^3: 2mnk / bytes = {counted:.1f}, formula {formula:.1f} FLOP/byte"
    return verdict(abs(counted - formula) < 1e-9, value)


def reuse_grows(_: Evidence) -> Finding:
    values = [intensity.block_tile(side, side).value for side in (32, 64, 128, 256)]
    return verdict(values == sorted(values) and len(set(values)) == 4, f"block tiles 32 to 256: {values} FLOP/byte")


def tail_35(_: Evidence) -> Finding:
    tiles = [min(16, 35 - start) for start in range(0, 35, 16)]
    return verdict(tiles == [16, 16, 3] and ceil_div(35, 16) == 3, f"35 = {' + '.join(map(str, tiles))}")


def padding_waste(_: Evidence) -> Finding:
    shares = {}
    for extent, tile in ((35, 16), (4092, 128)):
        padded = ceil_div(extent, tile) * tile
        shares[extent] = (padded / extent) ** 3
    value = ", ".join(f"{extent}^3: {share:.3f} times the work" for extent, share in shares.items())
    return verdict(all(share > 1 for share in shares.values()), value)


def associativity(_: Evidence) -> Finding:
    a, b, c = np.float32(1e8), np.float32(-1e8), np.float32(1.0)
    left, right = (a + b) + c, a + (b + c)
    return verdict(left != right, f"(1e8 - 1e8) + 1 = {left:g}, 1e8 + (-1e8 + 1) = {right:g} in FP32")


def tile_order(_: Evidence) -> Finding:
    random = np.random.default_rng(1)
    a, b = (random.uniform(-1, 1, (64, 4096)).astype(np.float32) for _ in range(2))
    in_order = _dot_in_order(a, b)
    halves = _dot_in_order(a[:, :2048], b[:, :2048]) + _dot_in_order(a[:, 2048:], b[:, 2048:])
    tiled = np.zeros(64, np.float32)
    for start in range(0, 4096, 16):
        tiled = _dot_in_order(a[:, start : start + 16], b[:, start : start + 16], tiled)
    differ, same = int(np.count_nonzero(in_order != halves)), int(np.count_nonzero(in_order != tiled))
    condition = "tiles that go on with one accumulator in order of k change nothing"
    value = f"of 64 dot products of length 4096, {differ} differ when k is split in two, {same} when it is tiled by 16"
    return Finding(CONDITION, f"{value}; {condition}") if differ and not same else verdict(differ > 0, value)


def _dot_in_order(a: Floats, b: Floats, start: Floats | None = None) -> Floats:
    """Rows of a times rows of b, one fused multiply-add at a time in FP32: the product is exact in float64."""
    total = np.zeros(len(a), np.float32) if start is None else start
    for k in range(a.shape[1]):
        total = (total.astype(np.float64) + a[:, k].astype(np.float64) * b[:, k].astype(np.float64)).astype(np.float32)
    return total


def relative_tolerance(_: Evidence) -> Finding:
    random = np.random.default_rng(2)
    a, b = (random.uniform(-1, 1, (4096, 1024)).astype(np.float32) for _ in range(2))
    exact = np.einsum("ik,ik->i", a.astype(np.float64), b.astype(np.float64))
    got = _dot_in_order(a, b).astype(np.float64)
    error = np.abs(got - exact)
    scale = np.einsum("ik,ik->i", np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))
    purely_relative = int(np.count_nonzero(error > 1e-5 * np.abs(exact)))
    scaled = float((error / scale).max())
    both = int(np.count_nonzero(error > 1e-5 + 1e-5 * np.abs(exact)))
    value = (
        f"4096 right FP32 results, k = 1024: {purely_relative} fail rtol 1e-5 alone, {both} fail with atol 1e-5; "
        f"largest error / (|A| |B|) {scaled:.1e}"
    )
    condition = "atol has to grow with |A| |B|, or cancelling sums fail"
    return verdict(purely_relative > both, value, condition)


def error_growth(_: Evidence) -> Finding:
    lengths = (256, 1024, 4096, 16384)
    growth = {}
    for name, low in (("zero-mean", -1.0), ("positive", 0.0)):
        random = np.random.default_rng(3)
        means = []
        for length in lengths:
            a, b = (random.uniform(low, 1, (256, length)).astype(np.float32) for _ in range(2))
            exact = np.einsum("ik,ik->i", a.astype(np.float64), b.astype(np.float64))
            scale = np.einsum("ik,ik->i", np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))
            means.append(float((np.abs(_dot_in_order(a, b) - exact) / scale).mean()))
        growth[name] = float(np.polyfit(np.log(lengths), np.log(means), 1)[0])
    value = ", ".join(f"{name} data: error / (|A| |B|) ~ k^{power:.2f}" for name, power in growth.items())
    condition = "relative to |A| |B| it grows with k where terms have one sign, and does not where they cancel"
    return verdict(
        growth["positive"] > 0.2 and growth["zero-mean"] < 0.2, f"256 dot products, k to 16384: {value}", condition
    )


FORMULA, PUBLISHED, NUMPY = "formula", "formula over published figures", "computed with NumPy in FP32 and float64"

CLAIMS = (
    Claim(
        "crossover",
        "chapter 11.0",
        "The FP32 roofline of an H100 SXM5 bends near 20 FLOP per byte",
        PUBLISHED,
        crossover,
    ),
    Claim(
        "smem-bytes",
        "chapter 11.2",
        "A 128x16 and a 16x128 FP32 tile take 8 KB each, 16 KB together",
        FORMULA,
        shared_bytes,
    ),
    Claim(
        "threads-256",
        "chapter 11.2.1",
        "A 128x128 block tile with 8x8 thread tiles takes 256 threads",
        FORMULA,
        threads_per_block,
    ),
    Claim("warp-tile-area", "chapter 11.2.2", "Warp tile area = 32 TM TN = 2048 = 64 x 32", FORMULA, warp_tile),
    Claim("block-tile-area", "chapter 11.2.2", "Block tile area = 8 warps x 2048 = 128 x 128", FORMULA, block_tile),
    Claim("warp-grid", "chapter 11.2.2", "The warps form a 2 x 4 grid", FORMULA, warp_grid),
    Claim("lane-grid", "chapter 11.2.2", "The lanes of a warp form an 8 x 4 grid", FORMULA, lane_grid),
    Claim(
        "warp-64x64",
        "chapter 11.2.2",
        "A 64x64 warp tile would need 128 accumulators and leave 4 warps, so it does not fit 256 threads",
        FORMULA,
        square_warp,
    ),
    Claim(
        "eight-times-naive",
        "chapter 11.2.2",
        "8x8 thread tiles have 8 times the naive intensity",
        FORMULA,
        naive_eightfold,
    ),
    Claim(
        "twice-4x4",
        "chapter 11.2.2",
        "8x8 thread tiles have twice the intensity of 4x4 ones",
        FORMULA,
        twice_four_by_four,
    ),
    Claim(
        "quoted-shares",
        "chapter 11.3",
        "The quoted A6000 figures are 8.5, 12.8 and 68.7 % of cuBLAS",
        FORMULA,
        quoted_shares,
    ),
    Claim(
        "quoted-peak-share",
        "chapter 11.7",
        "The quoted cuBLAS figure is about 60 % of the A6000's FP32 peak",
        PUBLISHED,
        quoted_peak_share,
    ),
    Claim(
        "scalars-256",
        "chapter 11.6",
        "A thread reads 256 scalars from shared memory per 16 k steps",
        FORMULA,
        scalars_per_tile,
    ),
    Claim(
        "quarter-loads",
        "chapter 11.7",
        "4x4 thread tiles save three quarters of the load instructions",
        FORMULA,
        quarter_of_loads,
    ),
    Claim(
        "block-intensity-32",
        "chapter 11.8",
        "A k tile moves 16 KB for 524288 FLOP: 32 FLOP per byte",
        FORMULA,
        block_intensity,
    ),
    Claim("two-orders", "chapter 11.8", "32 is two orders of magnitude above the naive 0.25", FORMULA, two_orders),
    Claim(
        "block-64-intensity",
        "chapter 11 exercise 3",
        "64x64 block tiles fall below the crossover, 128x128 ones lie above",
        PUBLISHED,
        block_64,
    ),
    Claim("fp32-peak-67", "chapter 11.7", "H100 SXM5 FP32 peaks at 67 TFLOP/s", PUBLISHED, fp32_peak),
    Claim(
        "fp16-peak-989", "chapter 11.7", "H100 SXM5 dense FP16 Tensor Cores peak at 989 TFLOP/s", PUBLISHED, fp16_peak
    ),
    Claim("factor-15", "chapter 11.7", "FP16 Tensor Cores have about 15 times the FP32 peak", PUBLISHED, factor_15),
    Claim("flop-2mnk", "explained 1", "A GEMM takes about 2mnk floating-point operations", "counted", flop_count),
    Claim(
        "block-products",
        "explained 2",
        "Each output block is the sum of products of blocks along k",
        NUMPY,
        block_products,
    ),
    Claim("launch-25600", "explained 5", "100 blocks of 256 threads are 25600 threads", FORMULA, launch_threads),
    Claim("warps-8", "explained 6", "256 threads are 8 warps, the last of threads 224 to 255", FORMULA, warps_of_block),
    Claim(
        "smem-blocks",
        "explained 8.1",
        "64 KB hold 4, 2 or 1 blocks of 16, 32 or 48 KB",
        "formula and allocation rules",
        blocks_by_shared_memory,
    ),
    Claim("smem-remainder", "explained 8.1", "The 16 KB beside a 48 KB block stay unused", FORMULA, unused_remainder),
    Claim(
        "block-registers",
        "explained 8.2",
        "256 threads take 8192 registers at 32 each, 32768 at 128",
        "allocation rules",
        registers_of_block,
    ),
    Claim(
        "block-limit",
        "explained 8.2",
        "Resident blocks are bounded by the scarcest resource, registers by R / (R_thread T_block)",
        "formula against the allocation rules, 360 cases",
        bound_by_minimum,
    ),
    Claim(
        "resident-warps",
        "explained 8.2",
        "4, 2 and 1 blocks of 256 threads are 32, 16 and 8 warps",
        FORMULA,
        resident_warps,
    ),
    Claim(
        "larger-tile-fewer-blocks",
        "explained 8.2",
        "Larger tiles leave fewer resident blocks and warps",
        "allocation rules",
        larger_tile_fewer_blocks,
    ),
    Claim(
        "fp16-intensity",
        "explained 9",
        "Ideal FP16 intensity is 2mnk / (2 (mk + kn + mn))",
        "bytes of a problem, counted",
        fp16_intensity,
    ),
    Claim("reuse-grows", "explained 10", "Larger tiles reuse each element more", FORMULA, reuse_grows),
    Claim("tail-35", "explained 11", "35 in tiles of 16 is 16 + 16 + 3", FORMULA, tail_35),
    Claim("padding-waste", "explained 11", "Padding adds work that nobody needs", FORMULA, padding_waste),
    Claim("associativity", "explained 12", "Floating-point addition is not associative", NUMPY, associativity),
    Claim("tile-order", "explained 12", "Another tiling may change the result's last bits", NUMPY, tile_order),
    Claim(
        "tolerance",
        "explained 12",
        "A check needs an absolute and a relative tolerance that fit type and length",
        NUMPY,
        relative_tolerance,
    ),
    Claim("error-growth", "explained 12", "Error may grow systematically with the length of k", NUMPY, error_growth),
)
