// What the CUDA C++ decoders share whose values have their bits in several planes: where the items of each lie.
#pragma once

#include "planes.cuh"
#include "decode.cuh"

struct PlanesShared : SymbolsShared {
    SymbolParts parts[256];
    u32 before[4][MAX_STREAMS];     // items of two planes before each sub-stream
    u32 places[MAX_PLANES];         // bit of the block at which each plane begins
    u32 widths[MAX_PLANES];
    u32 n_planes;

    // Decode the symbols, and find the planes and the items that each sub-stream has in them.
    template <typename V>
    __device__ __forceinline__ Status find_items(const Block<V> &block, const Fields &f, const DecodeTables &tables,
                                                 u32 book, u32 head_bits, bool with_marks) {
        u32 n_items, end, thread = threadIdx.x;
        u32 info = tables.infos.data[book * 256 + thread];
        u32 mark = info >> 16 & 255;
        parts[thread] = {(info & 0xFFFF) | (with_marks ? __brev(mark) >> (32 - n_planes) << 16 : 0), spread(mark)};
        if (thread < MAX_PLANES) widths[thread] = tables.widths.data[thread];
        const u16 *lookup = tables.lookups.data + book * (u64)TABLE_SIZE;
        Status status = decode_symbols(block, f, lookup, 0, head_bits, *this, n_items);
        if (status != OK) return status;
        __syncthreads();
        if (failed) return BAD_STREAM;
        count_items(block);
        __syncthreads();
        end = place_planes(block);
        __syncthreads();
        return end == CODED_HEADER + f.plane_bytes ? OK : BAD_PLANES;
    }

    // Add up what four symbols own.
    __device__ __forceinline__ u32 owned_by(u32 four) const {
        return parts[four & 255].owned + parts[four >> 8 & 255].owned + parts[four >> 16 & 255].owned + parts[four >> 24].owned;
    }

    // Count the items of each sub-stream by planes, a warp for each.
    template <typename V>
    __device__ __forceinline__ void count_items(const Block<V> &block) {
        u32 lane = threadIdx.x & 31, n_streams = block.n_streams();
        for (u32 s = threadIdx.x >> 5; s < n_streams; s += WARPS) {
            u32 count = block.length(s), sums[4] = {0, 0, 0, 0};
            const u32 *row = symbols + block.row(s);
#pragma unroll 1
            for (u32 k = 4 * lane; k < count; k += 256) {    // eight values: a digit counts up to 15
                u32 four = row[k >> 2], next = k + 128 < count ? row[(k >> 2) + 32] : 0;
                add_pairs(sums, owned_by(four) + owned_by(next));
            }
#pragma unroll
            for (u32 w = 0; w < 4; w++) {
                if (w < 2 || n_planes > 4) {
                    sums[w] = sum_of_warp(sums[w]);
                    if (lane == 0) before[w][s] = sums[w];
                }
            }
        }
    }

    // Find the items before each sub-stream, and where the planes begin; return the byte at which the last one ends.
    template <typename V>
    __device__ __forceinline__ u32 place_planes(const Block<V> &block) {
        u32 s = threadIdx.x, totals[4] = {0, 0, 0, 0}, end = CODED_HEADER;
#pragma unroll
        for (u32 w = 0; w < 4; w++) {
            if (w < 2 || n_planes > 4) {
                u32 sum = sum_before_thread(s < block.n_streams() ? before[w][s] : 0, counts, totals[w]);
                before[w][s] = sum;
            }
        }
#pragma unroll
        for (u32 p = 0; p < MAX_PLANES; p++) {
            if (s == 0) places[p] = end * 8;
            end += ceil_bytes(number_of(totals, p) * widths[p]);
        }
        return end;
    }
};
