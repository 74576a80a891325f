// Loads, stores, atomics, asynchronous copies and matrix instructions.
#include "machine.h"

// Loads and stores of 32-bit words in a stated space: most of what a GEMM does.
template <bool LOAD, bool IN_SHARED>
void Machine::memory_words(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    u64 address[32];
    addresses(W, I, o, exec, address);
    const u32 vec = I.vec, bytes = 4 * vec;
    u32* reg[8];
    u32 nowhere[32], undefined[8] = {};
    for (u32 k = 0; k < vec; k++) reg[k] = o[1 + k] == NO_OPERAND ? nowhere : at(W, o[1 + k]);
    for (u32 m = exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        const u64 a = address[i];
        u8* memory = nullptr;
        if (IN_SHARED) {
            if (shared_ok(b, W, i, a, bytes, ins)) {
                const u32 off = (u32)a - SHARED_ORIGIN;
                memory = b.smem.data() + off;
                if (!LOAD) {
                    check_write(b, W, i, off, bytes, ins, READY);
                } else if (__builtin_expect(check_read(b, W, i, off, bytes, ins), 0)) {
                    begin_taint(W, ins, a);
                    for (u32 k = 0; k < vec; k++)
                        if (!is_defined(b, off + 4 * k, 4)) undefined[k] |= 1u << i;
                }
            }
        } else {
            memory = global_at(b, W, i, a, bytes, ins, LOAD, !LOAD);
        }
        for (u32 k = 0; k < vec; k++) {
            if (LOAD && memory)
                memcpy(reg[k] + i, memory + 4 * k, 4);
            else if (LOAD)
                reg[k][i] = FULL;
            else if (memory)
                memcpy(memory + 4 * k, reg[k] + i, 4);
        }
    }
    if (LOAD && W.tainted)
        for (u32 k = 0; k < vec; k++) set_taint(W, o[1 + k], undefined[k], exec);
    if (IN_SHARED)
        count_shared(ins, address, exec, bytes, LOAD);
    else
        count_global(ins, address, exec, bytes);
}

void Machine::memory(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    if (I.size == 4 && (I.space == SHARED || I.space == GLOBAL) && !(I.flags & DST_64) && !L.max_trace &&
        !W.tainted) {
        if (I.op == OP_ld)
            return I.space == SHARED ? memory_words<true, true>(b, W, I, ins, exec, o)
                                     : memory_words<true, false>(b, W, I, ins, exec, o);
        return I.space == SHARED ? memory_words<false, true>(b, W, I, ins, exec, o)
                                 : memory_words<false, false>(b, W, I, ins, exec, o);
    }
    u64 address[32];
    addresses(W, I, o, exec, address);
    const bool load = I.op == OP_ld;
    const u32 size = I.size, vec = I.vec, bytes = size * vec;
    u8 data[32];
    u32 in_shared = 0, in_global = 0, undefined[8] = {};
    if (W.tainted) {
        report_taint(b, W, UNINITIALISED_ADDRESS, ins, taint_of(W, o[0]) & exec, 0);
        if (I.guard >= 0) report_taint(b, W, UNINITIALISED_BRANCH, ins, taint_of(W, I.guard) & W.group, 0);
    }
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        int thread = 32 * W.index + i;
        u64 a = address[i];
        u8 space = I.space;
        if (space == GENERIC) {
            if (a >= SHARED_WINDOW && a < SHARED_WINDOW + WINDOW_BYTES)
                space = SHARED, a -= SHARED_WINDOW;
            else if (a >= LOCAL_WINDOW && a < LOCAL_WINDOW + WINDOW_BYTES)
                space = LOCAL, a -= LOCAL_WINDOW;
            else if (a >= PARAM_WINDOW && a < PARAM_WINDOW + WINDOW_BYTES)
                space = PARAM, a -= PARAM_WINDOW;
            else
                space = GLOBAL;
            address[i] = a;
        }
        u8* at_memory = nullptr;
        if (space == SHARED) {
            in_shared |= 1u << i;
            if (shared_ok(b, W, i, a, bytes, ins)) {
                u32 off = (u32)a - SHARED_ORIGIN;
                if (load) {
                    if (__builtin_expect(check_read(b, W, i, off, bytes, ins), 0)) {
                        begin_taint(W, ins, a);
                        for (u32 k = 0; k < vec; k++)
                            if (!is_defined(b, off + k * size, size)) undefined[k] |= 1u << i;
                    }
                } else {
                    check_write(b, W, i, off, bytes, ins, READY);
                    if (W.tainted)
                        for (u32 k = 0; k < vec; k++)
                            if (taint_of(W, o[1 + k]) >> i & 1)
                                for (u32 g = (off + k * size) >> shift;
                                     g <= (off + (k + 1) * size - 1) >> shift; g++)
                                    b.granules[g].state = UNDEFINED;
                }
                at_memory = b.smem.data() + off;
            }
        } else if (space == GLOBAL) {
            in_global |= 1u << i;
            at_memory = global_at(b, W, i, a, bytes, ins, load, !load);
            if (!load && W.tainted)
                for (u32 k = 0; k < vec; k++)
                    report_taint(b, W, UNINITIALISED_STORED, ins, taint_of(W, o[1 + k]) & 1u << i, a);
        } else if (space == LOCAL) {
            if (a % bytes || a + bytes > (u64)L.local_bytes)
                fault(b, LOCAL_BOUNDS, ins, thread, a, bytes);
            else
                at_memory = W.local.data() + (size_t)L.local_bytes * i + a;
        } else {
            if (a % size || a + bytes > (u64)L.param_bytes || !load)
                fault(b, PARAM_BOUNDS, ins, thread, a, bytes);
            else
                at_memory = const_cast<u8*>(L.params) + a;
        }
        if (load) {
            if (at_memory)
                memcpy(data, at_memory, bytes);
            else
                memset(data, 0xff, bytes);
            for (u32 k = 0; k < vec; k++) {
                if (o[1 + k] == NO_OPERAND) continue;
                u64 v = 0;
                memcpy(&v, data + k * size, size);
                if (I.flags & DST_64)
                    at64(W, o[1 + k])[i] = (u64)sign_extend(v, I.ty);
                else if (I.ty == S8 || I.ty == S16)
                    at(W, o[1 + k])[i] = (u32)sign_extend(v, I.ty) & (I.ty2 ? 0xffffu : FULL);
                else
                    at(W, o[1 + k])[i] = (u32)v;
            }
        } else {
            for (u32 k = 0; k < vec; k++) {
                u64 v = (I.flags & DST_64) ? at64(W, o[1 + k])[i] : at(W, o[1 + k])[i];
                memcpy(data + k * size, &v, size);
            }
            if (at_memory) memcpy(at_memory, data, bytes);
        }
        if (L.max_trace && at_memory && space != PARAM && space != LOCAL)
            trace(b, W, i, ins, space == SHARED ? a - SHARED_ORIGIN : a, bytes, !load, data);
    }
    if (load && W.tainted)
        for (u32 k = 0; k < vec; k++) set_taint(W, o[1 + k], undefined[k], exec);
    if (in_shared) count_shared(ins, address, in_shared, bytes, load);
    if (in_global) count_global(ins, address, in_global, bytes);
}

void Machine::atomic(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    // o: address, destination (or none), operand, second operand (cas); mod: the operation
    u64 address[32];
    addresses(W, I, o, exec, address);
    u32 in_global = 0, in_shared = 0;
    b.polls++;
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        u64 a = address[i];
        u8 space = I.space;
        if (space == GENERIC) {
            if (a >= SHARED_WINDOW && a < SHARED_WINDOW + WINDOW_BYTES)
                space = SHARED, a -= SHARED_WINDOW;
            else
                space = GLOBAL;
            address[i] = a;
        }
        u8* p = nullptr;
        if (space == SHARED) {
            in_shared |= 1u << i;
            if (shared_ok(b, W, i, a, I.size, ins)) {
                u32 off = (u32)a - SHARED_ORIGIN;
                p = b.smem.data() + off;
                for (u32 g = off >> shift; g <= (off + I.size - 1) >> shift;
                     g++) {  // atomics order themselves: no race with each other
                    Granule& G = b.granules[g];
                    bool atomic_before = G.wins >= 0 && P.code[G.wins].op == OP_atom;
                    if (G.state == PENDING)
                        fault(b, ASYNC_READ_EARLY, ins, 32 * W.index + i, a, I.size, G.wins, G.wthread);
                    else if (G.state == BLANK && init)
                        fault(b, SHARED_UNINITIALISED, ins, 32 * W.index + i, a, I.size);
                    else if (races && !atomic_before && !ordered(b, W, 32 * W.index + i, G.wthread, G.wclock))
                        fault(b, RACE_WRITE_AFTER_WRITE, ins, 32 * W.index + i, a, I.size, G.wins, G.wthread);
                    G.state = READY;
                    G.wthread = (u16)(32 * W.index + i);
                    G.wclock = W.clock[W.index];
                    G.wins = ins;
                }
            }
        } else {
            in_global |= 1u << i;
            p = global_at(b, W, i, a, I.size, ins, true, true);
        }
        if (!p) continue;
        u64 old = 0, now = 0;
        memcpy(&old, p, I.size);
        bool wide = I.size == 8;
        u64 v = wide ? at64(W, o[2])[i] : at(W, o[2])[i];
        u64 swap = o[3] == NO_OPERAND ? 0 : wide ? at64(W, o[3])[i] : at(W, o[3])[i];
        i64 so = sign_extend(old, I.ty), sv = sign_extend(v, I.ty);
        switch (I.mod) {
            case 0:
                if (I.ty == F32)
                    now = canon(flt((u32)old) + flt((u32)v));
                else if (I.ty == F64)
                    now = canon(dbl(old) + dbl(v));
                else if (I.ty == F16X2 || I.ty == BF16X2)
                    now = small_op(0, old & 0xffff, v & 0xffff, 0, I.ty == BF16X2) |
                          small_op(0, old >> 16 & 0xffff, v >> 16 & 0xffff, 0, I.ty == BF16X2) << 16;
                else if (I.ty == F16 || I.ty == BF16)
                    now = small_op(0, old, v & 0xffff, 0, I.ty == BF16);
                else
                    now = old + v;
                break;
            case 1:
                now = (I.ty == S32 || I.ty == S64) ? (so < sv ? old : v) : std::min(old, v);
                break;
            case 2:
                now = (I.ty == S32 || I.ty == S64) ? (so > sv ? old : v) : std::max(old, v);
                break;
            case 3:
                now = v;
                break;
            case 4:
                now = old == v ? swap : old;
                break;
            case 5:
                now = old & v;
                break;
            case 6:
                now = old | v;
                break;
            case 7:
                now = old ^ v;
                break;
            case 8:
                now = old >= v ? 0 : old + 1;
                break;
            case 9:
                now = (old == 0 || old > v) ? v : old - 1;
                break;
        }
        memcpy(p, &now, I.size);
        if (o[1] != NO_OPERAND) {
            if (wide)
                at64(W, o[1])[i] = old;
            else
                at(W, o[1])[i] = (u32)old;
        }
    }
    if (in_shared) count_shared(ins, address, in_shared, I.size, false);
    if (in_global) count_global(ins, address, in_global, I.size);
}

void Machine::async_copy(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    // o: shared address, global address, source size (or none), ignore-source predicate (or none);
    // imm: offset of the first, target: offset of the second, size: bytes copied
    u64 dst[32], src[32];
    addresses(W, I, o, exec, dst);
    const u64* s = o[1] == NO_OPERAND ? nullptr : at64(W, o[1]);
    u32 reads = 0;
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        int thread = 32 * W.index + i;
        if (dst[i] >= SHARED_WINDOW && (I.flags & ADDRESS_64)) dst[i] -= SHARED_WINDOW;
        src[i] = (s ? s[i] : 0) + (i64)I.target;
        u32 n = o[2] == NO_OPERAND ? I.size : at(W, o[2])[i];
        if (o[3] != NO_OPERAND && (((*at(W, o[3]) >> i & 1) != 0) != ((I.flags & NEGATE_P) != 0))) n = 0;
        if (n > I.size) n = I.size;
        Pending p{};
        p.thread = (u16)thread;
        p.size = I.size;
        p.ins = ins;
        p.group = W.committed[i];
        if (src[i] & (I.size - 1)) {
            fault(b, GLOBAL_MISALIGNED, ins, thread, src[i], I.size);
            n = 0;
        }
        if (n) {
            reads |= 1u << i;
            p.real = 1;
            const u8* from = nullptr;
            if ((n & (n - 1)) == 0) {
                from = global_at(b, W, i, src[i], n, ins, true, false);
                if (from) memcpy(p.data, from, n);
            } else {
                for (u32 k = 0; k < n; k++)
                    if ((from = global_at(b, W, i, src[i] + k, 1, ins, true, false))) p.data[k] = *from;
            }
        }
        if (!shared_ok(b, W, i, dst[i], I.size, ins)) continue;
        p.dst = (u32)dst[i] - SHARED_ORIGIN;
        check_write(b, W, i, p.dst, I.size, ins, PENDING);
        if (L.max_trace) trace(b, W, i, ins, p.dst, I.size, true, p.data);
        W.pending.push_back(p);
    }
    if (counting) {
        count_shared(ins, dst, exec, I.size, false);
        u64 before = out.counts[ins].requests;
        count_global(ins, src, reads, I.size);
        out.counts[ins].requests = before;
    }
}

void Machine::matrix_load(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    // o: address, registers; vec: matrices; mod: transposed. Lanes 8 j .. 8 j + 7 give the rows of matrix j.
    u64 address[32];
    addresses(W, I, o, exec, address);
    const bool load = I.op == OP_ldmatrix;
    u16 tile[4][8][8];
    u32 blank = 0;  // rows of which some was never written
    u32 used = I.vec == 4 ? FULL : (1u << (8 * I.vec)) - 1;
    for (int i = 0; i < 32; i++)
        if (I.flags & ADDRESS_64 && address[i] >= SHARED_WINDOW) address[i] -= SHARED_WINDOW;
    if (!load)
        for (int j = 0; j < I.vec; j++)
            for (int i = 0; i < 32; i++) {
                u32 v = at(W, o[1 + j])[i];
                int r = i / 4, c = 2 * (i % 4);
                if (I.mod)
                    tile[j][c][r] = (u16)v, tile[j][c + 1][r] = (u16)(v >> 16);
                else
                    tile[j][r][c] = (u16)v, tile[j][r][c + 1] = (u16)(v >> 16);
            }
    for (u32 m = used & exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        memset(load ? tile[i / 8][i % 8] : nullptr, 0xff, load ? 16 : 0);
        if (!shared_ok(b, W, i, address[i], 16, ins)) continue;
        u32 off = (u32)address[i] - SHARED_ORIGIN;
        if (load) {
            if (check_read(b, W, i, off, 16, ins)) {
                begin_taint(W, ins, address[i]);
                blank |= 1u << i;
            }
            memcpy(tile[i / 8][i % 8], b.smem.data() + off, 16);
        } else {
            check_write(b, W, i, off, 16, ins, READY);
            memcpy(b.smem.data() + off, tile[i / 8][i % 8], 16);
        }
        if (L.max_trace) trace(b, W, i, ins, off, 16, !load, (const u8*)tile[i / 8][i % 8]);
    }
    if (load && W.tainted)
        for (int j = 0; j < I.vec; j++) {
            u32 rows = blank >> (8 * j) & 255, lanes = 0;
            for (int i = 0; i < 32; i++)
                lanes |= (u32)((I.mod ? rows >> (2 * (i % 4)) & 3 : rows >> (i / 4) & 1) != 0) << i;
            set_taint(W, o[1 + j], lanes, FULL);
        }
    if (load)
        for (int j = 0; j < I.vec; j++)
            for (int i = 0; i < 32; i++) {
                int r = i / 4, c = 2 * (i % 4);
                at(W, o[1 + j])[i] = I.mod ? tile[j][c][r] | (u32)tile[j][c + 1][r] << 16
                                           : tile[j][r][c] | (u32)tile[j][r][c + 1] << 16;
            }
    count_shared(ins, address, used & exec, 16, false);
}

void Machine::matrix_multiply(Warp& W, const Ins& I, const i32* o) {
    // m16n8kK, o: d[4], a[..], b[..], c[4]; ty: input format; vec: K. Products are exact in double, one
    // rounding at the end: the hardware's own order and truncation are not published (docs/machine.md).
    const int K = I.vec, per = I.ty == TF32 ? 1 : 2, groups = K / (4 * per);  // groups: k steps of four lanes
    double A[16][16], B[16][8];
    auto value = [&](u32 word, int half) -> double {
        if (I.ty == TF32) return flt(word & ~0x1fffu);
        u32 h = half ? word >> 16 : word & 0xffff;
        return I.ty == F16 ? half_to_float(h) : bf16_to_float(h);
    };
    for (int i = 0; i < 32; i++) {
        int g = i / 4, t = i % 4;
        for (int q = 0; q < groups; q++)
            for (int h = 0; h < per; h++) {
                int k = q * 4 * per + t * per + h;
                A[g][k] = value(at(W, o[4 + 2 * q])[i], h);
                A[g + 8][k] = value(at(W, o[4 + 2 * q + 1])[i], h);
                B[k][g] = value(at(W, o[4 + 2 * groups + q])[i], h);
            }
    }
    const i32* c = o + 4 + 3 * groups;
    u32 result[4][32];
    for (int i = 0; i < 32; i++)
        for (int v = 0; v < 4; v++) {
            int row = i / 4 + (v >= 2 ? 8 : 0), col = 2 * (i % 4) + (v & 1);
            double sum = 0;
            for (int k = 0; k < K; k++) sum += A[row][k] * B[k][col];
            result[v][i] = canon((float)(sum + (double)flt(at(W, c[v])[i])));
        }
    if (W.tainted) {  // a row of A or a column of B that is undefined makes its row or column of D so
        u32 rows = 0, columns = 0, lanes[4] = {};
        for (int i = 0; i < 32; i++)
            for (int q = 0; q < groups; q++) {
                rows |= (taint_of(W, o[4 + 2 * q]) >> i & 1) << i / 4;
                rows |= (taint_of(W, o[4 + 2 * q + 1]) >> i & 1) << (i / 4 + 8);
                columns |= (taint_of(W, o[4 + 2 * groups + q]) >> i & 1) << i / 4;
            }
        for (int v = 0; v < 4; v++) {
            for (int i = 0; i < 32; i++)
                lanes[v] |= ((rows >> (i / 4 + (v >= 2 ? 8 : 0)) | columns >> (2 * (i % 4) + (v & 1))) & 1)
                            << i;
            lanes[v] |= taint_of(W, c[v]);
        }
        for (int v = 0; v < 4; v++) set_taint(W, o[v], lanes[v], W.group);
    }
    for (int v = 0; v < 4; v++)
        for (int i = 0; i < 32; i++)
            if (W.group >> i & 1) at(W, o[v])[i] = result[v][i];
}
