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

// Make four values of float32 that all own an item; the four begin at a byte.
//
//     three words      3333 3322 2222 1111 1100 0000     a digit for four bits of an item, its number; the lowest right
//     top             0000 00.. | 1111 11.. | 2222 22.. | 3333 33..   of a word each: moved down by a byte, signs spread
__device__ __forceinline__ void make_dense(const Block<u32> &block, u32 byte, u32 heads, u32 *values) {
    u32 i = byte >> 2, shift = byte * 8, w[4];
#pragma unroll
    for (u32 k = 0; k < 3; k++) w[k] = block.word(i + k);
    w[3] = block.word(least(i + 3, block.last));   // not needed where the four begin with a word
    u32 x = __funnelshift_r(w[0], w[1], shift), y = __funnelshift_r(w[1], w[2], shift);
    u32 z = __funnelshift_r(w[2], w[3], shift);
    u32 top[4] = {x << 8, __funnelshift_r(x, y, 16), __funnelshift_r(y, z, 8), z};
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u32 head = __byte_perm(heads, 0, 0x0444 | k << 12) >> 1;
        values[k] = head | ((u32)((i32)top[k] >> 8) & 0x807FFFFFu);
    }
}

// Make four values of 16 bits, likewise, two at a time.
//
//     heads        h3 h2 h1 h0      items  t3 t2 t1 t0
//     two of each  .. h1 .. h0             .. t1 .. t0       a byte each
//     two values   s hhhhhhhh ttttttt s hhhhhhhh ttttttt     t is the seven lower bits of an item, s the highest
__device__ __forceinline__ void make_dense(const Block<u16> &block, u32 byte, u32 heads, u32 *values) {
    u32 items = block.bits(byte * 8);
#pragma unroll
    for (u32 k = 0; k < 4; k += 2) {
        u32 both = __byte_perm(items, 0, k ? 0x4342 : 0x4140), high = __byte_perm(heads, 0, k ? 0x4342 : 0x4140);
        u32 two = high << 7 | (both & 0x007F007Fu) | (both & 0x00800080u) << 8;
        values[k] = two & 0xFFFF;
        values[k + 1] = two >> 16;
    }
}

constexpr u32 DENSE = 1u << 31;   // in the number of items before a sub-stream: all of its values own one

struct WholeDecoder : SymbolsShared {
    u32 first_item[MAX_STREAMS];    // items of the plane before each sub-stream

    template <typename V>
    __device__ __forceinline__ Status decode(const Block<V> &block, const Fields &f, const DecodeTables &tables, u32 book,
                                             const i64 *) {
        u32 s = threadIdx.x, n_items, total, first_head = tables.infos.data[book * 256 + 1] - 1;   // symbol 1 begins the range
        const u16 *lookup = tables.lookups.data + book * (u64)TABLE_SIZE;
        Status status = decode_symbols(block, f, lookup, first_head, head_bits(), *this, n_items);
        if (status != OK) return status;
        u32 before = sum_before_thread<true>(n_items, counts, total);   // its barrier also ends the symbols
        if (s < block.n_streams()) first_item[s] = before | (is_dense(block, s, n_items) ? DENSE : 0);
        __syncthreads();
        if (failed) return BAD_STREAM;
        if (total * (sizeof(V) == 4 ? 3 : 1) != f.plane_bytes) return BAD_PLANES;
        write_values(block);
        return OK;
    }

    // Return whether a warp can write a sub-stream without a look at which values own an item, 128 values at a time.
    template <typename V>
    static __device__ __forceinline__ bool is_dense(const Block<V> &block, u32 s, u32 n_items) {
        return n_items == block.length(s) && n_items % 128 == 0 && takes_four(block);
    }

    // Put heads and tails together, a warp for each sub-stream; a lane does four values at a time.
    template <typename V>
    __device__ __forceinline__ void write_values(const Block<V> &block) const {
        u32 n_streams = block.n_streams();
        for (u32 s = threadIdx.x >> 5; s < n_streams; s += WARPS) {
            if (first_item[s] & DENSE)
                write_dense(block, s);
            else
                write_others(block, s);
        }
    }

    // Where all values own an item, each lane's begin 4 items behind those of the lane before.
    template <typename V>
    __device__ __forceinline__ void write_dense(const Block<V> &block, u32 s) const {
        constexpr u32 ITEM_BYTES = sizeof(V) == 4 ? 3 : 1;
        u32 k = 4 * (threadIdx.x & 31), count = block.length(s), references = reference[s] * 0x01010101u;
        u32 byte = CODED_HEADER + ((first_item[s] & ~DENSE) + k) * ITEM_BYTES;
        const u32 *at = symbols + block.row(s) + (k >> 2), *end = at + (count >> 2);
        V *out = block.out + ((s << block.log2) + k);
#pragma unroll 1
        for (; at < end; at += 32, byte += 128 * ITEM_BYTES, out += 128) {
            u32 four = *at, heads = add_bytes(four, references), values[4];
            if (has_escape(four)) heads = with_escapes(out, four, heads);
            make_dense(block, byte, heads, values);
            CHECK(out + 4 <= block.out + block.n);
            put_four(out, values);
        }
    }

    // Where some own none:
    //
    //     symbols    s3 s2 s1 s0                  a word of shared memory
    //     owners     which of them are not zero; how many such there are before a lane is a sum over the warp
    //     items      those of the four lie side by side in the plane
    template <typename V>
    __device__ __forceinline__ void write_others(const Block<V> &block, u32 s) const {
        u32 lane = threadIdx.x & 31, count = block.length(s), n_before = first_item[s] & ~DENSE;
        u32 references = reference[s] * 0x01010101u;
        bool aligned = takes_four(block);
        const u32 *row = symbols + block.row(s);
#pragma unroll 1
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
};

// Blocks of threads that shall find registers at once: a fifth, for which the compiler has to spill some on Blackwell.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr u32 AT_ONCE = 4;
#else
constexpr u32 AT_ONCE = 5;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE) decode_float32(const __grid_constant__ DecodeArguments<u32> a) {
    __shared__ WholeDecoder shared;
    decode_blocks(a, shared);
}

// bfloat16 and float16, which are cut alike.
extern "C" __global__ void __launch_bounds__(THREADS, 4) decode_float16(const __grid_constant__ DecodeArguments<u16> a) {
    __shared__ WholeDecoder shared;
    decode_blocks(a, shared);
}
