// Lossless encoding of float32, bfloat16 and float16 by a block of threads for each block of a frame.
//
//     1  table                     a thread for each relative head: the code of its symbol
//     2  means, bits, items        a warp for each sub-stream, eight values a lane
//     3  places                    each warp for itself, by sums over its lanes, of which each stands for two sub-streams
//     4  codes and tails to words  a warp for each sub-stream again: its values are read a second time, from cache if it
//                                  has them, packed in shared memory, and go to the slot word by word
//
// It is encode_blocks of gcodec/kernels/cuda/encode.py for what is most frequent: values whose bits are all kept, in one
// plane of whole bytes, heads of 8 bits, and a codebook whose heads are relative to the mean of their sub-stream. So a
// symbol depends on nothing outside of its sub-stream. Arguments and results are the same.
#include "device.cuh"

template <typename V>
struct Tensors {
    Array<const V, 1> values;
    Array<const u8, 1> levels;
    Array<const i64, 2> rows;
    Array<const i32, 1> owner;
};

struct EncodeTables {
    Array<const u32, 1> drops, widths;
    Array<const u64, 1> shifts;
    Array<const u32, 2> codes, infos;
    Array<const u32, 3> ranges;
    Array<const u32, 2> escapes;
};

struct Output {
    Array<u32, 1> slots, sizes;
    Array<u8, 1> kinds;
    Array<u32, 1> faults;
};

template <typename V>
struct EncodeArguments {
    Tensors<V> tensors;
    ValueCoding coding;
    EncodeTables tables;
    Output out;
};

// Columns of the table of frames (gcodec.kernels.cuda.launch_tables).
enum SourceColumn { VALUES, LEVELS, N_VALUES, FIRST_BLOCK, BOOK, STREAM_LOG2, REFERENCES, SLOT, N_SOURCE_COLUMNS };

constexpr u32 STREAM_VALUES = 256, LANE_VALUES = STREAM_VALUES / 32;   // values of a sub-stream, and of a lane
constexpr u32 ENCODED_STREAMS = MAX_VALUES / STREAM_VALUES;
constexpr u32 NO_CODE = 64;                              // gcodec.kernels.entropy.prefix_code
// Of a sub-stream, at most, and what four values may reach beyond.
constexpr u32 ITEM_WORDS = STREAM_VALUES * 3 / 4 + 5, CODE_WORDS = STREAM_VALUES * 20 / 32 + 5;

// What the values of a symbol take:
//
//     bits      31 ... 12   8              6         5        4 ... 0
//               code        owns an item   no code   escape   length of the code; with that of its head for an escape
constexpr u32 OWNS = 1u << 8, FAILS = 1u << 6, ESCAPES = 1u << 5, LENGTH = 31, CODE_BIT = 12;

struct EncodeShared {
    u32 entries[257];            // by relative head; the last is that of zero
    u32 means[ENCODED_STREAMS];          // of heads; behind it, bit 31: the sub-stream has values that are not zero
    u32 sums[ENCODED_STREAMS];           // its bits and, 16 bits up, its items
    u32 starts[ENCODED_STREAMS];         // the bytes of the sub-streams before it and, 16 bits up, the items before it
    u32 items[WARPS][ITEM_WORDS], codes[WARPS][CODE_WORDS];
    u64 cells[WARPS];
    u32 different, failed;
};

// A block to be encoded.
template <typename V>
struct Source {
    const V *values;
    u32 n, b;            // its values, and its number in the frame
    u32 *slot, slot_words;

    __device__ __forceinline__ u32 at(u32 i) const {
        CHECK(i < n);
        return values[i];
    }
    __device__ __forceinline__ u32 n_streams() const { return (n + STREAM_VALUES - 1) / STREAM_VALUES; }
    __device__ __forceinline__ void put(u32 i, u32 word) const {
        CHECK(i < slot_words);
        slot[i] = word;
    }
    // Add bits to a word that others add to as well; return what they add to the checksum.
    __device__ __forceinline__ u64 add(u32 i, u32 word) const {
        CHECK(i < slot_words);
        if (word) atomicOr(slot + i, word);
        return weighed(word, i);
    }
    // Add a number of at most 16 bits, likewise.
    __device__ __forceinline__ u64 add_number(u32 bit, u32 number) const {
        u64 both = (u64)number << (bit & 31);
        u64 sum = add(bit >> 5, (u32)both);
        if (both >> 32) sum += add((bit >> 5) + 1, (u32)(both >> 32));
        return sum;
    }
};

// The regions of a coded block; all in bytes.
struct Places {
    u32 base, reference_width, min_bytes, length_width, symbol_bytes, plane_bytes;
    u32 streams_at, lengths_at, references_at, body;
};

__device__ __forceinline__ u32 bit_length(u32 number) { return 32 - __clz(number); }

__device__ __forceinline__ u32 head_of(u32 value, const u32 *) { return value >> 23 & 255; }
__device__ __forceinline__ u32 head_of(u32 value, const u16 *) { return value >> 7 & 255; }
__device__ __forceinline__ u32 item_of(u32 value, const u32 *) { return (value & 0x7FFFFF) | (value >> 8 & 0xFF800000); }
__device__ __forceinline__ u32 item_of(u32 value, const u16 *) { return (value & 127) | (value >> 8 & 128); }

__device__ __forceinline__ void load_lane(const u32 *from, u32 *values) {
    CHECK((u64)from % 16 == 0);
    uint4 low = ((const uint4 *)from)[0], high = ((const uint4 *)from)[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

__device__ __forceinline__ void load_lane(const u16 *from, u32 *values) {
    CHECK((u64)from % 16 == 0);
    uint4 all = *(const uint4 *)from;
    values[0] = all.x & 0xFFFF, values[1] = all.x >> 16, values[2] = all.y & 0xFFFF, values[3] = all.y >> 16;
    values[4] = all.z & 0xFFFF, values[5] = all.z >> 16, values[6] = all.w & 0xFFFF, values[7] = all.w >> 16;
}

// Read the eight values of this lane of a sub-stream, zeros behind the last; return how many there are.
template <typename V>
__device__ __forceinline__ u32 read_lane(const Source<V> &source, u32 s, u32 lane, u32 *values) {
    u32 begin = s * STREAM_VALUES + lane * LANE_VALUES;
    u32 own = begin < source.n ? least(source.n - begin, LANE_VALUES) : 0;
    if (own == LANE_VALUES && (u64)source.values % 16 == 0) {
        load_lane(source.values + begin, values);
    } else {
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++) values[k] = k < own ? source.at(begin + k) : 0;
    }
    return own;
}

// What a value takes; nothing if it is behind the last.
template <typename V>
__device__ __forceinline__ u32 entry_of(const EncodeShared &shared, u32 value, u32 reference, bool is_there) {
    u32 relative = (head_of(value, (const V *)0) - reference) & 255;
    u32 entry = shared.entries[value ? relative : 256];
    return is_there ? entry : 0;
}

// What the values of a relative head take, by its symbol; 256 stands for zero.
__device__ __forceinline__ u32 make_entry(const EncodeTables &tables, u32 book, u32 relative) {
    const u32 *range = tables.ranges.data + (u64)book * 48, *escape = tables.escapes.data + (u64)book * 2;
    u32 step = (relative - range[0]) & 255, symbol = relative == 256 ? 0 : step < range[1] ? range[2] + step : ESCAPE;
    u32 code = tables.codes.data[(u64)book * 256 + symbol];
    if ((code & 255) == NO_CODE)
        return OWNS | ESCAPES | (escape[1] ? 0 : FAILS) | escape[0] << CODE_BIT | (escape[1] + 8);
    return code >> 8 << CODE_BIT | (code & LENGTH) | (symbol ? OWNS : 0);
}

// Sum the bits of eight values and, 16 bits up, their items.
__device__ __forceinline__ u32 takes_of(const u32 *entries) {
    u32 sum = 0;
#pragma unroll
    for (u32 k = 0; k < LANE_VALUES; k++) sum += entries[k] & (OWNS | LENGTH);   // at most 160, and 8 in bits 8 ... 11
    return (sum & 255) | sum >> 8 << 16;
}

// Find mean, bits and items of each sub-stream.
template <typename V>
__device__ __forceinline__ void measure_streams(const Source<V> &source, EncodeShared &shared) {
    u32 lane = threadIdx.x & 31, n_streams = source.n_streams(), first = source.at(0), different = 0, failed = 0;
#pragma unroll 1
    for (u32 s = threadIdx.x >> 5; s < n_streams; s += WARPS) {
        u32 values[LANE_VALUES], entries[LANE_VALUES], own = read_lane(source, s, lane, values), heads = 0;
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++) {
            heads += head_of(values[k], (const V *)0) + (values[k] ? 1u << 20 : 0);   // and how many are not zero
            different |= k < own ? values[k] ^ first : 0;
        }
        heads = sum_of_warp(heads);
        u32 number = heads >> 20, mean = (heads & 0xFFFFF) / (number ? number : 1);
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++) {
            entries[k] = entry_of<V>(shared, values[k], mean, k < own);
            failed |= entries[k];
        }
        u32 sums = sum_of_warp(takes_of(entries));
        if (lane == 0) {
            shared.means[s] = mean | (number ? 1u << 31 : 0);
            shared.sums[s] = sums;
        }
    }
    if (different) atomicOr(&shared.different, 1u);
    if (failed & FAILS) atomicOr(&shared.failed, 1u);
}

// Return the bytes of a sub-stream, of which one whose values are all zero has none, and 16 bits up its items.
__device__ __forceinline__ u32 sizes_of(u32 sums) { return sums >> 16 ? ceil_bytes(sums & 0xFFFF) | (sums & ~0xFFFFu) : 0; }

// Find where everything goes; each warp does so for itself, and the first notes where sub-streams begin.
template <typename V>
__device__ __forceinline__ Places find_places(const Source<V> &source, EncodeShared &shared) {
    u32 lane = threadIdx.x & 31, n_streams = source.n_streams(), sizes[2], sum = 0;
    u32 min_mean = ALL, max_mean = 0, min_bytes = ALL, max_bytes = 0;
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
        u32 s = 2 * lane + k;
        sizes[k] = s < n_streams ? sizes_of(shared.sums[s]) : 0;
        u32 mean = s < n_streams ? shared.means[s] : 0, bytes = sizes[k] & 0xFFFF;
        if (mean >> 31) {
            mean &= 255;
            min_mean = least(min_mean, mean);
            max_mean = most(max_mean, mean);
        }
        if (s < n_streams) min_bytes = least(min_bytes, bytes);
        max_bytes = most(max_bytes, bytes);
        sum += sizes[k];
    }
    u32 up_to = sum_up_to_lane(sum, lane), all = __shfl_sync(ALL, up_to, 31);
    if (threadIdx.x < 32) {
        shared.starts[2 * lane] = up_to - sum;
        shared.starts[2 * lane + 1] = up_to - sum + sizes[0];
    }
#pragma unroll
    for (u32 step = 16; step; step >>= 1) {
        min_mean = least(min_mean, __shfl_xor_sync(ALL, min_mean, step));
        max_mean = most(max_mean, __shfl_xor_sync(ALL, max_mean, step));
        min_bytes = least(min_bytes, __shfl_xor_sync(ALL, min_bytes, step));
        max_bytes = most(max_bytes, __shfl_xor_sync(ALL, max_bytes, step));
    }
    Places p;
    p.base = least(min_mean, max_mean);   // 0 of a block of zeros
    p.reference_width = bit_length(max_mean - p.base);
    p.min_bytes = min_bytes;
    p.length_width = bit_length(max_bytes - min_bytes);
    p.symbol_bytes = all & 0xFFFF;
    p.plane_bytes = (all >> 16) * (sizeof(V) == 4 ? 3 : 1);
    p.streams_at = CODED_HEADER + p.plane_bytes;
    p.lengths_at = p.streams_at + p.symbol_bytes;
    p.references_at = p.lengths_at + ceil_bytes(n_streams * p.length_width);
    p.body = p.references_at + ceil_bytes(n_streams * p.reference_width);
    return p;
}

// Where a sub-stream's items and codes begin, in bytes of the block.
template <typename V>
__device__ __forceinline__ uint2 begins(const Places &p, u32 start) {
    return {CODED_HEADER + (start >> 16) * (sizeof(V) == 4 ? 3 : 1), p.streams_at + (start & 0xFFFF)};
}

// Clear all words that get bits of several sub-streams or fields: those in which one begins, and those behind.
template <typename V>
__device__ __forceinline__ void clear_edges(const Source<V> &source, const Places &p, const EncodeShared &shared) {
    u32 s = threadIdx.x;
    if (s < source.n_streams()) {
        uint2 begin = begins<V>(p, shared.starts[s]);
        source.put(begin.x >> 2, 0);
        source.put(begin.y >> 2, 0);
    }
    for (u32 i = (p.lengths_at >> 2) + s; i < (p.body + 7) >> 3 << 1; i += THREADS) source.put(i, 0);
}

// Put the bits of four values, at most 96 of them, into a window of words; they begin at bit `bit`.
__device__ __forceinline__ void put_bits(u32 *window, u32 n_words, u32 bit, uint3 bits) {
    u32 *at = window + (bit >> 5);
    CHECK((bit >> 5) + 3 < n_words);
    atomicOr(at, __funnelshift_l(0, bits.x, bit));
    atomicOr(at + 1, __funnelshift_l(bits.x, bits.y, bit));
    atomicOr(at + 2, __funnelshift_l(bits.y, bits.z, bit));
    atomicOr(at + 3, __funnelshift_l(bits.z, 0, bit));
}

// As far as there are no more than 32.
__device__ __forceinline__ void put_bits(u32 *window, u32 n_words, u32 bit, u32 bits) {
    u32 *at = window + (bit >> 5);
    CHECK((bit >> 5) + 1 < n_words);
    atomicOr(at, __funnelshift_l(0, bits, bit));
    atomicOr(at + 1, __funnelshift_l(bits, 0, bit));
}

// Put further bits before those that are there, which move up; of a length only the lowest five bits count.
__device__ __forceinline__ void put_before(uint3 &bits, u32 more, u32 length) {
    bits.z = __funnelshift_l(bits.y, bits.z, length);
    bits.y = __funnelshift_l(bits.x, bits.y, length);
    bits.x = __funnelshift_l(0, bits.x, length) | more;
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

// Pack the codes of four values.
template <typename V>
__device__ __forceinline__ void put_codes(u32 *window, u32 bit, const u32 *values, const u32 *entries, u32 escape_length) {
    uint3 bits = {0, 0, 0};
#pragma unroll
    for (u32 k = 4; k-- > 0;) {
        u32 code = entries[k] >> CODE_BIT;
        if (entries[k] & ESCAPES) code |= head_of(values[k], (const V *)0) << escape_length;
        put_before(bits, code, entries[k]);
    }
    put_bits(window, CODE_WORDS, bit, bits);
}

// Bring a warp's words from shared memory to the slot, and clear them; they hold the bytes from `begin` to `end`.
template <typename V>
__device__ __forceinline__ u64 bring_out(const Source<V> &source, u32 *window, u32 begin, u32 end) {
    u64 sum = 0;
#pragma unroll 1
    for (u32 i = (begin >> 2) + (threadIdx.x & 31); i << 2 < end; i += 32) {
        u32 at = i - (begin >> 2), word = window[at];
        window[at] = 0;
        if (i << 2 < begin || (i << 2) + 4 > end) {
            sum += source.add(i, word);
        } else {
            source.put(i, word);
            sum += weighed(word, i);
        }
    }
    return sum;
}

// Write the codes and items of all sub-streams; return this thread's share of the checksum.
template <typename V>
__device__ __forceinline__ u64 write_streams(const Source<V> &source, const Places &p, u32 escape_length,
                                             EncodeShared &shared) {
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_streams = source.n_streams();
    u32 *items = shared.items[warp], *codes = shared.codes[warp];
    constexpr u32 ITEM_BYTES = sizeof(V) == 4 ? 3 : 1;
    u64 sum = 0;
    for (u32 i = lane; i < ITEM_WORDS; i += 32) items[i] = 0;
    for (u32 i = lane; i < CODE_WORDS; i += 32) codes[i] = 0;
    __syncwarp();
#pragma unroll 1
    for (u32 s = warp; s < n_streams; s += WARPS) {
        u32 sums = shared.sums[s], bytes = sizes_of(sums) & 0xFFFF, n_items = sums >> 16;
        if (n_items == 0) continue;   // neither items nor codes
        uint2 begin = begins<V>(p, shared.starts[s]);
        u32 values[LANE_VALUES], entries[LANE_VALUES], own = read_lane(source, s, lane, values);
        u32 mean = shared.means[s] & 255;
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++) entries[k] = entry_of<V>(shared, values[k], mean, k < own);
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
        sum += bring_out(source, items, begin.x, begin.x + n_items * ITEM_BYTES);
        sum += bring_out(source, codes, begin.y, begin.y + bytes);
        __syncwarp();
    }
    return sum;
}

// Write lengths and references of all sub-streams, and the fields behind the block's header; likewise.
template <typename V>
__device__ __forceinline__ u64 write_fields(const Source<V> &source, const Places &p, const EncodeShared &shared) {
    u32 s = threadIdx.x;
    u64 sum = 0;
    if (s < source.n_streams()) {
        u32 mean = shared.means[s] & 255, bytes = sizes_of(shared.sums[s]) & 0xFFFF;
        sum += source.add_number(p.lengths_at * 8 + s * p.length_width, bytes - p.min_bytes);
        sum += source.add_number(p.references_at * 8 + s * p.reference_width, mean > p.base ? mean - p.base : 0);
    }
    if (s < 4) {
        u32 widths = (p.min_bytes & 0xFFFF) | p.length_width << 16 | p.reference_width << 24;
        u32 word = s == 0 ? p.symbol_bytes : s == 1 ? p.plane_bytes : s == 2 ? widths : 0;
        source.put(4 + s, word);
        sum += weighed(word, 4 + s);
    }
    return sum;
}

// Write the values as they are; likewise.
template <typename V>
__device__ __forceinline__ u64 write_raw(const Source<V> &source) {
    constexpr u32 PER_WORD = 4 / sizeof(V);
    u32 n_words = ((source.n + PER_WORD - 1) / PER_WORD + 1) & ~1u;
    u64 sum = 0;
    for (u32 j = threadIdx.x; j < n_words; j += THREADS) {
        u32 word = 0;
        for (u32 k = 0; k < PER_WORD; k++) {
            u32 i = j * PER_WORD + k;
            if (i < source.n) word |= source.at(i) << (k * 16);
        }
        source.put(4 + j, word);
        sum += weighed(word, 4 + j);
    }
    return sum;
}

// A block that is written but for its first four words.
struct Written {
    u32 kind, base, size;
    u64 sum;             // this thread's share of the checksum
};

template <typename V>
__device__ __forceinline__ Written write_body(const Source<V> &source, u32 escape_length, EncodeShared &shared) {
    u32 raw_body = BLOCK_HEADER + source.n * (u32)sizeof(V), different = shared.different;
    if (!different && source.n > 1) {
        u32 value = source.at(0);
        if (threadIdx.x) return {CONSTANT, 0, 24, 0};
        source.put(4, value);
        source.put(5, 0);
        return {CONSTANT, 0, 24, weighed(value, 4)};
    }
    Places p = find_places(source, shared);
    if (!different || shared.failed || p.body >= raw_body) return {RAW, 0, (raw_body + 7) & ~7u, write_raw(source)};
    __syncthreads();
    clear_edges(source, p, shared);
    __syncthreads();
    u64 sum = write_streams(source, p, escape_length, shared);
    return {CODED, p.base, (p.body + 7) & ~7u, sum + write_fields(source, p, shared)};
}

template <typename V>
__device__ __forceinline__ Written encode_block(const Source<V> &source, const EncodeTables &tables, i32 book,
                                                EncodeShared &shared) {
    u32 thread = threadIdx.x;
    shared.entries[thread] = book < 0 ? 0 : make_entry(tables, book, thread);
    if (thread == 0) {
        shared.entries[256] = book < 0 ? 0 : make_entry(tables, book, 256);
        shared.different = 0;
        shared.failed = book < 0;
    }
    __syncthreads();
    measure_streams(source, shared);
    __syncthreads();
    Written done = write_body(source, book < 0 ? 0 : tables.escapes.data[(u64)book * 2 + 1], shared);
    u32 first = done.kind | done.base << 16;
    u64 sum = sum_of_block(done.sum, shared.cells) + (source.b + 1) * SEED + weighed(first, 0) + weighed(source.n, 1);
    if (thread == 0) {
        source.put(0, first);
        source.put(1, source.n);
        source.put(2, (u32)sum);
        source.put(3, (u32)(sum >> 32));
    }
    return done;
}

template <typename V>
__device__ __forceinline__ void encode_blocks(const EncodeArguments<V> &a, EncodeShared &shared) {
    u32 g = blockIdx.x;
    const i64 *row = a.tensors.rows.data + (i64)a.tensors.owner.data[g] * N_SOURCE_COLUMNS;
    u32 b = g - (u32)row[FIRST_BLOCK], slot_words = BLOCK_HEADER / 4 + MAX_VALUES * (u32)sizeof(V) / 4;
    u64 first = (u64)b * MAX_VALUES, left = (u64)row[N_VALUES] - first;
    u32 n = left < MAX_VALUES ? (u32)left : MAX_VALUES;
    u32 *slot = a.out.slots.data + ((u64)row[SLOT] + (u64)b * slot_words);
    Source<V> source{a.tensors.values.data + ((u64)row[VALUES] + first), n, b, slot, slot_words};
    Written done = encode_block(source, a.tables, (i32)row[BOOK], shared);
    if (threadIdx.x == 0) {
        a.out.sizes.data[g] = done.size;
        a.out.kinds.data[g] = (u8)done.kind;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) encode_float32(const __grid_constant__ EncodeArguments<u32> a) {
    __shared__ EncodeShared shared;
    encode_blocks(a, shared);
}

// bfloat16 and float16, which are cut alike.
extern "C" __global__ void __launch_bounds__(THREADS, 4) encode_float16(const __grid_constant__ EncodeArguments<u16> a) {
    __shared__ EncodeShared shared;
    encode_blocks(a, shared);
}
