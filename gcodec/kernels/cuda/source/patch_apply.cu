// Patches into a tensor: sparse blocks are checked, their changes read, and placed by the base; then they are written.
//
//     check_sparse_blocks     a block of the frame: its checksum and its header
//     find_sub_streams        a block of the frame: where its sub-streams begin
//     read_sub_streams        a warp for each sub-stream; launched twice, to count changes and to keep them
//     count_members           a part of a block: values of the base of each class
//     place_changes           a part of a block: which value each change is for, and what it becomes
//     apply_changes           a sub-stream: writes these
//     copy_stored_blocks      a block of the frame: writes raw values, or equal ones
//
// No byte of a frame is trusted: each number that leads to an address is checked or limited before. Statuses are those of
// gcodec/kernels/block/header.py.
#include "patch.cuh"

constexpr u32 MAX_SPARSE_BYTES = 1 << 26, MAX_LENGTH_WIDTH = 24, MIN_STREAM_LOG2 = 6;
constexpr u32 FAULT = 0xFFFFFFFFu;      // in place of a bit, and above any: something is wrong before it

// An encoded block of a frame.
struct SparseBlock {
    const u32 *words;
    u32 last, n;         // number of its last word; its values

    __device__ __forceinline__ SparseBlock(const SparseFrame &frame, const SparseShape &shape, u64 b) {
        words = frame.words.data + ((u64)frame.offsets.data[b] >> 2);
        last = (u32)(frame.sizes.data[b] >> 2) - 1;
        u64 left = shape.n_values - (b << shape.block_log2);
        n = left < 1ull << shape.block_log2 ? (u32)left : 1u << shape.block_log2;
    }
    __device__ __forceinline__ u32 word(u32 i) const {
        CHECK(i <= last);
        return words[i];
    }
    // Return 32 bits from any bit on; words after the last are taken to be that.
    __device__ __forceinline__ u32 bits(u32 bit) const {
        u32 i = bit >> 5;
        return __funnelshift_r(word(least(i, last)), word(least(i + 1, last)), bit);
    }
    __device__ __forceinline__ u32 kind() const { return word(0) & 255; }
    // Return the number of its codebook among those of changes.
    __device__ __forceinline__ i32 book(const SparseShape &shape) const {
        return (i32)(word(0) >> 8 & 255) - (i32)shape.first_book;
    }
    __device__ __forceinline__ u32 stream_log2() const { return word(6) >> 8 & 255; }
    __device__ __forceinline__ u32 n_streams(u32 log2) const { return (n + (1u << log2) - 1) >> log2; }
    // Return whether the bytes from `body` to the end, at most seven, are zero and no others are missing.
    __device__ __forceinline__ Status ending(u32 body) const {
        u32 size = (last + 1) * 4, pad = size - body;
        if (((body + 7) & ~7u) != size) return BAD_SIZE;
        u64 eight = word(last - 1) | (u64)word(last) << 32;
        return pad && eight >> (64 - 8 * pad) ? BAD_FIELD : OK;
    }
};

struct CheckArguments {
    SparseFrame frame;
    SparseShape shape;
    ChangeBooks books;
    Array<u32, 1> logs;          // log2 of a block's values per sub-stream; 0 for a block that is not sparse
    Array<i32, 1> statuses;
};

struct CheckShared {
    u64 cells[WARPS];
};

// Return the status of a sparse block's header and size; BAD_KIND for one without a base, which the host decodes.
//
//     word 0                          word 4          word 5              word 6                          word 7
//     kind | codebook | template      symbol_bytes    min_stream_bytes    length_width | stream_log2 | 0  inner_bytes
__device__ __forceinline__ Status check_sparse_header(const CheckArguments &a, const SparseBlock &block) {
    if (block.last < CODED_HEADER / 4 - 1) return BAD_FIELD;
    i32 c = block.book(a.shape);
    u32 base = block.word(0) >> 16, w6 = block.word(6), inner_bytes = block.word(7), log2 = block.stream_log2();
    if (w6 >> 16 || c < 0 || c >= a.books.n_classes.n_items || inner_bytes & 7) return BAD_FIELD;
    if (a.books.n_classes.data[c] == 0) return BAD_KIND;
    if (base >= (u64)a.frame.is_base.n_items || !a.frame.is_base.data[base] || inner_bytes) return BAD_FIELD;
    u32 length_width = w6 & 255, symbol_bytes = block.word(4);
    if (length_width > MAX_LENGTH_WIDTH || log2 < MIN_STREAM_LOG2 || log2 > a.shape.block_log2) return BAD_FIELD;
    if (symbol_bytes > MAX_SPARSE_BYTES) return BAD_SIZE;      // or else sums might wrap
    return block.ending(CODED_HEADER + symbol_bytes + ceil_bytes(block.n_streams(log2) * length_width));
}

// Return the status of a block whose checksum is right; in `log2` that of a sparse block's sub-streams.
__device__ __forceinline__ Status check_content(const CheckArguments &a, const SparseBlock &block, u32 &log2) {
    u32 kind = block.kind();
    if (kind == CODED || kind == PREDICTED || kind > SPARSE) return BAD_KIND;
    if (block.word(1) != block.n) return BAD_FIELD;
    if (kind != SPARSE) {
        if (block.word(0) >> 8) return BAD_FIELD;
        return block.ending(BLOCK_HEADER + (kind == CONSTANT ? 1 : block.n) * (a.shape.width >> 3));
    }
    Status status = check_sparse_header(a, block);
    if (status == OK) log2 = block.stream_log2();
    return status;
}

__device__ __forceinline__ void check_sparse_block(const CheckArguments &a, CheckShared &shared) {
    u32 b = blockIdx.x, log2 = 0;
    i64 size = a.frame.sizes.data[b];
    Status status = BAD_SIZE;
    if (size >= BLOCK_HEADER && size <= MAX_SPARSE_BYTES) {        // so say all threads
        SparseBlock block(a.frame, a.shape, b);
        const uint2 *pairs = (const uint2 *)block.words;
        u64 sum = 0;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < (block.last + 1) >> 1; i += THREADS) {
            uint2 pair = pairs[i];
            sum += weighed(pair.x, 2 * i) + weighed(pair.y, 2 * i + 1);
        }
        u32 low = block.word(2), high = block.word(3);
        sum = sum_of_block(sum, shared.cells) + (b + 1) * SEED - weighed(low, 2) - weighed(high, 3);   // all but its own
        status = sum != (low | (u64)high << 32) ? BAD_CHECKSUM : check_content(a, block, log2);
    }
    if (threadIdx.x) return;
    a.logs.data[b] = log2;
    a.statuses.data[b] = status;
}

extern "C" __global__ void __launch_bounds__(THREADS) check_sparse_blocks(const __grid_constant__ CheckArguments a) {
    __shared__ CheckShared shared;
    check_sparse_block(a, shared);
}

struct FindStreamsArguments {
    SparseFrame frame;
    SparseShape shape;
    SubStreams streams;
    Array<i32, 1> statuses;
};

struct FindStreamsShared {
    u64 cells[WARPS];
};

// Find the bytes of each sub-stream of a block and where it begins: the sums of the lengths before it. It is BAD_STREAM if
// they do not add up to symbol_bytes.
__device__ __forceinline__ void find_sub_streams_of(const FindStreamsArguments &a, FindStreamsShared &shared) {
    u32 b = blockIdx.x, log2 = a.streams.logs.data[b];
    if (log2 == 0) return;
    SparseBlock block(a.frame, a.shape, b);
    u32 symbol_bytes = block.word(4), min_bytes = block.word(5), width = block.word(6) & 255, n = block.n_streams(log2);
    u64 first = (u64)a.streams.firsts.data[b], done = 0;
    for (u32 tile = 0; tile < n; tile += THREADS) {
        u32 s = tile + threadIdx.x;
        u64 size = 0, all;
        if (s < n) size = (u64)min_bytes + (block.bits((CODED_HEADER + symbol_bytes) * 8 + s * width) & ((1u << width) - 1));
        u64 begin = done + sum_before_thread(size, shared.cells, all);
        if (s < n) {      // both are below 2**32 if the sum is what it should be, and not looked at if it is not
            CHECK(first + s < (u64)a.streams.begins.n_items);
            a.streams.begins.data[first + s] = CODED_HEADER + (u32)begin;
            a.streams.sizes.data[first + s] = (u32)size;
        }
        done += all;
    }
    if (done != symbol_bytes && threadIdx.x == 0) a.statuses.data[b] = BAD_STREAM;
}

extern "C" __global__ void __launch_bounds__(THREADS) find_sub_streams(const __grid_constant__ FindStreamsArguments a) {
    __shared__ FindStreamsShared shared;
    find_sub_streams_of(a, shared);
}

struct ReadArguments {
    SparseFrame frame;
    SparseShape shape;
    ChangeBooks books;
    SubStreams streams;
    StoredChanges changes;
    u32 keep;                  // 1 to keep changes, which then have been counted before; 0 to count them
    Array<i32, 1> statuses;
};

// Where a sub-stream's code is, and how far it may go.
struct ChangeReader {
    const SparseBlock &block;
    const ChangeBooks &books;
    u32 book, bit, last_bit;

    // Read a number of the category that the next symbol says; return the symbol's entry, 0 where there is no such code.
    //
    //     window    code (length bits) | rest (count bits) | ...        the lowest bit first
    //     entry     first number of the category | kind | count | length
    __device__ __forceinline__ u32 number(const u32 *table, u32 &result) {
        u32 window = block.bits(bit), entry = table[window & (TABLE_SIZE - 1)];
        u32 length = entry & 15, count = entry >> 4 & 31;
        result = (entry >> 11) + (window >> length & ((1u << count) - 1));
        bit += length + count;
        return entry;
    }
    // Read a step that is neither +1 nor -1, modulo 2**32; return false where there is no such code.
    __device__ __forceinline__ bool step(u32 &result) {
        u32 entry = books.steps.data[(u64)book * TABLE_SIZE + (block.bits(bit) & (TABLE_SIZE - 1))], symbol = entry >> 4;
        bit += entry & 15;
        result = 0;
        if (symbol) {
            u32 count = (((symbol + 1) >> 1) - 1) & 31;      // values are of at most 32 bits
            u32 magnitude = (block.bits(bit) & ((1u << count) - 1)) | 1u << count;
            result = symbol & 1 ? magnitude : 0 - magnitude;
            bit += count;
        }
        return entry;
    }
};

// Read the changes of a sub-stream of n values, from number `at` on if they are kept, else count them in `counts`; return
// the bit behind the last, FAULT if there is a fault.
__device__ __forceinline__ u32 read_changes(const ReadArguments &a, ChangeReader reader, u32 n, u32 *counts, u64 at) {
    u32 total = 0, c = reader.book, mask = 2 * (1u << (a.shape.width - 1)) - 1, n_classes = a.books.n_classes.data[c];
    u32 first_row = a.books.first_rows.data[c];
    for (u32 k = 0; k < n_classes; k++) {
        u32 count = 0, after = 0;
        if (!a.books.is_empty.data[(u64)c * MAX_CLASSES + k]) {
            if (!reader.number(a.books.counts.data + (u64)c * TABLE_SIZE, count)) return FAULT;
            if (reader.bit > reader.last_bit || total + count > n) return FAULT;
        }
        const u32 *table = a.books.classes.data + (u64)(first_row + k) * TABLE_SIZE;
        CHECK(first_row + k < (u64)a.books.classes.shape[0]);
        for (u32 i = 0; i < count; i++) {
            u32 gap, entry = reader.number(table, gap), kind = entry >> 9 & 3, rank = after + gap;
            u32 step = kind == DOWN ? ALL : 1;
            if (!entry || (kind == OTHER && !reader.step(step))) return FAULT;
            if (reader.bit > reader.last_bit || rank >= n) return FAULT;
            if (a.keep) {
                if (at >= (u64)a.changes.ranks.n_items) return FAULT;     // of a frame that somebody writes to meanwhile
                a.changes.ranks.data[at] = rank;
                put_item(a.changes.steps, at, step & mask);
                at++;
            }
            after = rank + 1;
        }
        if (!a.keep) counts[k] = count;
        total += count;
    }
    return reader.bit;
}

__device__ __forceinline__ void read_sub_stream(const ReadArguments &a, Nothing &) {
    u64 g = (u64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (g >= (u64)a.streams.owner.n_items || threadIdx.x & 31) return;
    u32 b = (u32)a.streams.owner.data[g], begin = a.streams.begins.data[g], size = a.streams.sizes.data[g];
    // Atomic, both here and below: another sub-stream of the block may be found bad at the same time.
    if (size == 0 || atomicOr(a.statuses.data + b, (i32)OK) != OK) return;
    SparseBlock block(a.frame, a.shape, b);
    u32 log2 = a.streams.logs.data[b], s = (u32)(g - (u64)a.streams.firsts.data[b]);
    u32 n = least(1u << log2, block.n - (s << log2));
    ChangeReader reader{block, a.books, (u32)block.book(a.shape), begin * 8, (begin + size) * 8};
    u64 at = a.keep ? (u64)a.streams.starts.data[g] : 0;
    u32 bit = read_changes(a, reader, n, a.streams.counts.data + g * MAX_CLASSES, at);
    if (bit == FAULT || (bit + 7) >> 3 != begin + size) atomicOr(a.statuses.data + b, (i32)BAD_STREAM);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) read_sub_streams(const __grid_constant__ ReadArguments a) {
    Nothing nothing;
    read_sub_stream(a, nothing);
}

// A part of a block that is sparse, and the sub-streams that it has values of: some as wholes, or a part of one.
struct BlockPart {
    u64 b, number, begin;        // its block, its number among all parts, its first value in the block
    u32 log2, n;                 // of the block's sub-streams; values up to its end, 0 of a block that is not sparse

    __device__ __forceinline__ BlockPart(const SparseShape &shape, const SubStreams &streams) {
        u32 per_block_log2 = shape.block_log2 > CLASS_PART_LOG2 ? shape.block_log2 - CLASS_PART_LOG2 : 0;
        number = blockIdx.x;
        b = number >> per_block_log2;
        begin = (number & ((1u << per_block_log2) - 1)) << CLASS_PART_LOG2;
        log2 = streams.logs.data[b];
        u64 left = shape.n_values - (b << shape.block_log2), most = 1ull << shape.block_log2;
        u64 end = left < most ? left : most;
        n = log2 == 0 || begin >= end ? 0 : end - begin < CLASS_PART ? (u32)(end - begin) : CLASS_PART;
    }
    // Return whether it is a part of a sub-stream that has several.
    __device__ __forceinline__ bool is_piece() const { return log2 > CLASS_PART_LOG2; }
    // Return how many parts of its sub-stream come before it.
    __device__ __forceinline__ u32 n_before() const {
        return is_piece() ? (u32)number & ((1u << (log2 - CLASS_PART_LOG2)) - 1) : 0;
    }
};

struct CountMembersArguments {
    SparseFrame frame;
    SparseShape shape;
    ChangeBooks books;
    SubStreams streams;
    Array<const void, 1> base;
    Array<u32, 1> parts;         // of each part, members of each class, where sub-streams have several parts
};

__device__ __forceinline__ void count_members_of(const CountMembersArguments &a, CountsShared &shared) {
    BlockPart part(a.shape, a.streams);
    if (part.n == 0 || !part.is_piece()) return;      // so say all threads
    u32 c = (u32)SparseBlock(a.frame, a.shape, part.b).book(a.shape);
    bring_bounds(shared, a.books.bounds.data + (u64)c * N_BOUNDS);
    __syncthreads();
    count_part<false>(a.base, a.base, (part.b << a.shape.block_log2) + part.begin, part.n, shared);
    if (threadIdx.x >= MAX_CLASSES) return;
    CHECK(part.number * MAX_CLASSES + threadIdx.x < (u64)a.parts.n_items);
    a.parts.data[part.number * MAX_CLASSES + threadIdx.x] = shared.totals[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) count_members(const __grid_constant__ CountMembersArguments a) {
    __shared__ CountsShared shared;
    count_members_of(a, shared);
}

struct PlaceArguments {
    SparseFrame frame;
    SparseShape shape;
    ChangeBooks books;
    SubStreams streams;
    StoredChanges changes;
    Array<const void, 1> base;
    Array<const u32, 1> parts;
    Array<i32, 1> statuses;
};

struct PlaceShared : ClassesShared {
    u32 low[MAX_CLASSES], high[MAX_CLASSES];     // of each class's changes, those that are for values of the part

    __device__ __forceinline__ u32 n_changes(u32 c) const { return high[c] > low[c] ? high[c] - low[c] : 0; }
};

// Return the first of `count` ranks, which rise, that is not below `rank`.
__device__ __forceinline__ u32 first_not_below(const u32 *ranks, u32 count, u32 rank) {
    u32 low = 0, high = count;
    while (low < high) {
        u32 middle = (low + high) >> 1;
        if (ranks[middle] < rank) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Return which of n values is number `rank` of a class, of which there are more.
__device__ __forceinline__ u32 place_of(const ClassesShared &shared, u32 n, u32 c, u32 rank) {
    u32 t = 0;
#pragma unroll
    for (u32 step = THREADS / 2; step; step >>= 1)
        if ((t + step) * RUN < n && shared.counters[c][t + step] <= rank) t += step;
    rank -= shared.counters[c][t];
    for (u32 w = 0;; w++) {
        CHECK(w < RUN_WORDS);
        u32 members = ~nonzero_bytes(shared.classes[t * ROW + w] ^ c * 0x01010101u) & 0x80808080u, own = __popc(members);
        if (rank >= own) {
            rank -= own;
            continue;
        }
        for (; rank; rank--) members &= members - 1;      // bytes that have no value are the last
        return t * RUN + 4 * w + ((31 - __clz(members & (0 - members))) >> 3);
    }
}

// The values of a part that are of one sub-stream.
struct Piece {
    u64 row, at;           // number of the sub-stream; of the first value, among all
    u32 first, n;          // number of the first value in the sub-stream
    bool is_last;          // of its sub-stream
};

// Find which changes are for values of a piece. Has three barriers, one at its end.
__device__ __forceinline__ void find_changes(const PlaceArguments &a, const BlockPart &part, const Piece &piece,
                                             const u32 *counts, PlaceShared &shared) {
    u32 thread = threadIdx.x, c = thread & (MAX_CLASSES - 1), n_before = part.n_before();
    const u32 *members = a.parts.data + part.number * MAX_CLASSES;
    if (thread < MAX_CLASSES) {
        u64 first = (u64)a.streams.starts.data[piece.row];
        for (u32 k = 0; k < thread; k++) first += counts[k];
        shared.firsts[thread] = first;
        shared.before[thread] = shared.totals[thread] = 0;
    }
    __syncthreads();
    for (u32 p = 1 + thread / MAX_CLASSES; p <= n_before; p += THREADS / MAX_CLASSES)
        atomicAdd(shared.before + c, *(members - (u64)p * MAX_CLASSES + c));
    __syncthreads();
    if (thread < 2 * MAX_CLASSES) {
        u32 count = counts[c], before = shared.before[c];
        const u32 *ranks = a.changes.ranks.data + shared.firsts[c];
        if (thread < MAX_CLASSES) {
            shared.low[c] = n_before ? first_not_below(ranks, count, before) : 0;
        } else {
            shared.high[c] = piece.is_last ? count : first_not_below(ranks, count, before + members[c]);
        }
    }
    __syncthreads();
}

// Place the changes that are for values of a piece; return whether there is none for a value that there is not.
__device__ __forceinline__ bool place_in_piece(const PlaceArguments &a, const Piece &piece, PlaceShared &shared) {
    u32 sign = sign_of(a.base.item_bytes), c = 0, begin = 0;
    bool good = true;
#pragma unroll 1
    for (u32 j = threadIdx.x;; j += THREADS) {        // changes of all classes, one class after another
        while (c < MAX_CLASSES && j - begin >= shared.n_changes(c)) begin += shared.n_changes(c++);
        if (c == MAX_CLASSES) return good;
        u64 i = shared.firsts[c] + shared.low[c] + (j - begin);
        u32 rank = a.changes.ranks.data[i] - shared.before[c];
        if (rank >= shared.totals[c]) {
            good = false;
            continue;
        }
        u32 place = place_of(shared, piece.n, c, rank);
        CHECK(place < piece.n && i < (u64)a.changes.places.n_items);
        u32 moved = ordered(item_at(a.base, piece.at + place), sign) + item_at(a.changes.steps, i);
        put_item(a.changes.steps, i, ordered(moved & (2 * sign - 1), sign));
        a.changes.places.data[i] = piece.first + place;
    }
}

__device__ __forceinline__ void place_changes_of(const PlaceArguments &a, PlaceShared &shared) {
    BlockPart part(a.shape, a.streams);
    if (part.n == 0) return;      // so say all threads, here and below
    u32 book = (u32)SparseBlock(a.frame, a.shape, part.b).book(a.shape), n_classes = a.books.n_classes.data[book];
    u64 end = part.begin + part.n, first = part.b << a.shape.block_log2, left = a.shape.n_values - first;
#pragma unroll 1
    for (u64 begin = part.begin; begin < end;) {
        u64 s = begin >> part.log2, next = (s + 1) << part.log2;
        Piece piece{(u64)a.streams.firsts.data[part.b] + s, first + begin, (u32)(begin - (s << part.log2)), 0, false};
        piece.n = (u32)((next < end ? next : end) - begin);
        piece.is_last = next <= end || end == left;
        const u32 *counts = a.streams.counts.data + piece.row * MAX_CLASSES;
        u32 total = 0, here = 0;
        for (u32 k = 0; k < n_classes; k++) total += counts[k];
        begin += piece.n;
        if (total == 0) continue;
        find_changes(a, part, piece, counts, shared);
        for (u32 k = 0; k < MAX_CLASSES; k++) here |= shared.n_changes(k);
        if (here) {
            bring_bounds(shared, a.books.bounds.data + (u64)book * N_BOUNDS);
            __syncthreads();
            name_values<false>(a.base, a.base, piece.at, piece.n, shared);
            if (!place_in_piece(a, piece, shared)) a.statuses.data[part.b] = BAD_STREAM;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) place_changes(const __grid_constant__ PlaceArguments a) {
    __shared__ PlaceShared shared;
    place_changes_of(a, shared);
}

struct ApplyArguments {
    SparseShape shape;
    SubStreams streams;
    Array<const u32, 1> totals;      // changes of each sub-stream
    StoredChanges changes;           // as place_changes leaves them
    Array<void, 1> out;              // which has the base's values
};

__device__ __forceinline__ void apply_to_sub_stream(const ApplyArguments &a, Nothing &) {
    u32 g = blockIdx.x, b = (u32)a.streams.owner.data[g], n = a.totals.data[g];
    u64 first = (u64)a.streams.starts.data[g], s = g - (u64)a.streams.firsts.data[b];
    u64 at = ((u64)b << a.shape.block_log2) + (s << a.streams.logs.data[b]);
    for (u32 k = threadIdx.x; k < n; k += THREADS)
        put_item(a.out, at + a.changes.places.data[first + k], item_at(a.changes.steps, first + k));
}

extern "C" __global__ void __launch_bounds__(THREADS) apply_changes(const __grid_constant__ ApplyArguments a) {
    Nothing nothing;
    apply_to_sub_stream(a, nothing);
}

struct CopyArguments {
    SparseFrame frame;
    SparseShape shape;
    Array<void, 1> out;
};

__device__ __forceinline__ void copy_stored_block(const CopyArguments &a, Nothing &) {
    SparseBlock block(a.frame, a.shape, blockIdx.x);
    if (block.kind() == SPARSE) return;
    u32 per_word_log2 = a.shape.width == 32 ? 0 : a.shape.width == 16 ? 1 : 2, is_raw = block.kind() == RAW;
    u64 first = (u64)blockIdx.x << a.shape.block_log2;
    for (u32 i = threadIdx.x; i < block.n; i += THREADS) {
        u32 k = is_raw ? i : 0, place = (k & ((1u << per_word_log2) - 1)) * a.shape.width;
        put_item(a.out, first + i, block.word(BLOCK_HEADER / 4 + (k >> per_word_log2)) >> place);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) copy_stored_blocks(const __grid_constant__ CopyArguments a) {
    Nothing nothing;
    copy_stored_block(a, nothing);
}
