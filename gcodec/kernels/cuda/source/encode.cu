// Lossless encoding of float32, bfloat16 and float16 by a block of threads for each block of a frame: what is most
// frequent, values whose bits are all kept, in one plane of whole bytes.
#include "bare.cuh"

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

// Four times the head of a value: the place of its entry in bytes.
__device__ __forceinline__ u32 head_place(u32 value, const u32 *) { return value >> 21 & 0x3FC; }
__device__ __forceinline__ u32 head_place(u32 value, const u16 *) { return value >> 5 & 0x3FC; }

// Put the items of eight values, of which each owns one, into whole words.
//
//     items of four values     ..111111 | ..222222 | ...         24 bits each, in words of 32
//     three words              33333322 22221111 11000000       a digit for four bits, the lowest right
__device__ __forceinline__ void pack_items(const u32 *values, u32 (&words)[6], const u32 *) {
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
        u32 item[4];
#pragma unroll
        for (u32 n = 0; n < 4; n++) item[n] = item_of(values[4 * k + n], (const u32 *)0);
        words[3 * k] = __byte_perm(item[0], item[1], 0x4210);
        words[3 * k + 1] = __byte_perm(item[1], item[2], 0x5421);
        words[3 * k + 2] = __byte_perm(item[2], item[3], 0x6542);
    }
}

// Likewise, of 16 bits: from two values in a word, the items are bytes 0 and 2.
__device__ __forceinline__ void pack_items(const u32 *values, u32 (&words)[2], const u16 *) {
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
        u32 two[2];
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            u32 pair = values[4 * k + 2 * n] | values[4 * k + 2 * n + 1] << 16;
            two[n] = (pair & ~0x00800080u) | (pair >> 8 & 0x00800080u);
        }
        words[k] = __byte_perm(two[0], two[1], 0x6420);
    }
}

// Put the codes of eight values, none of which is an escape, so that all have 96 bits at most.
__device__ __forceinline__ void put_eight_codes(u32 *window, u32 bit, const u32 *entries) {
    uint3 bits = {0, 0, 0};
#pragma unroll
    for (u32 k = LANE_VALUES; k > 0; k -= 2) {
        u32 low = entries[k - 2], high = entries[k - 1];   // shifts look at the lowest five bits, which are the length
        put_before(bits, low >> CODE_BIT | __funnelshift_l(0, high >> CODE_BIT, low), low + high);
    }
    put_bits(window, CODE_WORDS, bit, bits);
}

// Likewise, where there may be escapes.
template <typename V>
__device__ __forceinline__ void put_escapes(u32 *window, u32 bit, const u32 *values, const u32 *entries, u32 escape_length) {
    put_codes<V>(window, bit, values, entries, escape_length);
#pragma unroll
    for (u32 k = 0; k < 4; k++) bit += entries[k] & LENGTH;
    put_codes<V>(window, bit, values + 4, entries + 4, escape_length);
}

struct WholeEncoder : StreamsShared {
    u32 entries[512];            // by relative head from -255 on, which is number 1; number 0 is that of zero
    u32 items[WARPS][ITEM_WORDS], codes[WARPS][CODE_WORDS];
    u32 packed[WARPS][STREAM_VALUES * 3 / 4];    // items of a sub-stream whose values all own one

    __device__ __forceinline__ void prepare(const EncodeTables &tables, i32 book) {
        u32 thread = threadIdx.x, entry = book < 0 ? 0 : make_entry(tables, book, thread);
        entries[256 + thread] = entry;
        entries[thread] = thread ? entry : book < 0 ? 0 : make_entry(tables, book, 256);   // heads count modulo 256
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
        u32 entry = entries[value ? 256 + head_of(value, (const V *)0) - reference : 0];
        return is_there ? entry : 0;
    }

    // What values take that are not zero.
    template <typename V>
    __device__ __forceinline__ void find_entries(const u32 *values, u32 reference, u32 *found) const {
        const u8 *own = (const u8 *)(entries + 256 - reference);
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++) found[k] = *(const u32 *)(own + head_place(values[k], (const V *)0));
    }

    // Find mean, bits and items of each sub-stream.
    template <typename V>
    __device__ __forceinline__ void measure(const Source<V> &source) {
        u32 lane = threadIdx.x & 31, n_streams = source.n_streams(), first = source.at(0), differs = 0, all = 0;
#pragma unroll 1
        for (u32 s = threadIdx.x >> 5; s < n_streams; s += WARPS) {
            u32 values[LANE_VALUES], own = read_lane(source, s, lane, values), places = 0, smallest = values[0];
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k++) {
                places += head_place(values[k], (const V *)0);
                smallest = least(smallest, values[k]);
            }
            // Of 256 heads, four times as much has at most 18 bits; above them: lanes that have a zero, or too few values.
            places = sum_of_warp(places + (smallest ? 0 : 1u << 20));
            uint2 found = places >> 20 ? measure_others(source, values, own, first, differs, all)
                                       : measure_dense<V>(values, places >> 10, first, differs, all);
            if (lane == 0) {
                means[s] = found.x;
                sums[s] = found.y;
            }
        }
        if (differs) atomicOr(&different, 1u);
        if (all & FAILS) atomicOr(&failed, 1u);
    }

    // Where a sub-stream has 256 values, and none is zero.
    template <typename V>
    __device__ __forceinline__ uint2 measure_dense(const u32 *values, u32 mean, u32 first, u32 &differs, u32 &all) const {
        u32 entries[LANE_VALUES];
        find_entries<V>(values, mean, entries);
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++) {
            differs |= values[k] ^ first;
            all |= entries[k];
        }
        return {mean | 1u << 31, sum_of_warp(takes_of(entries))};
    }

    // Where some are zero, or there are fewer.
    template <typename V>
    __device__ __forceinline__ uint2 measure_others(const Source<V> &, const u32 *values, u32 own, u32 first, u32 &differs,
                                                    u32 &all) const {
        u32 entries[LANE_VALUES], heads = 0;
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
        return {mean | (number ? 1u << 31 : 0), sum_of_warp(takes_of(entries))};
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
        u64 sum = 0;
        for (u32 i = lane; i < ITEM_WORDS; i += 32) items[warp][i] = 0;
        for (u32 i = lane; i < CODE_WORDS; i += 32) codes[warp][i] = 0;
        __syncwarp();
#pragma unroll 1
        for (u32 s = warp; s < n_streams; s += WARPS) {
            u32 n_items = this->sums[s] >> 16;
            if (n_items == 0) continue;   // neither items nor codes
            uint2 begin = begins<V>(p, starts[s]);
            u32 values[LANE_VALUES], own = read_lane(source, s, lane, values);
            sum += n_items == STREAM_VALUES ? write_dense(source, s, begin, values)
                                            : write_others(source, s, begin, values, own);
        }
        return sum;
    }

    // Where each of 256 values owns an item.
    template <typename V>
    __device__ __forceinline__ u64 write_dense(const Source<V> &source, u32 s, uint2 begin, const u32 *values) {
        u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, bytes = sizes_of(sums[s]) & 0xFFFF;
        u32 entries[LANE_VALUES], all = 0, *codes = this->codes[warp], *packed = this->packed[warp];
        find_entries<V>(values, means[s] & 255, entries);
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++) all |= entries[k];
        u32 bits = takes_of(entries) & 0xFFFF, code_bit = (begin.y & 3) * 8 + sum_up_to_lane(bits, lane) - bits;
        if (all & ESCAPES)
            put_escapes<V>(codes, code_bit, values, entries, escape_length);
        else
            put_eight_codes(codes, code_bit, entries);
        // Items begin at any byte of a word, so that each word has the upper bytes of one of the lane's, and lower ones of
        // the next:
        //
        //     of the lane       bbbb aaaa | dddd cccc
        //     of the block  a... | bbba | cccb | ..dd                as from byte 3 of a word on
        constexpr u32 N = LANE_VALUES * (sizeof(V) == 4 ? 3 : 1) / 4;   // words of a lane's items
        u32 words[N], shift = begin.x * 8;
        pack_items(values, words, (const V *)0);
        u32 last = words[N - 1], before = __shfl_up_sync(ALL, last, 1);
        if (lane == 0) before = 0;
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            packed[lane * N + k] = __funnelshift_l(before, words[k], shift);
            before = words[k];
        }
        __syncwarp();
        u32 i = (begin.x >> 2) + lane, multiplier = (i + 1) * MULTIPLIER;
        u64 sum = bring_out(source, codes, begin.y * 8, (begin.y + bytes) * 8);
        bool is_part = begin.x & 3;     // the first word has bytes of what lies before, and the last bytes go to one more
#pragma unroll
        for (u32 k = 0; k < N; k++, i += 32, multiplier += 32 * MULTIPLIER) {
            u32 word = packed[lane + 32 * k];
            if (k == 0 && lane == 0 && is_part) {
                sum += source.add(i, word);
            } else {
                source.put(i, word);
                sum += (u64)word * (multiplier | 1);
            }
        }
        if (lane == 31 && is_part) sum += source.add((begin.x >> 2) + 32 * N, __funnelshift_l(last, 0, shift));
        __syncwarp();
        return sum;
    }

    // Where some own none, or there are fewer.
    template <typename V>
    __device__ __forceinline__ u64 write_others(const Source<V> &source, u32 s, uint2 begin, const u32 *values, u32 own) {
        u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, *items = this->items[warp], *codes = this->codes[warp];
        constexpr u32 ITEM_BYTES = sizeof(V) == 4 ? 3 : 1;
        u32 sums = this->sums[s], bytes = sizes_of(sums) & 0xFFFF, n_items = sums >> 16;
        u32 entries[LANE_VALUES], mean = means[s] & 255;
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
        u64 sum = bring_out(source, items, begin.x * 8, (begin.x + n_items * ITEM_BYTES) * 8);
        sum += bring_out(source, codes, begin.y * 8, (begin.y + bytes) * 8);
        __syncwarp();
        return sum;
    }
};

template <typename V>
__device__ __forceinline__ void encode_whole(const EncodeArguments<V> &a, WholeEncoder &shared) {
    u32 block = take_number(a.out.numbers.data, shared.block);
    const i64 *row = row_of(a.tensors, block);
    shared.prepare(a.tables, (i32)row[BOOK]);
    encode_block(a, values_of(a.tensors, row, block), (i32)row[BOOK], shared);
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

struct BareShared {
    u64 cells[WARPS];
};

template <typename V>
__device__ __forceinline__ void write_bare(const BareArguments<V> &a, BareShared &shared) {
    write_bare_block(a, shared.cells, [](const Source<V> &block, const i64 *) { return block; });
}

extern "C" __global__ void __launch_bounds__(THREADS) write_bare_float32(const __grid_constant__ BareArguments<u32> a) {
    __shared__ BareShared shared;
    write_bare(a, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS) write_bare_float16(const __grid_constant__ BareArguments<u16> a) {
    __shared__ BareShared shared;
    write_bare(a, shared);
}
