// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// v6_transposed_split with a thread's THREAD_M rows adjacent, and only that: the body is
// v6_transposed_split's file. A load's eight groups of four rows now lie 32 bytes apart: a 2-way conflict by
// the chapter, none by the bank model. Refuses nothing but a grid of 2^31 blocks.
#define ADJACENT_ROWS
#define v6_transposed_split v6_transposed_contiguous
#include "v6_transposed_split.cu"
