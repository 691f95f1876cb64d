// Encoding of float32, bfloat16 and float16 to planes, by a block of threads for each block of a frame: values of several
// levels, or of fewer bits than the type has. They are rounded each time that they are read.
//
//     narrow      planes of at most 8 bits, heads relative to the mean of their sub-stream: what is most frequent
//     general     planes of any widths, and heads relative to that mean or to the mean of their block
#pragma once

#include "bare.cuh"
#include "planes.cuh"

constexpr u32 MAX_LEVELS = 16;
constexpr u32 TAIL_WORDS = STREAM_VALUES * 24 / 32 + 5;    // of a sub-stream, at most, and what four values may reach beyond

// How the values of a level are coded:
//
//     range     31 ... 24    23 ... 16                   15 ... 8           7 ... 0
//               drop         first symbol of its range   heads of a range   first relative head
struct alignas(16) Rule {
    u32 range;
    u32 low;        // what is dropped
    u32 half;       // half of the lowest bit that is kept, less 1; 0 to truncate
    u32 unit;       // that bit; 0 to truncate
};

// Round a value of any kind; infinities and NaNs have level 0 (round_value of gcodec/kernels/core/scalar.py).
__device__ __forceinline__ u32 rounded(u32 value, u32 level, const Rule *rules, const ValueCoding &coding) {
    u32 size = value & ~coding.sign;
    bool finite = size < coding.infinity;
    Rule rule = rules[finite ? level : 0];
    u32 kept = size & ~rule.low, near = (size + rule.half + (size & rule.unit ? 1 : 0)) & ~rule.low;
    u32 result = finite && near < coding.infinity ? near : kept;
    if (size > coding.infinity && kept == coding.infinity) result = kept | (rule.low + 1);      // still a NaN
    return coding.prune && size < coding.smallest_normal ? 0 : result | (value & coding.sign);
}

__device__ __forceinline__ Rule rule_of(const EncodeTables &tables, const ValueCoding &coding, u32 book, u32 level) {
    const u32 *range = tables.ranges.data + ((u64)book * MAX_LEVELS + level) * 3;
    u32 drop = coding.lossy ? tables.drops.data[level] : 0, unit = 1u << drop;
    bool nearest = coding.nearest && drop;
    u32 fields = (range[0] & 255) | range[1] << 8 | range[2] << 16 | drop << 24;
    return {fields, unit - 1, nearest ? (unit - 1) >> 1 : 0, nearest ? unit : 0};
}

// A block whose values are rounded.
template <typename V>
struct RoundedSource : Source<V> {
    const u8 *levels;           // none where there is one level
    const Rule *rules;          // shared, of 16 levels
    const ValueCoding &coding;

    __device__ __forceinline__ u32 at(u32 i) const {
        return rounded(Source<V>::at(i), levels ? levels[i] & (MAX_LEVELS - 1) : 0, rules, coding);
    }
};

// The values of a lane, the ranges of their levels, and how many there are.
struct Lane {
    u32 values[LANE_VALUES], ranges[LANE_VALUES], own;
    bool faulty;        // a level is not in the ladder
};

// Round eight values again, or as many as there are, of which one is an infinity or a NaN, or becomes one.
template <typename V>
__device__ __noinline__ Eight round_slowly(const V *from, u32 own, uint2 levels, const Rule *rules, const ValueCoding &coding) {
    u32 values[LANE_VALUES];
#pragma unroll
    for (u32 k = 0; k < LANE_VALUES; k++)
        values[k] = k < own ? rounded(from[k], (k < 4 ? levels.x : levels.y) >> 8 * (k & 3) & 255, rules, coding) : 0;
    return eight_of(values);
}

// Return whether the first of eight values differ from another.
__device__ __noinline__ u32 differ_some(Eight eight, u32 own, u32 other) {
    u32 values[LANE_VALUES], differs = 0;
    put_eight(eight, values);
#pragma unroll
    for (u32 k = 0; k < LANE_VALUES; k++) differs |= k < own ? values[k] ^ other : 0;
    return differs;
}

template <bool GENERAL>
struct PlanesEncoder : StreamsShared {
    static constexpr u32 WINDOW = GENERAL ? TAIL_WORDS : CODE_WORDS;

    SymbolParts parts[257];         // the last is that of no value
    Rule rules[MAX_LEVELS];
    u32 symbols[MAX_VALUES / 4];
    u32 counts[4][ENCODED_STREAMS], before[4][ENCODED_STREAMS];     // items of two planes of each sub-stream; before it
    u32 places[MAX_PLANES], ends[MAX_PLANES];       // bits of the block between which a plane lies
    u32 widths[MAX_PLANES];
    u32 windows[WARPS][WINDOW];
    u32 *fault;                     // becomes 1 if a level is not in the ladder
    u32 n_planes, n_levels, least_size;
    u32 has_references;             // of a general encoder: sub-streams have means of their own

    __device__ __forceinline__ void prepare(const EncodeTables &tables, const ValueCoding &coding, const i64 *row,
                                            u32 *noted) {
        u32 thread = threadIdx.x, book = row[BOOK] < 0 ? 0 : (u32)row[BOOK];    // without one all that follows is of no use
        u32 entry = entry_of_symbol(tables, book, thread), symbol = entry & ESCAPES ? ESCAPE : thread;
        parts[thread] = {entry, spread(tables.infos.data[book * 256 + symbol] >> 16 & 255)};
        if (thread < MAX_LEVELS) rules[thread] = rule_of(tables, coding, book, thread);
        if (thread < MAX_PLANES) widths[thread] = tables.widths.data[thread];
        if (thread == 0) {
            parts[256] = {0, 0};
            n_planes = coding.n_planes;
            n_levels = coding.n_levels;
            least_size = coding.prune ? coding.smallest_normal : 0;
            fault = noted;
            if (GENERAL) has_references = row[REFERENCES] != 0;
        }
    }

    // Read the eight values of this lane of a sub-stream, zeros behind the last, and round them.
    template <typename V>
    __device__ __forceinline__ Lane read(const RoundedSource<V> &source, u32 s, u32 lane) const {
        Lane found;
        u32 *values = found.values;
        u32 begin = s * STREAM_VALUES + lane * LANE_VALUES;
        found.own = read_lane(source, s, lane, values);
        uint2 levels = {0, 0};
        if (source.levels) {
            const u8 *from = source.levels + begin;
            if (found.own == LANE_VALUES && (u64)from % 8 == 0) {
                levels = *(const uint2 *)from;
            } else {
                Eight eight = read_some(from, found.own);
                levels.x = eight.low.x | eight.low.y << 8 | eight.low.z << 16 | eight.low.w << 24;
                levels.y = eight.high.x | eight.high.y << 8 | eight.high.z << 16 | eight.high.w << 24;
            }
        }
        u32 more = (0x80 - n_levels) * 0x01010101u;     // takes a byte's highest bit to 1 where it is too large
        u32 high = ((levels.x & 0x7F7F7F7Fu) + more) | ((levels.y & 0x7F7F7F7Fu) + more) | levels.x | levels.y;
        found.faulty = high & 0x80808080u;
        levels.x &= 0x0F0F0F0Fu;
        levels.y &= 0x0F0F0F0Fu;
        u32 sign = source.coding.sign, infinity = source.coding.infinity, smallest = least_size;
        bool special = false;
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++) {
            Rule rule = rules[(k < 4 ? levels.x : levels.y) >> 8 * (k & 3) & 255];
            u32 size = values[k] & ~sign, near = size + rule.half;
            if (size & rule.unit) near++;
            special |= near >= infinity;
            values[k] = size < smallest ? 0 : (near & ~rule.low) | (values[k] & sign);
            found.ranges[k] = rule.range;
        }
        if (special) {
            put_eight(round_slowly(source.values + begin, found.own, levels, rules, source.coding), values);
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k++)
                if ((values[k] & ~sign) >= infinity) found.ranges[k] = rules[0].range;
        }
        return found;
    }

    // The symbol of a value; 0 behind the last.
    template <typename V>
    __device__ __forceinline__ u32 symbol_of(const Lane &found, u32 k, u32 mean) const {
        u32 range = found.ranges[k], step = (head_of(found.values[k], (const V *)0) - mean - range) & 255;
        u32 symbol = step < (range >> 8 & 255) ? (range >> 16 & 255) + step : ESCAPE;
        return found.values[k] ? symbol : 0;
    }

    // What the values of a lane take, by their symbols, a byte for each.
    __device__ __forceinline__ void look_up(uint2 bytes, u32 own, SymbolParts *takes) const {
#pragma unroll
        for (u32 k = 0; k < LANE_VALUES; k++) {
            u32 symbol = (k < 4 ? bytes.x : bytes.y) >> 8 * (k & 3) & 255;
            takes[k] = parts[k < own ? symbol : 256];
        }
    }

    // Return the mean of all heads of a block. Has two barriers.
    template <typename V>
    __device__ __forceinline__ u32 mean_of_block(const RoundedSource<V> &source) {
        u64 heads = 0;
#pragma unroll 1
        for (u32 s = threadIdx.x >> 5; s < source.n_streams(); s += WARPS) {
            Lane found = read(source, s, threadIdx.x & 31);
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k++)
                heads += head_of(found.values[k], (const V *)0) + ((u64)least(found.values[k], 1) << 32);
        }
        heads = sum_of_block<true>(heads, cells);
        u32 number = (u32)(heads >> 32);
        return (u32)heads / (number ? number : 1);
    }

    // Find mean, bits and items of each sub-stream.
    template <typename V>
    __device__ __forceinline__ void measure(const RoundedSource<V> &source) {
        u32 lane = threadIdx.x & 31, n_streams = source.n_streams(), first = source.at(0), differs = 0, all = 0;
        bool wrong = false, own_means = !GENERAL || has_references;
        u32 common = own_means ? 0 : mean_of_block(source);
#pragma unroll 1
        for (u32 s = threadIdx.x >> 5; s < n_streams; s += WARPS) {
            Lane found = read(source, s, lane);
            u32 heads = 0, others = 0, owned = 0, entries[LANE_VALUES], items[4] = {0, 0, 0, 0};
            SymbolParts takes[LANE_VALUES];
            wrong |= found.faulty;
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k++) {
                heads += head_of(found.values[k], (const V *)0) + (least(found.values[k], 1) << 20);   // and how many are not zero
                others |= found.values[k] ^ first;
            }
            differs |= found.own == LANE_VALUES ? others : differ_some(eight_of(found.values), found.own, first);
            heads = sum_of_warp(heads);
            u32 number = heads >> 20, mean = own_means ? (heads & 0xFFFFF) / (number ? number : 1) : common;
            uint2 bytes = {0, 0};
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k++) (k < 4 ? bytes.x : bytes.y) |= symbol_of<V>(found, k, mean) << 8 * (k & 3);
            *(uint2 *)(symbols + s * (STREAM_VALUES / 4) + 2 * lane) = bytes;
            look_up(bytes, found.own, takes);
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k++) {
                entries[k] = takes[k].entry;
                all |= entries[k];
                owned += takes[k].owned;
            }
            u32 taken = sum_of_warp(takes_of(entries));
            add_pairs(items, owned);
#pragma unroll
            for (u32 w = 0; w < 4; w++) {
                if (w < 2 || n_planes > 4) {
                    u32 sum = sum_of_warp(items[w]);
                    if (lane == 0) counts[w][s] = sum;
                }
            }
            if (lane == 0) {
                means[s] = mean | (number ? 1u << 31 : 0);
                sums[s] = taken;
            }
        }
        if (differs) atomicOr(&different, 1u);
        if (all & FAILS) atomicOr(&failed, 1u);
        if (wrong) *fault = 1;
    }

    // Find where everything goes; each warp does so for itself, and the first notes it.
    template <typename V>
    __device__ __forceinline__ Places place(const RoundedSource<V> &source) {
        Places p = find_streams(source, *this);
        u32 lane = threadIdx.x & 31, totals[4] = {0, 0, 0, 0}, end = CODED_HEADER;
#pragma unroll
        for (u32 w = 0; w < 4; w++) {
            if (w < 2 || n_planes > 4) {
                u32 own = 2 * lane < p.n_streams ? counts[w][2 * lane] : 0;
                u32 next = 2 * lane + 1 < p.n_streams ? counts[w][2 * lane + 1] : 0;
                u32 up_to = sum_up_to_lane(own + next, lane);
                totals[w] = __shfl_sync(ALL, up_to, 31);
                if (threadIdx.x < 32) {
                    before[w][2 * lane] = up_to - next - own;
                    before[w][2 * lane + 1] = up_to - next;
                }
            }
        }
#pragma unroll
        for (u32 q = 0; q < MAX_PLANES; q++) {
            u32 bits = number_of(totals, q) * widths[q];
            if (threadIdx.x == 0) {
                places[q] = end * 8;
                ends[q] = end * 8 + bits;
            }
            end += ceil_bytes(bits);
        }
        p.behind(end - CODED_HEADER);
        return p;
    }

    // Return the bit of the block at which the items of a sub-stream begin in a plane.
    __device__ __forceinline__ u32 begin_of(u32 s, u32 plane) const {
        return places[plane] + (before[pair_of(plane)][s] >> shift_of(plane) & 0xFFFF) * widths[plane];
    }

    // Clear the words in which items of a sub-stream begin, and those in which a plane ends.
    template <typename V>
    __device__ __forceinline__ void clear(const RoundedSource<V> &source, const Places &p) const {
        u32 thread = threadIdx.x;
        for (u32 i = thread; i < ENCODED_STREAMS * n_planes; i += THREADS) {
            u32 s = i % ENCODED_STREAMS;
            if (s < p.n_streams) source.put(begin_of(s, i / ENCODED_STREAMS) >> 5, 0);
        }
        if (thread < n_planes && ends[thread] & 31) source.put(ends[thread] >> 5, 0);
    }

    // Pack the items that four values have in a plane, and take them from their tails, of which they are the high end.
    static __device__ __forceinline__ void put_items(u32 *window, u32 at, u32 bits, u32 *tails) {
        if constexpr (GENERAL) {
            uint3 packed = {0, 0, 0};
#pragma unroll
            for (u32 k = 4; k-- > 0;) {
                put_before(packed, __funnelshift_l(tails[k], 0, bits >> 8 * k), bits >> 8 * k);
                tails[k] = __funnelshift_l(0, tails[k], bits >> 8 * k);
            }
            put_bits(window, WINDOW, at, packed);
        } else {
            u32 packed = 0;
#pragma unroll
            for (u32 k = 4; k-- > 0;) {
                packed = __funnelshift_l(tails[k], packed, bits >> 8 * k);
                tails[k] = __funnelshift_l(0, tails[k], bits >> 8 * k);
            }
            put_bits(window, WINDOW, at, packed);
        }
    }

    // Write the codes and items of all sub-streams; return this thread's share of the checksum.
    //
    //     tail       the item of plane 0 at its high end, then that of the next plane that the value has one of ...
    template <typename V>
    __device__ __forceinline__ u64 write(const RoundedSource<V> &source, const Places &p) {
        u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        u32 *window = windows[warp];
        u64 sum = 0;
        for (u32 i = lane; i < WINDOW; i += 32) window[i] = 0;
        __syncwarp();
#pragma unroll 1
        for (u32 s = warp; s < p.n_streams; s += WARPS) {
            u32 bytes = sizes_of(sums[s]) & 0xFFFF, begin = (p.streams_at + (starts[s] & 0xFFFF)) * 8;
            if (bytes == 0) continue;   // neither items nor codes
            Lane found = read(source, s, lane);
            SymbolParts takes[LANE_VALUES];
            look_up(*(const uint2 *)(symbols + s * (STREAM_VALUES / 4) + 2 * lane), found.own, takes);
            u32 entries[LANE_VALUES], owned[2] = {0, 0}, low[2], high[2], tails[LANE_VALUES];
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k++) {
                entries[k] = takes[k].entry;
                owned[k / 4] |= takes[k].owned << k % 4;
            }
            u32 own = takes_of(entries) & 0xFFFF, bit = (begin & 31) + sum_up_to_lane(own, lane) - own;
#pragma unroll
            for (u32 k = 0; k < LANE_VALUES; k += 4) {
                put_codes<V>(window, bit, found.values + k, entries + k, escape_length);
#pragma unroll
                for (u32 j = k; j < k + 4; j++) {
                    bit += entries[j] & LENGTH;
                    tails[j] = tail_of(found.values[j], (const V *)0);
                }
            }
            count_owned(owned[0], low[0], high[0]);
            count_owned(owned[1], low[1], high[1]);
            u32 own_low = low[0] + low[1], own_high = high[0] + high[1];
            u32 low_before = sum_up_to_lane(own_low, lane) - own_low, high_before = 0;
            if (n_planes > 4) high_before = sum_up_to_lane(own_high, lane) - own_high;
            __syncwarp();
            sum += bring_out(source, window, begin, begin + bytes * 8);
            __syncwarp();
            // Of a plane its width, and the bits of the block between which its items lie, in the lane of its number.
            u32 plane = plane_of(lane, n_planes), own_width = widths[plane], own_from = begin_of(s, plane);
            u32 own_bits = (counts[pair_of(plane)][s] >> shift_of(plane) & 0xFFFF) * own_width;
#pragma unroll 1
            for (u32 q = 0; q < n_planes; q++) {
                u32 width = __shfl_sync(ALL, own_width, q), from = __shfl_sync(ALL, own_from, q);
                u32 n_bits = __shfl_sync(ALL, own_bits, q);
                u32 at = (from & 31) + ((q < 4 ? low_before : high_before) >> 8 * (q & 3) & 255) * width;
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    u32 bits = bits_of(owned[half], q, width);
                    put_items(window, at, bits, tails + half * 4);
                    at += bits * 0x01010101u >> 24;     // the sum of its bytes
                }
                __syncwarp();
                sum += bring_out(source, window, from, from + n_bits);
                __syncwarp();
            }
        }
        return sum;
    }
};

// Return a block as it is coded, which is written to where it says.
template <typename V>
__device__ __forceinline__ RoundedSource<V> rounded_source(const EncodeArguments<V> &a, const Source<V> &block, const i64 *row,
                                                           const Rule *rules) {
    const u8 *levels = a.coding.n_levels > 1 ? a.tensors.levels.data + ((u64)row[LEVELS] + (u64)block.b * MAX_VALUES) : 0;
    return {block, levels, rules, a.coding};
}

template <bool GENERAL, typename V>
__device__ __forceinline__ void encode_planes(const EncodeArguments<V> &a, PlanesEncoder<GENERAL> &shared) {
    u32 block = take_number(a.out.numbers.data, shared.block);
    const i64 *row = row_of(a.tensors, block);
    shared.prepare(a.tables, a.coding, row, a.out.faults.data + a.tensors.owner.data[block]);
    RoundedSource<V> source = rounded_source(a, values_of(a.tensors, row, block), row, shared.rules);
    encode_block(a, source, (i32)row[BOOK], shared);
}
