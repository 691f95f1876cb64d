// Lossless encoding of float32, bfloat16 and float16 by a block of threads for each block of a frame: what is most
// frequent, values whose bits are all kept, in one plane of whole bytes.
#include "move.cuh"

constexpr u32 ITEM_WORDS = STREAM_VALUES * 3 / 4 + 5;      // of a sub-stream, at most, and what four values may reach beyond

__device__ __forceinline__ u32 item_of(u32 value, const u32 *) { return (value & 0x7FFFFF) | (value >> 8 & 0xFF800000); }
__device__ __forceinline__ u32 item_of(u32 value, const u16 *) { return (value & 127) | (value >> 8 & 128); }

// Where a sub-stream's items and codes begin, in bytes of the block.
template <typename V>
__device__ __forceinline__ uint2 begins(const Places &p, u32 start) {
    return {CODED_HEADER + (start >> 16) * (sizeof(V) == 4 ? 3 : 1), p.streams_at + (start & 0xFFFF)};
}

// Pack the items of four values; a value without an item is zero, and so would be its item.
__device__ __forceinline__ void put_items(u32 *window, u32 bit, const u32 *values, const u32 *entries, const u32 *) {
    uint3 bits = {0, 0, 0};
#pragma unroll
    for (u32 k = 4; k-- > 0;) put_before(bits, item_of(values[k], (const u32 *)0), entries[k] & OWNS ? 24 : 0);
    put_bits(window, ITEM_WORDS, bit, bits);
}

__device__ __forceinline__ void put_items(u32 *window, u32 bit, const u32 *values, const u32 *entries, const u16 *) {
    u32 bits = 0;
#pragma unroll
    for (u32 k = 4; k-- > 0;) bits = bits << (entries[k] & OWNS ? 8 : 0) | item_of(values[k], (const u16 *)0);
    put_bits(window, ITEM_WORDS, bit, bits);
}

struct WholeEncoder : StreamsShared {
    u32 entries[257];            // by relative head; the last is that of zero
    u32 items[WARPS][ITEM_WORDS], codes[WARPS][CODE_WORDS];

    __device__ __forceinline__ void prepare(const EncodeTables &tables, i32 book) {
        u32 thread = threadIdx.x;
        entries[thread] = book < 0 ? 0 : make_entry(tables, book, thread);
        if (thread == 0) entries[256] = book < 0 ? 0 : make_entry(tables, book, 256);
    }

    // What the values of a relative head take, by its symbol; 256 stands for zero.
    static __device__ __forceinline__ u32 make_entry(const EncodeTables &tables, u32 book, u32 relative) {
        const u32 *range = tables.ranges.data + (u64)book * 48;
        u32 step = (relative - range[0]) & 255;
        return entry_of_symbol(tables, book, relative == 256 ? 0 : step < range[1] ? range[2] + step : ESCAPE);
    }

    // What a value takes; nothing if it is behind the last.
    template <typename V>
    __device__ __forceinline__ u32 entry_of(u32 value, u32 reference, bool is_there) const {
        u32 relative = (head_of(value, (const V *)0) - reference) & 255;
        u32 entry = entries[value ? relative : 256];
        return is_there ? entry : 0;
    }

    // Find mean, bits and items of each sub-stream.
    template <typename V>
    __device__ __forceinline__ void measure(const Source<V> &source) {
        u32 lane = threadIdx.x & 31, n_streams = source.n_streams(), first = source.at(0), differs = 0, all = 0;
#pragma unroll 1
        for (u32 s = threadIdx.x >> 5; s < n_streams; s += WARPS) {
            u32 values[LANE_VALUES], entries[LANE_VALUES], own = read_lane(source, s, lane, values), heads = 0;
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k++) {
                heads += head_of(values[k], (const V *)0) + (values[k] ? 1u << 20 : 0);   // and how many are not zero
                differs |= k < own ? values[k] ^ first : 0;
            }
            heads = sum_of_warp(heads);
            u32 number = heads >> 20, mean = (heads & 0xFFFFF) / (number ? number : 1);
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k++) {
                entries[k] = entry_of<V>(values[k], mean, k < own);
                all |= entries[k];
            }
            u32 taken = sum_of_warp(takes_of(entries));
            if (lane == 0) {
                means[s] = mean | (number ? 1u << 31 : 0);
                sums[s] = taken;
            }
        }
        if (differs) atomicOr(&different, 1u);
        if (all & FAILS) atomicOr(&failed, 1u);
    }

    // Find where everything goes.
    template <typename V>
    __device__ __forceinline__ Places place(const Source<V> &source) {
        Places p = find_streams(source, *this);
        p.behind(p.n_nonzero * (sizeof(V) == 4 ? 3 : 1));
        return p;
    }

    // Clear the words in which items of a sub-stream begin.
    template <typename V>
    __device__ __forceinline__ void clear(const Source<V> &source, const Places &p) const {
        u32 s = threadIdx.x;
        if (s < p.n_streams) source.put(begins<V>(p, starts[s]).x >> 2, 0);
    }

    // Write the codes and items of all sub-streams; return this thread's share of the checksum.
    template <typename V>
    __device__ __forceinline__ u64 write(const Source<V> &source, const Places &p) {
        u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_streams = source.n_streams();
        u32 *items = this->items[warp], *codes = this->codes[warp];
        constexpr u32 ITEM_BYTES = sizeof(V) == 4 ? 3 : 1;
        u64 sum = 0;
        for (u32 i = lane; i < ITEM_WORDS; i += 32) items[i] = 0;
        for (u32 i = lane; i < CODE_WORDS; i += 32) codes[i] = 0;
        __syncwarp();
#pragma unroll 1
        for (u32 s = warp; s < n_streams; s += WARPS) {
            u32 sums = this->sums[s], bytes = sizes_of(sums) & 0xFFFF, n_items = sums >> 16;
            if (n_items == 0) continue;   // neither items nor codes
            uint2 begin = begins<V>(p, starts[s]);
            u32 values[LANE_VALUES], entries[LANE_VALUES], own = read_lane(source, s, lane, values);
            u32 mean = means[s] & 255;
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k++) entries[k] = entry_of<V>(values[k], mean, k < own);
            u32 takes = takes_of(entries), before = sum_up_to_lane(takes, lane) - takes;
            u32 item_bit = (begin.x & 3) * 8 + (before >> 16) * ITEM_BYTES * 8, code_bit = (begin.y & 3) * 8 + (before & 0xFFFF);
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k += 4) {
                put_items(items, item_bit, values + k, entries + k, (const V *)0);
                put_codes<V>(codes, code_bit, values + k, entries + k, escape_length);
#pragma unroll
                for (u32 j = k; j < k + 4; j++) {
                    item_bit += entries[j] & OWNS ? ITEM_BYTES * 8 : 0;
                    code_bit += entries[j] & LENGTH;
                }
            }
            __syncwarp();
            sum += bring_out(source, items, begin.x * 8, (begin.x + n_items * ITEM_BYTES) * 8);
            sum += bring_out(source, codes, begin.y * 8, (begin.y + bytes) * 8);
            __syncwarp();
        }
        return sum;
    }
};

template <typename V>
__device__ __forceinline__ void encode_whole(const EncodeArguments<V> &a, WholeEncoder &shared) {
    const i64 *row = row_of(a.tensors);
    shared.prepare(a.tables, (i32)row[BOOK]);
    note_block(a, encode_block(source_of(a, row), a.tables, (i32)row[BOOK], shared));
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) encode_float32(const __grid_constant__ EncodeArguments<u32> a) {
    __shared__ WholeEncoder shared;
    encode_whole(a, shared);
}

// bfloat16 and float16, which are cut alike.
extern "C" __global__ void __launch_bounds__(THREADS, 4) encode_float16(const __grid_constant__ EncodeArguments<u16> a) {
    __shared__ WholeEncoder shared;
    encode_whole(a, shared);
}

struct MoveShared {
    u64 cells[WARPS];
};

template <typename V>
__device__ __forceinline__ void move_whole(const MoveArguments<V> &a, MoveShared &shared) {
    move_block(a, shared.cells, [](const Source<V> &block, const i64 *, u32 *goal) {
        return Source<V>{block.values, block.n, block.b, goal, block.slot_words};
    });
}

extern "C" __global__ void __launch_bounds__(THREADS) move_float32(const __grid_constant__ MoveArguments<u32> a) {
    __shared__ MoveShared shared;
    move_whole(a, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS) move_float16(const __grid_constant__ MoveArguments<u16> a) {
    __shared__ MoveShared shared;
    move_whole(a, shared);
}
