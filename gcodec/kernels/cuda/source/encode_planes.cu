// Encoding to planes of at most 8 bits, heads relative to the mean of their sub-stream; and blocks of frames that have gone
// without their codebook, where values are rounded.
#include "encode_planes.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 3)
encode_planes_float32(const __grid_constant__ EncodeArguments<u32> a) {
    __shared__ PlanesEncoder<false> shared;
    encode_planes(a, shared);
}

// bfloat16 and float16, which are cut alike.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
encode_planes_float16(const __grid_constant__ EncodeArguments<u16> a) {
    __shared__ PlanesEncoder<false> shared;
    encode_planes(a, shared);
}

struct BarePlanesShared {
    Rule rules[MAX_LEVELS];
    u64 cells[WARPS];
};

template <typename V>
__device__ __forceinline__ void write_bare_planes(const BareArguments<V> &a, BarePlanesShared &shared) {
    write_bare_block(a, shared.cells, [&](const Source<V> &block, const i64 *row) {
        if (threadIdx.x < MAX_LEVELS) shared.rules[threadIdx.x] = rule_of(a.block.tables, a.block.coding, 0, threadIdx.x);
        __syncthreads();
        return rounded_source(a.block, block, row, shared.rules);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
write_bare_planes_float32(const __grid_constant__ BareArguments<u32> a) {
    __shared__ BarePlanesShared shared;
    write_bare_planes(a, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS)
write_bare_planes_float16(const __grid_constant__ BareArguments<u16> a) {
    __shared__ BarePlanesShared shared;
    write_bare_planes(a, shared);
}
