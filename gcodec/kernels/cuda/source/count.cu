// Histograms of heads relative to the mean of their sub-stream, for a fresh codebook, by a block of threads for each block
// of a tensor, where heads have 8 bits and sub-streams 2**8 values. Values are counted before they are rounded. Of a
// sub-stream of zeros one value is counted, as gcodec.kernels.sample.count does.
//
//     bin    0       1               2 ... window + 1    window + 2 ... 2 window + 1    ...
//     of     zero    outside all     level 0             level 1                        ...
#include "encode.cuh"

constexpr u32 MAX_BINS = 2 + 16 * 64;

template <typename V>
struct CountArguments {
    Tensors<V> tensors;
    ValueCoding coding;
    Array<const u32, 1> drops;
    u32 window, center;
    Array<u32, 2> counts;
};

struct CountShared {
    u32 bins[MAX_BINS];
};

// Return the bin of a value of level 0 that is not zero, by its head and the mean of its sub-stream's.
__device__ __forceinline__ u32 bin_of(u32 head, u32 mean, u32 window, u32 center) {
    u32 relative = ((head - mean + 128) & 255) - (128 - center);
    return relative >= window ? 1 : relative + 2;
}

template <typename V>
__device__ __forceinline__ void count_block(const CountArguments<V> &a, CountShared &shared) {
    const i64 *row = row_of(a.tensors, blockIdx.x);
    Source<V> source = values_of(a.tensors, row, blockIdx.x);
    const u8 *levels = a.tensors.levels.data + ((u64)row[LEVELS] + (u64)source.b * MAX_VALUES);
    u32 n_bins = (u32)a.counts.shape[1], n_levels = a.coding.n_levels, lane = threadIdx.x & 31;
    CHECK(n_bins <= MAX_BINS);
    for (u32 i = threadIdx.x; i < n_bins; i += THREADS) shared.bins[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (u32 s = threadIdx.x >> 5; s < source.n_streams(); s += WARPS) {
        u32 values[LANE_VALUES], own = read_lane(source, s, lane, values), heads = 0;
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++)
            heads += head_of(values[k], (const V *)0) + (values[k] ? 1u << 20 : 0);   // and how many are not zero
        //     bits        31 ... 20       19 ... 0
        //     heads       how many        the sum of heads, at most 256 * 255: it does not reach the count
        heads = sum_of_warp(heads);
        u32 number = heads >> 20, mean = (heads & 0xFFFFF) / (number ? number : 1);
        u32 begin = s * STREAM_VALUES + lane * LANE_VALUES;
        if (number == 0) own = lane == 0;      // of a sub-stream of zeros one value is counted
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++) {
            if (k >= own) break;
            u32 bin = values[k] ? bin_of(head_of(values[k], (const V *)0), mean, a.window, a.center) : 0;
            if (bin > 1 && n_levels > 1) bin += a.window * least(levels[begin + k], n_levels - 1);
            CHECK(bin < n_bins);
            atomicAdd(shared.bins + bin, 1u);
        }
    }
    __syncthreads();
    u32 *counts = a.counts.data + (u64)a.tensors.owner.data[blockIdx.x] * n_bins;
    for (u32 i = threadIdx.x; i < n_bins; i += THREADS)
        if (shared.bins[i]) atomicAdd(counts + i, shared.bins[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS) count_float32(const __grid_constant__ CountArguments<u32> a) {
    __shared__ CountShared shared;
    count_block(a, shared);
}

// bfloat16 and float16, which are cut alike.
extern "C" __global__ void __launch_bounds__(THREADS) count_float16(const __grid_constant__ CountArguments<u16> a) {
    __shared__ CountShared shared;
    count_block(a, shared);
}
