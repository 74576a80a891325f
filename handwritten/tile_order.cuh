// In which order the tiles of C are taken.
#pragma once

struct TileOrigin {
    int m;
    int n;
};

// Tile number -> block tile, in groups of GROUP rows of tiles: a group walks along n, column by column, so
// that the blocks that run together touch a nearly square part of C. Odd groups walk back, which finds in L2
// the columns of B that the group before ended on.
template <int GROUP>
__device__ __forceinline__ TileOrigin tile_of(unsigned index, unsigned tiles_m, unsigned tiles_n) {
    const unsigned in_group = GROUP * tiles_n;
    const unsigned group = index / in_group, within = index % in_group;
    const unsigned rows = min(tiles_m - group * GROUP, static_cast<unsigned>(GROUP));
    const unsigned column = within / rows;
    return {static_cast<int>(group * GROUP + within % rows),
            static_cast<int>(group & 1 ? tiles_n - 1 - column : column)};
}
