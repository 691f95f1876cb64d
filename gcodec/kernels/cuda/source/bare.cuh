// What the kernels share that write the blocks of a frame anew which has gone without its codebook: coded blocks become raw.
#pragma once

#include "encode.cuh"

template <typename V>
struct BareArguments {
    EncodeArguments<V> block;
    Array<const i64, 1> places;     // word of the target at which a block begins; -1 where it stays as it is
};

// Write a block. `source_of` returns a block's values as they are coded, by its row.
template <typename V, typename SourceOf>
__device__ __forceinline__ void write_bare_block(const BareArguments<V> &a, u64 *cells, SourceOf source_of) {
    u32 g = blockIdx.x;
    i64 place = a.places.data[g];
    if (place < 0) return;
    const i64 *row = row_of(a.block.tensors, g);
    Source<V> block = values_of(a.block.tensors, row, g);
    bool constant = a.block.out.kinds.data[g] == CONSTANT;
    block.words = a.block.out.target.data + place;
    block.n_words = (constant ? 24 : filled_up(raw_bytes(block.n, sizeof(V)))) >> 2;
    auto source = source_of(block, row);
    u64 sum = constant ? write_constant(source) : write_raw(source);
    write_header(source, constant ? CONSTANT : RAW, block.n, block.b, sum, cells);
}
