// What the CUDA C++ encoders share: values of a block, its sub-streams' codes, header and fields.
//
//     1  table                     what the values of a symbol, or of a relative head, take
//     2  means, bits, items        a warp for each sub-stream, eight values a lane
//     3  places                    each warp for itself, by sums over its lanes, of which each stands for two sub-streams;
//                                  the first warp looks back at the frame's blocks before this one
//     4  codes and tails to words  a warp for each sub-stream again: its values are read a second time, from cache if it
//                                  has them, packed in shared memory, and go to the frame word by word
//
// Heads have 8 bits and, but for general encoders, are relative to the mean of their sub-stream. So a symbol depends on
// nothing outside of its sub-stream. Without a codebook, blocks are constant or raw. Each block goes to where it belongs in
// its frame, or nowhere if the frame has no room for it. An encoder is its shared memory, with methods for what differs:
// `prepare`, `measure`, `place`, `clear` and `write`.
#pragma once

#include "look_back.cuh"

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
    Array<u32, 1> target, sizes;    // all frames are reached from their places in the target on
    Array<u8, 1> kinds;
    Array<u32, 1> faults, numbers;  // of blocks that have begun: one number
    Array<u64, 1> told;
};

template <typename V>
struct EncodeArguments {
    Tensors<V> tensors;
    ValueCoding coding;
    EncodeTables tables;
    Output out;
};

// Columns of the table of frames (gcodec.kernels.cuda.launch_tables).
enum SourceColumn { VALUES, LEVELS, N_VALUES, FIRST_BLOCK, BOOK, STREAM_LOG2, REFERENCES, BODY, END, N_SOURCE_COLUMNS };

constexpr u32 STREAM_VALUES = 256, LANE_VALUES = STREAM_VALUES / 32;   // values of a sub-stream, and of a lane
constexpr u32 ENCODED_STREAMS = MAX_VALUES / STREAM_VALUES;
constexpr u32 NO_CODE = 64;                              // gcodec.kernels.entropy.prefix_code
constexpr u32 CODE_WORDS = STREAM_VALUES * 20 / 32 + 5;    // of a sub-stream, at most, and what four values may reach beyond

// What the values of a symbol take:
//
//     bits      31 ... 20   17        16       8              4 ... 0
//               code        no code   escape   owns an item   length of the code; with that of its head for an escape
//
// Lengths and items of eight values are summed as they stand: the length then has bits 7 ... 0, the items 11 ... 8.
constexpr u32 OWNS = 1u << 8, FAILS = 1u << 17, ESCAPES = 1u << 16, LENGTH = 31, CODE_BIT = 20;

// The regions of a coded block; all in bytes.
struct Places {
    u32 base, reference_width, min_bytes, length_width, symbol_bytes, plane_bytes;
    u32 streams_at, lengths_at, references_at, body, n_streams, n_nonzero;

    // Place everything behind the planes, which take so many bytes.
    __device__ __forceinline__ void behind(u32 bytes) {
        plane_bytes = bytes;
        streams_at = CODED_HEADER + plane_bytes;
        lengths_at = streams_at + symbol_bytes;
        references_at = lengths_at + ceil_bytes(n_streams * length_width);
        body = references_at + ceil_bytes(n_streams * reference_width);
    }
};

// Of an encoder's shared memory the beginning.
struct StreamsShared {
    u32 means[ENCODED_STREAMS];          // of heads; behind it, bit 31: the sub-stream has values that are not zero
    u32 sums[ENCODED_STREAMS];           // its bits and, 16 bits up, how many of its values are not zero
    u32 starts[ENCODED_STREAMS];         // likewise of all sub-streams before it, in bytes
    Places all_places;
    u64 cells[WARPS];
    u32 escape_length;                   // of its code
    u32 block;                           // the block's number in the launch
    u32 number, n_values;                // of the block in its frame, and of its values: needed at the end
    u32 different, failed;
    u32 fits;                            // whether the frame has room for the block
    u64 begin;                           // word of the target at which the block begins
};

// A block to be encoded.
template <typename V>
struct Source {
    typedef V Value;

    const V *values;
    u32 n, b;            // its values, and its number in the frame
    u32 *words, n_words; // where it goes, once that is known

    __device__ __forceinline__ u32 at(u32 i) const {
        CHECK(i < n);
        return values[i];
    }
    __device__ __forceinline__ u32 n_streams() const { return (n + STREAM_VALUES - 1) / STREAM_VALUES; }
    __device__ __forceinline__ void put(u32 i, u32 word) const {
        CHECK(i < n_words);
        words[i] = word;
    }
    // Add bits to a word that others add to as well; return what they add to the checksum.
    __device__ __forceinline__ u64 add(u32 i, u32 word) const {
        CHECK(!word || i < n_words);
        if (word) atomicOr(words + i, word);
        return weighed(word, i);
    }
    // Add a number of at most 16 bits, likewise.
    __device__ __forceinline__ u64 add_number(u32 bit, u32 number) const {
        // At most 16 bits from bit 31 on: they end in the next word, which is touched only if they get there.
        u64 both = (u64)number << (bit & 31);
        u64 sum = add(bit >> 5, (u32)both);
        if (both >> 32) sum += add((bit >> 5) + 1, (u32)(both >> 32));
        return sum;
    }
};

__device__ __forceinline__ u32 bit_length(u32 number) { return 32 - __clz(number); }

__device__ __forceinline__ u32 head_of(u32 value, const u32 *) { return value >> 23 & 255; }
__device__ __forceinline__ u32 head_of(u32 value, const u16 *) { return value >> 7 & 255; }
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

// Eight values, or as many bytes.
struct Eight {
    uint4 low, high;
};

// Read as many of eight numbers as there are, one by one; zeros behind the last.
template <typename T>
__device__ __noinline__ Eight read_some(const T *from, u32 own) {
    return {{own > 0 ? (u32)from[0] : 0, own > 1 ? (u32)from[1] : 0, own > 2 ? (u32)from[2] : 0, own > 3 ? (u32)from[3] : 0},
            {own > 4 ? (u32)from[4] : 0, own > 5 ? (u32)from[5] : 0, own > 6 ? (u32)from[6] : 0, own > 7 ? (u32)from[7] : 0}};
}

__device__ __forceinline__ Eight eight_of(const u32 *values) {
    return {{values[0], values[1], values[2], values[3]}, {values[4], values[5], values[6], values[7]}};
}

__device__ __forceinline__ void put_eight(const Eight &eight, u32 *values) {
    values[0] = eight.low.x, values[1] = eight.low.y, values[2] = eight.low.z, values[3] = eight.low.w;
    values[4] = eight.high.x, values[5] = eight.high.y, values[6] = eight.high.z, values[7] = eight.high.w;
}

// Read the eight values of this lane of a sub-stream, zeros behind the last; return how many there are.
template <typename V>
__device__ __forceinline__ u32 read_lane(const Source<V> &source, u32 s, u32 lane, u32 *values) {
    u32 begin = s * STREAM_VALUES + lane * LANE_VALUES;
    u32 own = begin < source.n ? least(source.n - begin, LANE_VALUES) : 0;
    if (own == LANE_VALUES && (u64)source.values % 16 == 0) {
        load_lane(source.values + begin, values);
    } else {
        put_eight(read_some(source.values + begin, own), values);
    }
    return own;
}

// What the values of a symbol take.
__device__ __forceinline__ u32 entry_of_symbol(const EncodeTables &tables, u32 book, u32 symbol) {
    const u32 *escape = tables.escapes.data + (u64)book * 2;
    u32 code = tables.codes.data[(u64)book * 256 + symbol];
    if ((code & 255) == NO_CODE)
        return OWNS | ESCAPES | (escape[1] ? 0 : FAILS) | escape[0] << CODE_BIT | (escape[1] + 8);
    return code >> 8 << CODE_BIT | (code & LENGTH) | (symbol ? OWNS : 0);
}

// Sum the bits of eight values and, 16 bits up, their items.
__device__ __forceinline__ u32 takes_of(const u32 *entries) {
    u32 sum = 0;
#pragma unroll
    for (u32 k = 0; k < LANE_VALUES; k++) sum += entries[k];
    return (sum & 255) | (sum & 0xF00) << 8;
}

// Return the bytes of a sub-stream, of which one whose values are all zero has none, and 16 bits up its items.
__device__ __forceinline__ u32 sizes_of(u32 sums) { return sums >> 16 ? ceil_bytes(sums & 0xFFFF) | (sums & ~0xFFFFu) : 0; }

// Find what the fields of sub-streams take; each warp does so for itself, and the first notes where sub-streams begin.
template <typename V>
__device__ __forceinline__ Places find_streams(const Source<V> &source, StreamsShared &shared) {
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
    p.n_nonzero = all >> 16;
    p.n_streams = n_streams;
    return p;
}

// Clear all words that get bits of several sub-streams or fields, behind the planes: those in which codes of one begin,
// and those of the fields.
template <typename V>
__device__ __forceinline__ void clear_streams(const Source<V> &source, const Places &p, const StreamsShared &shared) {
    u32 s = threadIdx.x, own = s < p.n_streams ? (p.streams_at + (shared.starts[s] & 0xFFFF)) >> 2 : ALL;
    if (own < source.n_words) source.put(own, 0);     // an empty one may begin where the block ends
    for (u32 i = (p.lengths_at >> 2) + s; i < (p.body + 7) >> 3 << 1; i += THREADS) source.put(i, 0);
}

// Put the bits of four values, at most 96 of them, into a window of words; they begin at bit `bit`.
__device__ __forceinline__ void put_bits(u32 *window, u32 n_words, u32 bit, uint3 bits) {
    // A funnel shift by bit mod 32 gives each word the lower bits of its own 32 and the upper ones of those before.
    // atomicOr, as neighboring lanes have bits in the same word.
    //
    //     bits          z z z z y y y y x x x x           96, lowest right
    //     words         ...z | zzzy | yyyx | xxx.         four, moved up by bit mod 32
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

// Bring a warp's words from shared memory to the block, and clear them; they hold the block's bits from `begin` to `end`.
template <typename V>
__device__ __forceinline__ u64 bring_out(const Source<V> &source, u32 *window, u32 begin, u32 end) {
    u64 sum = 0;
#pragma unroll 1
    for (u32 i = (begin >> 5) + (threadIdx.x & 31); i << 5 < end; i += 32) {
        u32 at = i - (begin >> 5), word = window[at];
        window[at] = 0;
        if (i << 5 < begin || (i << 5) + 32 > end) {
            sum += source.add(i, word);
        } else {
            source.put(i, word);
            sum += weighed(word, i);
        }
    }
    return sum;
}

// Write lengths and references of all sub-streams, and the fields behind the block's header; likewise.
template <typename V>
__device__ __forceinline__ u64 write_fields(const Source<V> &source, const Places &p, const StreamsShared &shared) {
    u32 s = threadIdx.x;
    u64 sum = 0;
    if (s < p.n_streams) {
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
template <typename S>
__device__ __forceinline__ u64 write_raw(const S &source) {
    constexpr u32 PER_WORD = 4 / sizeof(typename S::Value);
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

// Return the row of the launch's table of frames that tells of the frame of a block.
template <typename V>
__device__ __forceinline__ const i64 *row_of(const Tensors<V> &tensors, u32 block) {
    return tensors.rows.data + (i64)tensors.owner.data[block] * N_SOURCE_COLUMNS;
}

// Return the values of a block of the launch, of which this row tells; where the block goes is not known yet.
template <typename V>
__device__ __forceinline__ Source<V> values_of(const Tensors<V> &tensors, const i64 *row, u32 block) {
    u32 b = block - (u32)row[FIRST_BLOCK];
    u64 first = (u64)b * MAX_VALUES, left = (u64)row[N_VALUES] - first;
    u32 n = left < MAX_VALUES ? (u32)left : MAX_VALUES;
    return {tensors.values.data + ((u64)row[VALUES] + first), n, b, nullptr, 0};
}

// A block that is written but for its first four words.
struct Written {
    u32 kind, base, size;
    u64 sum;             // this thread's share of the checksum
};

// Write the value that all values are; likewise.
template <typename S>
__device__ __forceinline__ u64 write_constant(const S &source) {
    u32 value = source.at(0);
    if (threadIdx.x) return 0;
    source.put(4, value);
    source.put(5, 0);
    return weighed(value, 4);
}

// Return the bytes of a raw block, all of them, and without what fills them up to a multiple of 8.
__device__ __forceinline__ u32 raw_bytes(u32 n, u32 value_bytes) { return BLOCK_HEADER + n * value_bytes; }
__device__ __forceinline__ u32 filled_up(u32 bytes) { return (bytes + 7) & ~7u; }

// Find where a block of so many bytes goes, for which the first warp looks back. Has a barrier.
template <typename S>
__device__ __forceinline__ void find_begin(const Output &out, const i64 *row, S &source, u32 size, StreamsShared &shared) {
    if (threadIdx.x < 32) {
        u64 before = bytes_before(out.told.data + row[FIRST_BLOCK], source.b, size), begin = (u64)row[BODY] + (before >> 2);
        if (threadIdx.x == 0) {
            shared.begin = begin;
            shared.fits = begin + (size >> 2) <= (u64)row[END];
        }
    }
    __syncthreads();
    source.words = out.target.data + shared.begin;
    source.n_words = size >> 2;
}

template <typename V, typename Encoder, typename S>
__device__ __forceinline__ Written write_body(const EncodeArguments<V> &a, S &source, Encoder &shared) {
    u32 raw = raw_bytes(source.n, sizeof(V)), size = 24;
    bool constant = !shared.different && source.n > 1, coded = false;
    if (!constant) {
        Places places = shared.place(source);
        coded = shared.different && !shared.failed && places.body < raw;
        size = filled_up(coded ? places.body : raw);
        if (threadIdx.x == 0) shared.all_places = places;
    }
    find_begin(a.out, row_of(a.tensors, shared.block), source, size, shared);
    if (!shared.fits) return {coded ? CODED : constant ? CONSTANT : RAW, 0, size, 0};
    if (!coded) return {constant ? CONSTANT : RAW, 0, size, constant ? write_constant(source) : write_raw(source)};
    const Places &p = shared.all_places;    // not in registers, of which writing takes many
    clear_streams(source, p, shared);
    shared.clear(source, p);
    __syncthreads();
    u64 sum = shared.write(source, p);
    return {CODED, p.base, size, sum + write_fields(source, p, shared)};
}

// Write the first four words of block `b` of a frame, once all threads have their share of the checksum.
template <typename S>
__device__ __forceinline__ void write_header(const S &source, u32 first, u32 n, u32 b, u64 share, u64 *cells) {
    u64 sum = sum_of_block<true>(share, cells) + (b + 1) * SEED + weighed(first, 0) + weighed(n, 1);
    if (threadIdx.x == 0) {
        source.put(0, first);
        source.put(1, n);
        source.put(2, (u32)sum);
        source.put(3, (u32)(sum >> 32));
    }
}

// Encode a block, once the encoder is prepared, which has noted its number in the launch.
template <typename V, typename Encoder, typename S>
__device__ __forceinline__ void encode_block(const EncodeArguments<V> &a, S source, i32 book, Encoder &shared) {
    if (threadIdx.x == 0) {
        shared.different = 0;
        shared.failed = book < 0;
        shared.number = source.b;
        shared.n_values = source.n;
        shared.escape_length = book < 0 ? 0 : a.tables.escapes.data[(u64)book * 2 + 1];
    }
    __syncthreads();
    shared.measure(source);
    __syncthreads();
    Written done = write_body(a, source, shared);
    if (shared.fits)
        write_header(source, done.kind | done.base << 16, shared.n_values, shared.number, done.sum, shared.cells);
    if (threadIdx.x) return;
    a.out.sizes.data[shared.block] = done.size;
    a.out.kinds.data[shared.block] = (u8)done.kind;
}
