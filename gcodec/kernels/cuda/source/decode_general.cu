// Decoding of all frames of float32, bfloat16 and float16 that docs/format.md allows, in blocks of at most 2**14 values:
// with planes of any widths, heads of any, and column references. Items are taken one by one.
#include "decode_planes.cuh"

// Return the column references of four values, from number `value` of their frame on, a byte for each. Rows `begin` to
// `end` of the table may hold them; a value that is in none of these has 0.
//
//     row       first value | last value | number of columns | first head | values per head
__device__ __noinline__ u32 references_of_columns(const DecodeTables &tables, u32 begin, u32 end, u64 value) {
    u32 result = 0, column = 0;
    bool known = false;     // `column` is that of the value before, in the same row
#pragma unroll 1
    for (u32 j = 0; j < 4 && begin < end; j++, value++) {
        const i64 *span = tables.spans.data + begin * 5;
        while (value >= (u64)span[1]) {
            known = false;
            if (++begin == end) return result;
            span += 5;
        }
        if (value < (u64)span[0]) continue;
        u32 n_columns = (u32)span[2];
        column = known ? column + 1 : (u32)((value - (u64)span[0]) % n_columns);
        if (column == n_columns) column = 0;
        known = true;
        u64 head = (u64)span[3] + column / (u32)span[4];
        CHECK(head < (u64)tables.heads.shape[0]);
        result |= (u32)(u8)tables.heads.data[head] << 8 * j;
    }
    return result;
}

struct GeneralDecoder : PlanesShared {
    u32 n_head_bits;
    bool sign_in_head;      // then the tail's highest bit lies where the sign otherwise does, and the two are swapped

    __device__ __forceinline__ u32 head_bits() const { return n_head_bits; }
    static __device__ __forceinline__ u32 max_flags(const i64 *row) { return row[N_SPANS] ? 1 : 0; }

    template <typename V>
    __device__ __forceinline__ Status decode(const Block<V> &block, const Fields &f, const DecodeTables &tables, u32 book,
                                             const i64 *row) {
        Status status = find_items(block, f, tables, book, n_head_bits, false);
        if (status != OK) return status;
        uint2 spans = {0, 0};
        if (f.flags) spans = find_spans(block, tables, row);
        write_values(block, f, tables, spans);
        return OK;
    }

    // Return which of the table's column references the block meets: the first, and the one after the last. They follow
    // one another in the order of their values. Has two barriers.
    template <typename V>
    __device__ __forceinline__ uint2 find_spans(const Block<V> &block, const DecodeTables &tables, const i64 *row) {
        u32 first = (u32)row[FIRST_SPAN], n = (u32)row[N_SPANS];
        u64 found = 0;      // how many end before the block, and 32 bits up how many begin before its end
        for (u32 k = threadIdx.x; k < n; k += THREADS) {
            const i64 *span = tables.spans.data + (first + k) * 5;
            found += ((u64)span[1] <= block.first ? 1 : 0) + ((u64)span[0] < block.first + block.n ? 1ull << 32 : 0);
        }
        found = sum_of_block(found, cells);
        return {first + (u32)found, first + (u32)(found >> 32)};
    }

    // Put heads and tails together, as PlanesDecoder does, but each value's head and items by themselves.
    template <typename V>
    __device__ __forceinline__ void write_values(const Block<V> &block, const Fields &f, const DecodeTables &tables,
                                                 uint2 spans) const {
        u32 lane = threadIdx.x & 31, n_streams = block.n_streams(), own_plane = plane_of(lane, n_planes);
        u32 below = 8 * (u32)sizeof(V) - 1 - n_head_bits, head_mask = (1u << n_head_bits) - 1;    // bits below the head
        u32 swapped = sign_in_head;     // of the head's lowest bit and the tail's highest
        bool aligned = takes_four(block);
#pragma unroll 1
        for (u32 s = threadIdx.x >> 5; s < n_streams; s += WARPS) {
            u32 count = block.length(s), base = f.base + block.number(f.references_at, f.reference_width, s);
            const u32 *row = symbols + block.row(s);
            // The bit at which the next items of a plane begin, in the lane of its number.
            u32 width_here = widths[own_plane], items_here = before[pair_of(own_plane)][s] >> shift_of(own_plane) & 0xFFFF;
            u32 next = places[own_plane] + items_here * width_here;
#pragma unroll 1
            for (u32 begin = 0; begin < count; begin += 128) {
                u32 k = begin + 4 * lane, i = (s << block.log2) + k, four = k < count ? row[k >> 2] : 0, owned = 0;
                u32 heads[4], tails[4] = {0, 0, 0, 0}, low, high;
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    SymbolParts found = parts[four >> 8 * j & 255];
                    heads[j] = base + found.entry;
                    owned |= found.owned << j;
                }
                count_owned(owned, low, high);
                u32 low_up_to = sum_up_to_lane(low, lane), high_up_to = sum_up_to_lane(high, lane);
                u32 low_before = low_up_to - low, high_before = high_up_to - high;
#pragma unroll 1
                for (u32 p = n_planes; p-- > 0;) {
                    u32 width = widths[p], items_before = (p < 4 ? low_before : high_before) >> 8 * (p & 3) & 255;
                    u32 at = __shfl_sync(ALL, next, p) + items_before * width, owners = digit_of(owned, p);
#pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        if (owners >> j & 1) {
                            tails[j] = __funnelshift_r(tails[j], block.bits(at), width);
                            at += width;
                        }
                    }
                }
                u32 low_all = __shfl_sync(ALL, low_up_to, 31), high_all = __shfl_sync(ALL, high_up_to, 31);
                next += ((own_plane < 4 ? low_all : high_all) >> 8 * (own_plane & 3) & 255) * width_here;
                u32 columns = spans.x < spans.y ? references_of_columns(tables, spans.x, spans.y, block.first + i) : 0;
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    u32 symbol = four >> 8 * j & 255, head = heads[j] + (u32)(i32)(signed char)(columns >> 8 * j);
                    if (symbol == ESCAPE) head = block.out[i + j];
                    u32 top = tails[j] >> 31, differ = (top ^ head) & swapped;
                    u32 value = (top ^ differ) << (8 * sizeof(V) - 1) | ((head ^ differ) & head_mask) << below;
                    value |= tails[j] << 1 >> (32 - below);
                    tails[j] = symbol ? value : 0;
                }
                put_values(block, aligned, i, k < count ? count - k : 0, tails);
            }
        }
    }
};

template <typename V>
__device__ __forceinline__ void decode_general(const DecodeArguments<V> &a, GeneralDecoder &shared) {
    if (threadIdx.x == 0) {
        shared.n_planes = a.coding.n_planes;
        shared.n_head_bits = a.coding.head_bits;
        shared.sign_in_head = a.coding.sign_in_head;
    }
    decode_blocks(a, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
decode_general_float32(const __grid_constant__ DecodeArguments<u32> a) {
    __shared__ GeneralDecoder shared;
    decode_general(a, shared);
}

// bfloat16 and float16; those of 8 bits of head are cut alike.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
decode_general_float16(const __grid_constant__ DecodeArguments<u16> a) {
    __shared__ GeneralDecoder shared;
    decode_general(a, shared);
}
