// What the CUDA C++ kernels share: integers, arguments, sums over a block of threads, and words of encoded blocks.
//
// Compiled by NVRTC at run time, and by a C++ compiler for the host in tests (tests/gpu/host_threads.h), so nothing
// is included, and what a device has beside C++ is only: threadIdx, blockIdx, __syncthreads, __shfl_*_sync, __ballot_sync,
// __popc, __clz, __brev, __syncwarp, __reduce_add_sync, __funnelshift_r, __byte_perm, atomicOr, atomicAdd, __nanosleep, the
// vector types, and float arithmetic that is never contracted: __fadd_rn, __fsub_rn, __fmul_rn, __fdiv_rn, __fsqrt_rn, fabsf.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

#ifndef CHECK
#define CHECK(condition)  // tests on the host check bounds here
#endif

constexpr u32 THREADS = 256;  // of a block of the grid, which does one block of one frame
constexpr u32 WARPS = THREADS / 32;
constexpr u32 ALL = 0xFFFFFFFFu;  // every lane of a warp takes part

// An array as gcodec.kernels.cuda.launch_arguments packs it: numba's order of fields.
template <typename T, int D>
struct Array {
    void *meminfo, *parent;
    i64 n_items, item_bytes;
    T *data;
    i64 shape[D], strides[D];
};

// gcodec.kernels.cuda.launch_tables.ValueCoding.
struct ValueCoding {
    u32 width, head_bits, tail_bits, sign, infinity, smallest_normal, n_levels, n_planes, lossy, nearest, prune, sign_in_head;
};

// gcodec.kernels.block.header: kinds of blocks, sizes, and what can be wrong with one.
enum Kind : u32 { CONSTANT, RAW, CODED, PREDICTED, SPARSE };
enum Status : i32 { OK, BAD_CHECKSUM, BAD_KIND, BAD_FIELD, BAD_SIZE, BAD_STREAM, BAD_PLANES };
constexpr u32 BLOCK_HEADER = 16, CODED_HEADER = 32;

constexpr u32 BLOCK_BYTES = 1 << 20;                                  // no block of so few values is longer
constexpr u32 MAX_VALUES = 1 << 14, MAX_STREAMS = MAX_VALUES >> 6;    // of a block
constexpr u32 TABLE_SIZE = 1 << 12;                                   // windows of 12 bits
constexpr u32 ESCAPE = 255;

constexpr u32 MULTIPLIER = 0x9E3779B1u;               // of checksums (docs/format.md section 3)
constexpr u64 SEED = 0x9E3779B97F4A7C15ull;

__device__ __forceinline__ u32 least(u32 a, u32 b) { return a < b ? a : b; }

__device__ __forceinline__ u32 most(u32 a, u32 b) { return a > b ? a : b; }

__device__ __forceinline__ u32 ceil_bytes(u32 bits) { return (bits + 7) >> 3; }

// Return bit 7 of each byte of four that is not zero.
__device__ __forceinline__ u32 nonzero_bytes(u32 four) {
    //     byte           v vvvvvvv
    //     low seven      0 vvvvvvv + 0 1111111      bit 7 is set unless they are 0; at most 0xFE, so nothing carries
    //     | four         bit 7 of the byte itself
    return (((four & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | four) & 0x80808080u;
}

// Return whether one of four bytes is an escape.
__device__ __forceinline__ bool has_escape(u32 four) { return nonzero_bytes(~four) != 0x80808080u; }

// Return the sum of this lane's number and those of the lanes before it.
template <typename T>
__device__ __forceinline__ T sum_up_to_lane(T number, u32 lane) {
#pragma unroll
    for (u32 step = 1; step < 32; step += step) {
        T before = __shfl_up_sync(ALL, number, step);
        number += lane >= step ? before : 0;
    }
    return number;
}

// Return the sum of a warp's numbers, in each lane.
template <typename T>
__device__ __forceinline__ T sum_of_warp(T number) {
#pragma unroll
    for (u32 step = 16; step; step >>= 1) number += __shfl_xor_sync(ALL, number, step);
    return number;
}

// One instruction, where devices have it.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <>
__device__ __forceinline__ u32 sum_of_warp(u32 number) { return __reduce_add_sync(ALL, number); }
#endif

// Return the sum of all threads' numbers; cells: shared, one for each warp. Has two barriers; one where they are FRESH:
// no thread can still be reading them.
template <bool FRESH = false>
__device__ __forceinline__ u64 sum_of_block(u64 number, u64 *cells) {
    u32 thread = threadIdx.x;
    number = sum_of_warp(number);
    if (!FRESH) __syncthreads();
    if ((thread & 31) == 0) cells[thread >> 5] = number;
    __syncthreads();
    u64 total = 0;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) total += cells[w];
    return total;
}

// Return the sum of the numbers of the threads before this one, and in `total` that of all. Barriers as of sum_of_block.
template <bool FRESH = false, typename T>
__device__ __forceinline__ T sum_before_thread(T number, T *cells, T &total) {
    u32 thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
    T up_to = sum_up_to_lane(number, lane);
    if (!FRESH) __syncthreads();
    if (lane == 31) cells[warp] = up_to;
    __syncthreads();
    T before = up_to - number;
    total = 0;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) {
        before += w < warp ? cells[w] : 0;
        total += cells[w];
    }
    return before;
}

// What word number i of a checked sequence is multiplied by.
__device__ __forceinline__ u32 multiplier_of(u32 i) { return ((i + 1) * MULTIPLIER) | 1; }

__device__ __forceinline__ u64 weighed(u32 word, u32 i) { return (u64)word * multiplier_of(i); }
