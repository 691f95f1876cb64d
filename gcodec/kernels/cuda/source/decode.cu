// Lossless decoding of float32, bfloat16 and float16 by a block of threads for each block of a frame: what is most
// frequent, one level, one plane that takes whole bytes, heads of 8 bits, no column references.
#include "decode.cuh"

// Twelve bytes from any byte of a block on, or as many as there are.
template <typename V>
__device__ __forceinline__ uint3 twelve_bytes(const Block<V> &block, u32 byte) {
    u32 i = byte >> 2, w[4];
    if (byte + 16 <= block.size) {
#pragma unroll
        for (u32 k = 0; k < 4; k++) w[k] = block.word(i + k);
    } else {
#pragma unroll
        for (u32 k = 0; k < 4; k++) w[k] = block.word(least(i + k, block.last));
    }
    u32 shift = byte * 8;
    return {__funnelshift_r(w[0], w[1], shift), __funnelshift_r(w[1], w[2], shift), __funnelshift_r(w[2], w[3], shift)};
}

// Make four values of float32: `heads` and `owners` have a byte for each, items follow one another from `byte` on.
__device__ __forceinline__ void make_values(const Block<u32> &block, u32 byte, u32 heads, u32 owners, u32 *values) {
    uint3 x = twelve_bytes(block, byte);
    u32 shifts = (owners >> 7) * 24;    // a byte for each: 24 bits are left behind by a value that owns an item
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u32 head = __byte_perm(heads, 0, 0x0444 | k << 12) >> 1;         // the head's byte, one bit down from the top
        u32 tail = (u32)((i32)(x.x << 8) >> 8) & 0x807FFFFFu;           // sign, rest
        values[k] = owners >> (8 * k + 7) & 1 ? head | tail : 0;
        u32 shift = shifts >> 8 * k;
        x.x = __funnelshift_r(x.x, x.y, shift);
        x.y = __funnelshift_r(x.y, x.z, shift);
        x.z = __funnelshift_r(x.z, 0, shift);
    }
}

// Make four values of 16 bits, likewise.
__device__ __forceinline__ void make_values(const Block<u16> &block, u32 byte, u32 heads, u32 owners, u32 *values) {
    u32 items = block.bits(byte * 8), shifts = owners >> 4;   // 8 bits for each that owns an item
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u32 value = (heads >> 8 * k & 255) << 7 | (items & 127) | (items & 128) << 8;
        values[k] = owners >> (8 * k + 7) & 1 ? value : 0;
        items = __funnelshift_r(items, 0, shifts >> 8 * k);
    }
}

struct WholeDecoder : SymbolsShared {
    u32 first_item[MAX_STREAMS];    // items of the plane before each sub-stream

    template <typename V>
    __device__ __forceinline__ Status decode(const Block<V> &block, const Fields &f, const DecodeTables &tables, u32 book,
                                             const i64 *) {
        u32 n_items, total, first_head = tables.infos.data[book * 256 + 1] - 1;   // symbol 1 is the first of the range
        const u16 *lookup = tables.lookups.data + book * (u64)TABLE_SIZE;
        Status status = decode_symbols(block, f, lookup, first_head, head_bits(), *this, n_items);
        if (status != OK) return status;
        u32 before = sum_before_thread<true>(n_items, counts, total);   // its barrier also ends the symbols
        if (threadIdx.x < block.n_streams()) first_item[threadIdx.x] = before;
        __syncthreads();
        if (failed) return BAD_STREAM;
        if (total * (sizeof(V) == 4 ? 3 : 1) != f.plane_bytes) return BAD_PLANES;
        write_values(block);
        return OK;
    }

    // Put heads and tails together, a warp for each sub-stream; a lane does four values at a time.
    //
    //     symbols    s3 s2 s1 s0                  a word of shared memory
    //     owners     which of them are not zero; how many such there are before a lane is a sum over the warp
    //     items      those of the four lie side by side in the plane
    template <typename V>
    __device__ __forceinline__ void write_values(const Block<V> &block) const {
        u32 lane = threadIdx.x & 31, n_streams = block.n_streams();
        bool aligned = takes_four(block);
        for (u32 s = threadIdx.x >> 5; s < n_streams; s += WARPS) {
            u32 count = block.length(s), n_before = first_item[s], references = reference[s] * 0x01010101u;
            const u32 *row = symbols + block.row(s);
            for (u32 begin = 0; begin < count; begin += 128) {
                u32 k = begin + 4 * lane, i = (s << block.log2) + k;
                u32 four = k < count ? row[k >> 2] : 0;
                u32 owners = nonzero_bytes(four), own = __popc(owners), up_to = sum_up_to_lane(own, lane);
                u32 byte = CODED_HEADER + (n_before + up_to - own) * (sizeof(V) == 4 ? 3 : 1);
                n_before += __shfl_sync(ALL, up_to, 31);
                u32 heads = add_bytes(four, references), values[4];
                if (has_escape(four)) heads = with_escapes(block.out + i, four, heads);
                make_values(block, byte, heads, owners, values);
                put_values(block, aligned, i, k < count ? count - k : 0, values);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 4) decode_float32(const __grid_constant__ DecodeArguments<u32> a) {
    __shared__ WholeDecoder shared;
    decode_blocks(a, shared);
}

// bfloat16 and float16, which are cut alike.
extern "C" __global__ void __launch_bounds__(THREADS, 4) decode_float16(const __grid_constant__ DecodeArguments<u16> a) {
    __shared__ WholeDecoder shared;
    decode_blocks(a, shared);
}
