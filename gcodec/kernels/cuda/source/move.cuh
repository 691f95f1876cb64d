// What the kernels share that move a block from its slot to its frame. Of a frame that has gone without its codebook, coded
// blocks are made anew, as raw ones.
#pragma once

#include "encode.cuh"

template <typename V>
struct MoveArguments {
    EncodeArguments<V> block;
    Array<const i64, 1> places;     // word of the target at which a block begins; -1 where there is no frame
    Array<const i64, 2> results;    // of a frame its size, and whether it has gone without its codebook
    Array<u32, 1> target;
};

template <typename T>
__device__ __forceinline__ void copy_all(const T *from, T *to, u32 n) {
    for (u32 i = threadIdx.x; i < n; i += THREADS) to[i] = from[i];
}

// Move a block, or write it anew as a raw one where its frame has gone without the codebook. `source_to` returns its
// values as they are coded, as a source that writes to this place.
template <typename V, typename SourceTo>
__device__ __forceinline__ void move_block(const MoveArguments<V> &a, u64 *cells, SourceTo source_to) {
    u32 g = blockIdx.x, kind = a.block.out.kinds.data[g];
    i64 place = a.places.data[g];
    if (place < 0) return;
    u32 *goal = a.target.data + place;
    const i64 *row = row_of(a.block.tensors);
    Source<V> block = source_of(a.block, row);
    if (kind == CODED && a.results.data[(i64)a.block.tensors.owner.data[g] * 2 + 1]) {
        auto source = source_to(block, row, goal);
        write_header(source, RAW, block.n, block.b, write_raw(source), cells);
        return;
    }
    u32 n_words = a.block.out.sizes.data[g] >> 2;
    if (((u64)block.slot | (u64)goal) % 8) {
        copy_all(block.slot, goal, n_words);
    } else {
        copy_all((const uint2 *)block.slot, (uint2 *)goal, n_words / 2);
    }
}
