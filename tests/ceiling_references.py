"""What the ceilings' loops must leave behind after one iteration, in NumPy."""

import numpy as np

from compare import ceilings


def ffma_reference(threads, block_threads, iterations):
    """The loop in NumPy: float64 holds x * x exactly and rounds x * x + c far below float32's last place."""
    i = np.arange(threads * ceilings.CHAINS, dtype=np.uint32)
    with np.errstate(over="ignore"):
        i = (i ^ np.uint32(61) ^ (i >> np.uint32(16))) * np.uint32(9)
        i = (i ^ (i >> np.uint32(4))) * np.uint32(0x27D4EB2D)
        i ^= i >> np.uint32(15)
    x = ((i & np.uint32(0xFFFFFF)).astype(np.int32) - 0x800000).astype(np.float32) * np.float32(1.19e-7)
    x = x.reshape(threads, ceilings.CHAINS)
    in_block = (np.arange(threads) % block_threads).astype(np.float64)
    c = (np.float64(np.float32(-1.9)) - np.float64(np.float32(1e-5)) * in_block).astype(np.float32)[:, None]
    for _ in range(ceilings.STEPS * iterations):
        x = (x.astype(np.float64) ** 2 + c).astype(np.float32)
    return x


def mix(x):
    x = x.astype(np.uint32)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def draw(seeds, half):
    """float64 values behind each 4-byte operand: [..., 2] halves, or [..., 1] TF32."""
    bits = mix(np.asarray(seeds))
    if half:
        pair = np.stack([bits & np.uint32(0xFFFF), bits >> np.uint32(16)], axis=-1).astype(np.int64)
        return ((pair - 0x8000) * 2.0**-15).astype(np.float16).astype(np.float64)
    value = (((bits >> np.uint32(8)).astype(np.int64) - 0x800000) * 2.0**-23).astype(np.float32)
    return (value.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)[..., None]


def mma_reference(half):
    """[i][j] -> 16 x 8 of warp 0, block 0: the sums over the four pairs of fragments of a pass."""
    lane = np.arange(32)
    group, quad = lane // 4, lane % 4
    width = 2 if half else 1
    depth = 16 if half else 8
    a, b = np.zeros((4, 16, depth)), np.zeros((4, depth, 8))
    for i in range(4):
        for r in range(4):
            values = draw(lane * 64 + i * 4 + r, half)
            for e in range(width):
                a[i, group + 8 * (r % 2), quad * width + e + (depth // 2) * (r // 2)] = values[:, e]
        for r in range(2):
            values = draw(lane * 64 + 32 + i * 2 + r, half)
            for e in range(width):
                b[i, quad * width + e + (depth // 2) * r, group] = values[:, e]
    return [[sum(a[(i + s) % 4] @ b[(j + 2 * s) % 4] for s in range(4)) for j in range(4)] for i in range(4)]


def wgmma_reference(half):
    """128 x 256: every stage's A times B transposed, read through the 128-byte swizzle."""
    words = draw(np.arange(ceilings.STAGES * ceilings.STAGE_BYTES // 4), half)
    per_row = 128 // 4 * words.shape[-1]
    rows = words.reshape(ceilings.STAGES, 384, 8, per_row // 8)
    chunk = np.arange(8)[None, :] ^ (np.arange(384) % 8)[:, None]
    plain = np.take_along_axis(rows, np.broadcast_to(chunk[None, :, :, None], rows.shape), axis=2)
    plain = plain.reshape(ceilings.STAGES, 384, per_row)
    return sum(stage[:128] @ stage[128:].T for stage in plain)


def check_output(loop, out):
    """Compare the first block's output, [threads, registers], with the reference."""
    half = loop.track == "fp16_tensor"
    lane, thread = np.arange(32), np.arange(ceilings.THREADS)
    if loop.instruction == "ffma":
        want = ffma_reference(ceilings.THREADS, ceilings.THREADS, 1).sum(axis=1, dtype=np.float64)
        assert np.abs(out[: ceilings.THREADS, 0] - want).max() < 1e-3
    elif loop.instruction == "mma_sync":
        want = mma_reference(half)
        d = out[:32].reshape(32, 4, 4, 4)
        for i in range(4):
            for j in range(4):
                for r in range(4):
                    expected = want[i][j][lane // 4 + 8 * (r // 2), 2 * (lane % 4) + r % 2]
                    assert np.abs(d[:, i, j, r] - expected).max() < 1e-3, f"fragment {i}, {j}, register {r}"
    else:
        want = wgmma_reference(half)
        row = thread // 128 * 64 + thread % 128 // 32 * 16 + thread % 32 // 4
        for j in range(128):
            expected = want[row + 8 * (j % 4 // 2), 8 * (j // 4) + 2 * (thread % 4) + j % 2]
            assert np.abs(out[: ceilings.THREADS, j] - expected).max() < 5e-3, f"register {j}"
