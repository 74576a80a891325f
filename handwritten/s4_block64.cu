// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// v2 with a 64 x 64 block tile, and only that: the body is v2's file. Half of v2's reuse, 16 FLOP a byte.
// Limited by v2's bank conflicts first, then by twice its traffic from L2.
// Refuses nothing but a grid of 2^31 blocks.
#define v2_block_tile s4_block64
#include "v2_block_tile.cu"
