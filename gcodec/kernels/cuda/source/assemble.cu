// Preludes of frames, whose blocks are there, by a block of threads for each frame. A frame of coded blocks that is longer than
// one of raw blocks without a codebook becomes the latter: its blocks are written anew, to places that are found here.
//
//     frame     start (fixed, codebook) | block sizes, padded to 8 bytes | block 0 | block 1 | ...
//               ^ size, checksum        ^ index                          ^ prefix sums of the sizes
#include "encode.cuh"

struct SealArguments {
    Array<const i64, 2> rows, parts;    // tables of frames to encode, and to put together
    ValueCoding coding;
    Output out;                         // of the encoder
    Array<const u32, 1> starts;         // what comes before the indexes, sizes and checksums left zero
    Array<i64, 1> places;               // word of the target at which a block is written anew; -1 where it is not
    Array<i64, 2> results;              // bytes of a frame, 0 where there is none, for lack of room, or for a level that does
                                        // not exist; whether it has gone without its codebook
};

// Columns of the table of frames to put together (gcodec.kernels.cuda.launch_tables).
enum PartColumn { N_BLOCKS, PRELUDE, BARE, LIMIT, PLACE, ROOM, START, START_WORDS, N_PART_COLUMNS };

constexpr u32 SIZE_WORD = 4, CHECKSUM_WORD = 10;   // of a prelude: the first of two each

struct SealShared {
    u64 cells[WARPS];
    u32 counts[WARPS];
};

// The blocks of a frame.
struct Blocks {
    const u32 *sizes;
    const u8 *kinds;
    u64 n_values;
    u32 n, value_bytes;

    // Return the bytes of a block; without a codebook, coded blocks become raw.
    __device__ __forceinline__ u32 size(u32 b, bool bare) const {
        if (!bare || kinds[b] != CODED) return sizes[b];
        u64 left = n_values - (u64)b * MAX_VALUES;
        return filled_up(raw_bytes(left < MAX_VALUES ? (u32)left : MAX_VALUES, value_bytes));
    }

    // Return the bytes of all, in each thread.
    __device__ __forceinline__ u64 sum(bool bare, SealShared &shared) const {
        u64 share = 0;
        for (u32 b = threadIdx.x; b < n; b += THREADS) share += size(b, bare);
        return sum_of_block(share, shared.cells);
    }
};

__device__ __forceinline__ void seal_frame(const SealArguments &a, SealShared &shared) {
    u32 f = blockIdx.x, thread = threadIdx.x;
    const i64 *row = a.rows.data + (u64)f * N_SOURCE_COLUMNS, *part = a.parts.data + (u64)f * N_PART_COLUMNS;
    u64 first = (u64)row[FIRST_BLOCK];
    Blocks blocks{a.out.sizes.data + first, a.out.kinds.data + first, (u64)row[N_VALUES], (u32)part[N_BLOCKS],
                  a.coding.width >> 3};
    u64 bytes = blocks.sum(false, shared);
    bool bare = row[BOOK] >= 0 && (u64)part[PRELUDE] + bytes > (u64)part[LIMIT];
    if (bare) bytes = blocks.sum(true, shared);
    u64 prelude = (u64)part[bare ? BARE : PRELUDE], size = prelude + bytes;
    bool fits = size <= (u64)part[ROOM] && a.out.faults.data[f] == 0;
    if (thread == 0) {
        a.results.data[f * 2] = fits ? (i64)size : 0;
        a.results.data[f * 2 + 1] = bare;
    }
    u32 *frame = a.out.target.data + part[PLACE], n_words = (u32)part[START_WORDS];
    u32 index_words = (blocks.n + 1) & ~1u, index = (u32)(prelude >> 2) - index_words;
    const u32 *start = a.starts.data + (part[START] + (bare ? n_words : 0));
    u64 checked = 0, position = (u64)part[PLACE] + (prelude >> 2);
#pragma unroll 1
    for (u32 tile = 0; tile < blocks.n; tile += THREADS) {
        u32 b = tile + thread, own = b < blocks.n ? blocks.size(b, bare) : 0, all;
        u32 before = sum_before_thread(own, shared.counts, all);
        if (b < blocks.n) {
            a.places.data[first + b] = fits && bare ? (i64)(position + (before >> 2)) : -1;
            checked += weighed(own, index + b);
            if (fits) frame[index + b] = own;
        }
        position += all >> 2;
    }
    for (u32 i = thread; i < index; i += THREADS) {
        u32 word = i < n_words ? start[i] : 0;
        if (i == SIZE_WORD) word = (u32)size;
        if (i == SIZE_WORD + 1) word = (u32)(size >> 32);
        if (i == CHECKSUM_WORD || i == CHECKSUM_WORD + 1) continue;
        checked += weighed(word, i);
        if (fits) frame[i] = word;
    }
    u64 sum = sum_of_block(checked, shared.cells);
    if (thread) return;
    if (!fits) {
        frame[0] = 0;       // no magic number
        return;
    }
    if (index_words > blocks.n) frame[index + blocks.n] = 0;
    frame[CHECKSUM_WORD] = (u32)sum;
    frame[CHECKSUM_WORD + 1] = (u32)(sum >> 32);
}

extern "C" __global__ void __launch_bounds__(THREADS) seal_frames(const __grid_constant__ SealArguments a) {
    __shared__ SealShared shared;
    seal_frame(a, shared);
}
