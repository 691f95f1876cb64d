// Encoding to planes of at most 8 bits, heads relative to the mean of their sub-stream; and the moving of all blocks whose
// values are rounded.
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

struct MovePlanesShared {
    Rule rules[MAX_LEVELS];
    u64 cells[WARPS];
};

template <typename V>
__device__ __forceinline__ void move_planes(const MoveArguments<V> &a, MovePlanesShared &shared) {
    move_block(a, shared.cells, [&](const Source<V> &block, const i64 *row, u32 *goal) {
        if (threadIdx.x < MAX_LEVELS) shared.rules[threadIdx.x] = rule_of(a.block.tables, a.block.coding, 0, threadIdx.x);
        __syncthreads();
        Source<V> moved{block.values, block.n, block.b, goal, block.slot_words};
        return rounded_source(a.block, moved, row, shared.rules);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS) move_planes_float32(const __grid_constant__ MoveArguments<u32> a) {
    __shared__ MovePlanesShared shared;
    move_planes(a, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS) move_planes_float16(const __grid_constant__ MoveArguments<u16> a) {
    __shared__ MovePlanesShared shared;
    move_planes(a, shared);
}
