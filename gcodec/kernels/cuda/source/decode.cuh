// What the CUDA C++ decoders share: a block's checksum and header, its sub-streams, and blocks without any.
//
//     1  checksum                   all threads, eight bytes each at a time
//     2  sub-streams to symbols     a thread for each sub-stream; bits and table in shared memory, four symbols a step
//     3  symbols and tails to values      a warp for each sub-stream, four values a lane at a time: the decoders' own
//
// Values of a block whose status is not OK are undefined. Nothing in a block is trusted: each number that leads to an
// address is checked or limited before.
#pragma once

#include "device.cuh"

struct EncodedFrames {
    Array<const u32, 1> words;
    Array<const i64, 2> rows;
    Array<const i32, 1> owner;
    Array<const i64, 1> offsets, sizes;
};

struct DecodeTables {
    Array<const u32, 1> widths;
    Array<const u64, 1> shifts;
    Array<const u32, 2> infos;
    Array<const u16, 2> lookups;
    Array<const u32, 1> n_symbols;
    Array<const i64, 2> spans;
    Array<const signed char, 1> heads;
};

template <typename V>
struct DecodeArguments {
    EncodedFrames frames;
    ValueCoding coding;
    DecodeTables tables;
    Array<V, 1> out;
    Array<i32, 1> statuses;
};

// Columns of the table of frames (gcodec.kernels.cuda.launch_tables).
enum FrameColumn { FRAME, TARGET, COUNT, FIRST, BLOCK_LOG2, STREAM, FIRST_BOOK, N_BOOKS, FIRST_SPAN, N_SPANS, N_COLUMNS };

constexpr u32 STAGE_WORDS = 2304;  // sub-streams of up to 4.5 bits a value are brought to shared memory
constexpr u32 SYMBOL_WORDS = MAX_VALUES / 4 + MAX_STREAMS;

// What decoding the symbols takes; of a decoder's shared memory the beginning.
struct SymbolsShared {
    // Four symbols to a word; behind those of a sub-stream lies a word of nothing, so that threads that write to the
    // same word of their sub-streams reach different banks.
    u32 symbols[SYMBOL_WORDS];
    u32 stage[STAGE_WORDS + 2];
    uint4 lookup[TABLE_SIZE / 8];   // u16: the first symbol of a window and, 8 bits up, the length of its code
    u8 reference[MAX_STREAMS];      // what is added to a symbol, or its relative head, to make a head
    u64 cells[WARPS];
    u32 counts[WARPS];
    u32 failed;

    // Bits of a head, and the highest flags that a block of a frame may have: most decoders know no column references.
    static __device__ __forceinline__ u32 head_bits() { return 8; }
    static __device__ __forceinline__ u32 max_flags(const i64 *) { return 0; }
};

// An encoded block, and what the launch says of it.
template <typename V>
struct Block {
    const u32 *words;
    u32 size, last;      // its bytes; number of its last word
    u32 n, log2;         // its values, those of a sub-stream
    V *out;              // its values' place
    u64 first;           // number of the first of them in the frame

    __device__ __forceinline__ u32 word(u32 i) const {
        CHECK(i <= last);
        return words[i];
    }
    // Return 32 bits from any bit on; words after the last, to which bits that are ANYWHERE may reach, are taken to be that.
    template <bool ANYWHERE = true>
    __device__ __forceinline__ u32 bits(u32 bit) const {
        u32 i = bit >> 5;
        if constexpr (ANYWHERE) return __funnelshift_r(word(least(i, last)), word(least(i + 1, last)), bit);
        return __funnelshift_r(word(i), word(i + 1), bit);
    }
    __device__ __forceinline__ u32 number(u32 byte, u32 width, u32 i) const {
        return bits(byte * 8 + i * width) & ((1u << width) - 1);
    }
    __device__ __forceinline__ u32 n_streams() const { return (n + (1u << log2) - 1) >> log2; }
    __device__ __forceinline__ u32 length(u32 s) const { return least(1u << log2, n - (s << log2)); }
    __device__ __forceinline__ u32 row(u32 s) const { return (s << (log2 - 2)) + s; }
    __device__ __forceinline__ void put(u32 i, V value) const {
        CHECK(i < n);
        out[i] = value;
    }
    // Return whether the bytes from `body` to the end, at most seven, are zero and no others are missing.
    __device__ __forceinline__ Status ending(u32 body) const {
        if (((body + 7) & ~7u) != size) return BAD_SIZE;
        u32 pad = size - body;
        u64 eight = word(last - 1) | (u64)word(last) << 32;
        return pad && eight >> (64 - 8 * pad) ? BAD_FIELD : OK;
    }
};

// The fields of a coded block's header.
struct Fields {
    u32 symbol_bytes, plane_bytes, min_bytes, length_width, reference_width, run_symbol, base, flags;
    u32 streams_at, lengths_at, references_at;   // bytes of the block
};

// Words of the sub-streams: in shared memory, or where these are too many, the block's own.
struct StreamBits {
    const u32 *words;
    u32 last;

    __device__ __forceinline__ u32 at(u32 bit) const {
        // Codes are not trusted: a thread that runs past the words there are reads the last ones again, and its
        // sub-stream fails.
        u32 i = least(bit >> 5, last);
        return __funnelshift_r(words[i], words[i + 1], bit);
    }
};

struct Decoded {
    u32 bits, n_items;
};

struct Slow {
    u32 four, bit;   // symbols, and where the next one begins
};

template <typename V>
__device__ __forceinline__ Status check_checksum(const Block<V> &block, u32 b, SymbolsShared &shared) {
    const uint2 *pairs = (const uint2 *)block.words;
    u32 n_pairs = block.size >> 3;
    u64 sum = 0;
    u32 multiplier = (2 * threadIdx.x + 1) * MULTIPLIER;
    for (u32 i = threadIdx.x; i < n_pairs; i += THREADS) {
        uint2 pair = pairs[i];
        sum += (u64)pair.x * (multiplier | 1);
        sum += (u64)pair.y * ((multiplier + MULTIPLIER) | 1);
        multiplier += 2 * THREADS * MULTIPLIER;
    }
    u32 low = block.word(2), high = block.word(3);
    u64 total = sum_of_block<true>(sum, shared.cells) + (b + 1) * SEED - weighed(low, 2) - weighed(high, 3);
    return total == (low | (u64)high << 32) ? OK : BAD_CHECKSUM;
}

template <typename V>
__device__ __forceinline__ Status read_fields(const Block<V> &block, u32 n_symbols, u32 head_bits, u32 max_flags,
                                              Fields &f) {
    u32 w6 = block.word(6), w7 = block.word(7), n_streams = block.n_streams();
    f.base = block.word(0) >> 16;
    f.symbol_bytes = block.word(4);
    f.plane_bytes = block.word(5);
    f.min_bytes = w6 & 0xFFFF;
    f.length_width = w6 >> 16 & 255;
    f.reference_width = w6 >> 24;
    f.run_symbol = w7 & 255;
    f.flags = w7 >> 8;      // and what is reserved, which is zero
    if (f.base >> head_bits || f.length_width > 16 || f.reference_width > head_bits || f.run_symbol > n_symbols ||
        f.flags > max_flags)
        return BAD_FIELD;
    if (f.symbol_bytes > BLOCK_BYTES || f.plane_bytes > BLOCK_BYTES) return BAD_SIZE;  // or else sums might wrap
    f.streams_at = CODED_HEADER + f.plane_bytes;
    f.lengths_at = f.streams_at + f.symbol_bytes;
    f.references_at = f.lengths_at + ceil_bytes(n_streams * f.length_width);
    return block.ending(f.references_at + ceil_bytes(n_streams * f.reference_width));
}

// Decode `count` symbols one by one, from number `i` of their sub-stream on; heads of escapes go to their values' places.
template <typename V>
__device__ __noinline__ Slow decode_slowly(StreamBits bits, const u16 *lookup, u32 bit, u32 count, u32 head_bits, V *heads) {
    u32 four = 0;
    for (u32 k = 0; k < count; k++) {
        u32 entry = lookup[bits.at(bit) & (TABLE_SIZE - 1)], symbol = entry & 255;
        bit += entry >> 8;
        if (symbol == ESCAPE) {
            heads[k] = (V)(bits.at(bit) & ((1u << head_bits) - 1));
            bit += head_bits;
        }
        four |= symbol << 8 * k;
    }
    return {four, bit};
}

// Return the table's entry for the code that begins in a window at bit 1: twice its number is the entry's place in bytes.
__device__ __forceinline__ u32 entry_at(const u16 *lookup, u32 window) {
    return *(const u16 *)((const u8 *)lookup + (window & 2 * (TABLE_SIZE - 1)));
}

// Decode the symbols of a sub-stream, by one thread; a word of `bits` lies before its first bit.
template <typename V>
__device__ __forceinline__ Decoded decode_stream(StreamBits bits, u32 bit, u32 count, u32 head_bits, const u16 *lookup,
                                                 u32 *row, V *heads) {
    u32 before = bit - 1, begin = before, n_items = 0, i = 0;    // the bit before the next code, at which windows begin
    for (; i + 4 <= count; i += 4) {
        u32 first = before, window = bits.at(before);
        u32 a = entry_at(lookup, window), b = entry_at(lookup, window >> (a >> 8));
        before += (a >> 8) + (b >> 8);     // two codes have at most 24 bits of the 31
        window = bits.at(before);
        u32 c = entry_at(lookup, window), d = entry_at(lookup, window >> (c >> 8));
        before += (c >> 8) + (d >> 8);
        // The lowest bytes of four entries, which are their symbols: __byte_perm picks bytes by digits, 0 ... 3 of its
        // first number, 4 ... 7 of its second, so 0x40 makes `. . b a` and 0x5410 `d c b a` of two such.
        u32 four = __byte_perm(__byte_perm(a, b, 0x40), __byte_perm(c, d, 0x40), 0x5410);
        if (has_escape(four)) {
            Slow slow = decode_slowly(bits, lookup, first + 1, 4, head_bits, heads + i);
            four = slow.four;
            before = slow.bit - 1;
        }
        n_items += __popc(nonzero_bytes(four));
        *row++ = four;
    }
    if (i < count) {
        Slow slow = decode_slowly(bits, lookup, before + 1, count - i, head_bits, heads + i);
        before = slow.bit - 1;
        n_items += __popc(nonzero_bytes(slow.four));
        *row = slow.four;
    }
    return {before - begin, n_items};
}

// Give all values of a sub-stream the same symbol; return how many items they own.
__device__ __forceinline__ u32 fill_run(u32 symbol, u32 count, u32 *row) {
    for (u32 i = 0; i < count; i += 4) {
        u32 four = symbol * 0x01010101u;
        row[i >> 2] = count - i < 4 ? four & ((1u << 8 * (count - i)) - 1) : four;
    }
    return symbol ? count : 0;
}

// The word before the one in which the sub-streams begin: the header lies before them.
__device__ __forceinline__ u32 first_word(const Fields &f) { return (f.streams_at >> 2) - 1; }

// Bring the table and the sub-streams to shared memory; return whether the latter have room there.
template <typename V>
__device__ __forceinline__ bool bring(const Block<V> &block, const Fields &f, const u16 *lookup, SymbolsShared &shared) {
    for (u32 i = threadIdx.x; i < TABLE_SIZE / 8; i += THREADS) shared.lookup[i] = ((const uint4 *)lookup)[i];
    u32 first = first_word(f), end = (f.lengths_at + 3) >> 2;
    if (end - first > STAGE_WORDS) return false;
    for (u32 i = threadIdx.x; i < end - first + 2; i += THREADS) shared.stage[i] = block.word(least(first + i, block.last));
    return true;
}

// Decode all sub-streams to symbols, and make their references; return in `n_items` how many values that are not zero
// this thread's has. Whether one `failed` is known behind the next barrier.
template <typename V>
__device__ __forceinline__ Status decode_symbols(const Block<V> &block, const Fields &f, const u16 *lookup, u32 first_head,
                                                 u32 head_bits, SymbolsShared &shared, u32 &n_items) {
    u32 s = threadIdx.x, bytes = 0, end;
    bool mine = s < block.n_streams();
    n_items = 0;
    if (mine) {
        bytes = f.min_bytes + block.number(f.lengths_at, f.length_width, s);
        u32 reference = f.base + block.number(f.references_at, f.reference_width, s);
        shared.reference[s] = (u8)(reference + first_head);
    }
    if (s == 0) shared.failed = 0;
    u32 begin = f.streams_at + sum_before_thread<true>(bytes, shared.counts, end);
    if (f.streams_at + end != f.lengths_at) return BAD_STREAM;
    bool staged = bring(block, f, lookup, shared);
    __syncthreads();
    if (!mine) return OK;
    const u16 *table = (const u16 *)shared.lookup;
    u32 count = block.length(s), *row = shared.symbols + block.row(s);
    V *heads = block.out + (s << block.log2);
    if (!bytes) {
        n_items = fill_run(f.run_symbol, count, row);
        return OK;
    }
    Decoded found;
    if (staged) {
        u32 origin = first_word(f) << 5;   // bits of the stage count from there
        found = decode_stream<V>({shared.stage, STAGE_WORDS}, begin * 8 - origin, count, head_bits, table, row,
                                 heads);
    } else {
        found = decode_stream<V>({block.words, block.last - 1}, begin * 8, count, head_bits, table, row, heads);
    }
    n_items = found.n_items;
    if (ceil_bytes(found.bits) != bytes) atomicOr(&shared.failed, 1u);
    return OK;
}

__device__ __forceinline__ void put_four(u32 *out, const u32 *values) {
    *(uint4 *)out = uint4{values[0], values[1], values[2], values[3]};
}

__device__ __forceinline__ void put_four(u16 *out, const u32 *values) {
    *(uint2 *)out = uint2{values[0] | values[1] << 16, values[2] | values[3] << 16};
}

// Return whether four values at a time can be put, from each fourth on.
template <typename V>
__device__ __forceinline__ bool takes_four(const Block<V> &block) { return (u64)block.out % (4 * sizeof(V)) == 0; }

// Put fewer than four values, or such that lie anywhere, from number `i` on.
template <typename V>
__device__ __noinline__ void put_some(V *out, u32 i, u32 count, uint4 values) {
    if (count > 0) out[i] = (V)values.x;
    if (count > 1) out[i + 1] = (V)values.y;
    if (count > 2) out[i + 2] = (V)values.z;
    if (count > 3) out[i + 3] = (V)values.w;
}

// Put the first `count` of four values, from number `i` on.
template <typename V>
__device__ __forceinline__ void put_values(const Block<V> &block, bool four_at_once, u32 i, u32 count, const u32 *values) {
    if (four_at_once && count >= 4) {
        CHECK(i + 4 <= block.n);
        put_four(block.out + i, values);
    } else {
        CHECK(count == 0 || i + least(count, 4) <= block.n);
        put_some(block.out, i, count, uint4{values[0], values[1], values[2], values[3]});
    }
}

// Replace the heads of escaped values, among four from number `i` on, by those that lie in the values' places.
template <typename V>
__device__ __noinline__ u32 with_escapes(const V *out, u32 four, u32 heads) {
    for (u32 k = 0; k < 4; k++) {
        if ((four >> 8 * k & 255) == ESCAPE) heads = (heads & ~(255u << 8 * k)) | ((u32)out[k] & 255) << 8 * k;
    }
    return heads;
}

// Add the bytes of two words, each byte for itself.
__device__ __forceinline__ u32 add_bytes(u32 a, u32 b) {
    //     a, b           7 low bits of each byte are added: a sum of 0xFE at most stays in its byte
    //     ^ a ^ b        bit 7 is the sum of three bits, a's, b's and the carry, of which the first two are added here
    return ((a & 0x7F7F7F7Fu) + (b & 0x7F7F7F7Fu)) ^ ((a ^ b) & 0x80808080u);
}

// Copy the values of a raw block, or the one of a constant block.
template <typename V>
__device__ __forceinline__ Status copy_values(const Block<V> &block, u32 n_stored) {
    if (block.word(0) >> 8) return BAD_FIELD;
    Status status = block.ending(BLOCK_HEADER + n_stored * (u32)sizeof(V));
    if (status != OK) return status;
    const V *stored = (const V *)(block.words + BLOCK_HEADER / 4);
    for (u32 i = threadIdx.x; i < block.n; i += THREADS) block.put(i, stored[n_stored > 1 ? i : 0]);
    return OK;
}

// Decode block `b` of a frame, of which `row` of the launch's table tells.
template <typename Decoder, typename V>
__device__ __forceinline__ Status decode_block(const Block<V> &block, u32 b, const i64 *row, const DecodeTables &tables,
                                               Decoder &shared) {
    if (block.size < BLOCK_HEADER || block.size > BLOCK_BYTES) return BAD_SIZE;
    Status status = check_checksum(block, b, shared);
    if (status != OK) return status;
    u32 kind = block.word(0) & 255, book = block.word(0) >> 8 & 255;
    if (kind > CODED) return BAD_KIND;
    if (block.word(1) != block.n) return BAD_FIELD;
    if (kind != CODED) return copy_values(block, kind == CONSTANT ? 1 : block.n);
    if (block.size < CODED_HEADER || book >= (u32)row[N_BOOKS]) return BAD_FIELD;
    book += (u32)row[FIRST_BOOK];
    Fields fields;
    status = read_fields(block, tables.n_symbols.data[book], shared.head_bits(), shared.max_flags(row), fields);
    if (status != OK) return status;
    return shared.decode(block, fields, tables, book, row);
}

// Decode a block of the grid's block. A decoder is its shared memory, with a method for coded blocks.
template <typename Decoder, typename V>
__device__ __forceinline__ void decode_blocks(const DecodeArguments<V> &a, Decoder &shared) {
    u32 g = blockIdx.x;
    const i64 *row = a.frames.rows.data + a.frames.owner.data[g] * N_COLUMNS;
    u32 b = g - (u32)row[FIRST];
    u64 first = (u64)(i64)(i32)b << row[BLOCK_LOG2];
    u64 left = (u64)row[COUNT] - first;
    u32 most = 1u << row[BLOCK_LOG2], n = left < most ? (u32)left : most;
    i64 size = a.frames.sizes.data[g];
    u32 bytes = size > BLOCK_BYTES ? BLOCK_BYTES + 1 : (u32)size;
    const u32 *words = a.frames.words.data + ((u64)row[FRAME] + ((u64)a.frames.offsets.data[g] >> 2));
    Block<V> block{words, bytes, bytes / 4 - 1, n, (u32)row[STREAM], a.out.data + ((u64)row[TARGET] + first), first};
    Status status = decode_block(block, b, row, a.tables, shared);
    if (threadIdx.x == 0) a.statuses.data[g] = status;
}
