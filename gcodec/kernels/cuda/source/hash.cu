// Hashes of tensors: of a patch's base (docs/format.md section 8), a sum over its words; and XXH3 of 64 bits, for weight
// sync, of more than 240 bytes.
//
// XXH3 has eight accumulators. What a block of 1,024 bytes adds to them does not depend on them, so all blocks are summed
// at once; from block to block they are scrambled, one after the other, and that takes a sixteenth of the bytes. Many
// hashes are chained at once, each by a block of the grid.
//
//     bytes     0 ... 1023 | 1024 ... 2047 | ... | the rest, and the last 64 bytes once more
//     sums      8 words    | 8 words       | ... | 8 words                                       sum_hash_blocks
//     chain     + scramble | + scramble    | ... | +                                             chain_hash_blocks
#include "patch.cuh"

constexpr u32 HASH_PART_LOG2 = 14;     // words that a block of the grid sums (gcodec.kernels.cuda.sparse_tables)

// gcodec.gpu.hashing: where the words begin that the host sends, those of the secret first.
constexpr u32 SCRAMBLE_WORDS = 16, LAST_WORDS = 24, START_WORDS_AT = 32;
constexpr u32 HASH_BLOCK = 1024, STRIPE = 64, ACCUMULATORS = 8, BLOCKS_PER_SUM = 64;
constexpr u32 HASH_PRIME = 0x9E3779B1u;
constexpr u32 STAGED = 64 * ACCUMULATORS;     // words of 64 blocks, which are brought to shared memory together

struct SumWordsArguments {
    Array<const void, 1> values;
    SparseShape shape;
    Array<u64, 1> sums;
};

struct SumWordsShared {
    u64 cells[WARPS];
};

// Return four bytes from number `at` on, of n; zeros behind the last.
__device__ __forceinline__ u32 word_at(const u8 *bytes, u64 at, u64 n) {
    if (at + 4 <= n && ((u64)bytes & 3) == 0) return *(const u32 *)(bytes + at);
    u32 word = 0;
    for (u32 k = 0; k < 4 && at + k < n; k++) word |= (u32)bytes[at + k] << 8 * k;
    return word;
}

__device__ __forceinline__ void sum_part(const SumWordsArguments &a, SumWordsShared &shared) {
    const u8 *bytes = (const u8 *)a.values.data;
    u64 n_bytes = a.shape.n_values * (a.shape.width >> 3), first = (u64)blockIdx.x << HASH_PART_LOG2;
    u64 left = ((n_bytes + 3) >> 2) - first, whole = (n_bytes >> 2) - first;   // words, and those without a gap
    u32 n = left < 1u << HASH_PART_LOG2 ? (u32)left : 1u << HASH_PART_LOG2;
    u32 n_fours = (u64)bytes % 16 ? 0 : (whole < n ? (u32)whole : n) >> 2;
    const uint4 *fours = (const uint4 *)(bytes + first * 4);
    u64 sum = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < n_fours; i += THREADS) {
        CHECK((first + 4 * i + 4) * 4 <= n_bytes);
        uint4 four = fours[i];
        u32 index = (u32)first + 4 * i;
        sum += weighed(four.x, index) + weighed(four.y, index + 1) + weighed(four.z, index + 2) + weighed(four.w, index + 3);
    }
    for (u32 i = 4 * n_fours + threadIdx.x; i < n; i += THREADS)
        sum += weighed(word_at(bytes, (first + i) * 4, n_bytes), (u32)first + i);
    sum = sum_of_block(sum, shared.cells);
    if (threadIdx.x == 0) a.sums.data[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_words(const __grid_constant__ SumWordsArguments a) {
    __shared__ SumWordsShared shared;
    sum_part(a, shared);
}

struct SumHashArguments {
    Array<const u64, 1> words;     // the tensor's whole words
    Array<const u8, 1> data;
    u64 n_bytes;
    Array<const u64, 1> fixed;
    u64 first;                     // element of `sums` at which those of the tensor begin
    Array<u64, 1> sums;            // eight for each block, and eight for the rest
};

// Return the product of the two halves of a word.
__device__ __forceinline__ u64 product_of(u64 key) { return (key & 0xFFFFFFFFu) * (key >> 32); }

// Sum blocks, a warp for each: a lane takes every 32nd word, of which each is for the accumulator of the lane's number.
__device__ __forceinline__ void sum_blocks(const SumHashArguments &a, Nothing &) {
    u32 lane = threadIdx.x & 31, i = lane & (ACCUMULATORS - 1);
    u64 n_full = (a.n_bytes - 1) / HASH_BLOCK, first = (u64)blockIdx.x * BLOCKS_PER_SUM;
    u64 keys[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++) keys[k] = a.fixed.data[4 * k + (lane >> 3) + i];
#pragma unroll 2
    for (u32 k = threadIdx.x >> 5; k < BLOCKS_PER_SUM; k += WARPS) {
        u64 block = first + k, at = block * (HASH_BLOCK / 8) + lane, products = 0, plain = 0;
        if (block > n_full) break;
        u32 n_stripes = block < n_full ? HASH_BLOCK / STRIPE : (u32)(a.n_bytes - 1 - n_full * HASH_BLOCK) / STRIPE;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (4 * j + (lane >> 3) < n_stripes) {
                CHECK(at + 32 * j < (u64)a.words.n_items);
                u64 word = a.words.data[at + 32 * j];
                products += product_of(word ^ keys[j]);
                plain += word;
            }
        }
        if (block == n_full && lane < ACCUMULATORS) {      // the last stripe may begin anywhere
            u64 word = 0;
            for (u32 j = 0; j < 8; j++) word |= (u64)a.data.data[a.n_bytes - STRIPE + 8 * i + j] << 8 * j;
            products += product_of(word ^ a.fixed.data[LAST_WORDS + i]);
            plain += word;
        }
        u64 sum = products + __shfl_xor_sync(ALL, plain, 1);      // a word is added to the accumulator beside its own
        sum += __shfl_xor_sync(ALL, sum, 8);
        sum += __shfl_xor_sync(ALL, sum, 16);
        if (lane < ACCUMULATORS) a.sums.data[a.first + block * ACCUMULATORS + lane] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_hash_blocks(const __grid_constant__ SumHashArguments a) {
    Nothing nothing;
    sum_blocks(a, nothing);
}

struct ChainArguments {
    Array<const u64, 1> sums;
    Array<const i64, 1> firsts, n_fulls;   // of each hash, the element of `sums` at which its begin; its blocks but the rest
    Array<const u64, 1> fixed;
    Array<u64, 1> results;
};

struct ChainShared {
    u64 cells[2][STAGED];
};

// Bring sums from number `at` on to shared memory, by all threads but those of the first warp, which chains meanwhile.
__device__ __forceinline__ void stage_sums(const u64 *sums, u64 at, u64 end, u64 *cells) {
    if (threadIdx.x < 32) return;
    for (u32 j = threadIdx.x - 32; j < STAGED && at + j < end; j += THREADS - 32) cells[j] = sums[at + j];
}

__device__ __forceinline__ void chain_hash(const ChainArguments &a, ChainShared &shared) {
    u32 i = threadIdx.x, g = blockIdx.x;
    const u64 *sums = a.sums.data + a.firsts.data[g];
    u64 n_scrambled = (u64)a.n_fulls.data[g] * ACCUMULATORS, end = n_scrambled + ACCUMULATORS;
    CHECK((u64)a.firsts.data[g] + end <= (u64)a.sums.n_items);
    u64 total = 0, key = 0;
    if (i < ACCUMULATORS) {
        total = a.fixed.data[START_WORDS_AT + i];
        key = a.fixed.data[SCRAMBLE_WORDS + i];
    }
    stage_sums(sums, 0, end, shared.cells[0]);
    __syncthreads();
    for (u64 at = 0; at < end; at += STAGED) {
        u32 half = (u32)(at / STAGED) & 1;
        stage_sums(sums, at + STAGED, end, shared.cells[half ^ 1]);
        if (i < ACCUMULATORS) {
            const u64 *own = shared.cells[half] + i;
            u32 n = n_scrambled - at < STAGED ? (u32)(n_scrambled - at) : STAGED;
#pragma unroll 8
            for (u32 k = 0; k < n; k += ACCUMULATORS) {
                total += own[k];
                total = (total ^ total >> 47 ^ key) * HASH_PRIME;
            }
            if (n < STAGED) total += own[n];     // the rest
        }
        __syncthreads();
    }
    if (i < ACCUMULATORS) a.results.data[g * ACCUMULATORS + i] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS) chain_hash_blocks(const __grid_constant__ ChainArguments a) {
    __shared__ ChainShared shared;
    chain_hash(a, shared);
}
