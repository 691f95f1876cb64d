// Patches of a tensor against its base, as the host makes them (gcodec/kernels/block/sparse_encode.py).
//
//     count_differences       a block of the grid for each part: how many values of each class there are, and differ
//     note_all_differences    the same once more, where anything differs: which values, and by what step
//     count_change_symbols    a sub-stream: how often each symbol occurs, from which the host makes the codebook
//     write_sub_streams       a sub-stream; launched twice, to measure and to write
//     seal_sparse_blocks      a block of the frame: header, lengths of sub-streams, raw values, checksum; then the prelude
#include "patch.cuh"

constexpr u32 CLASS_SYMBOLS = 3 * 41, ALL_SYMBOLS = MAX_CLASSES * CLASS_SYMBOLS;      // gcodec.kernels.entropy.changes
constexpr u32 STEP_SYMBOLS = 65;           // of values of 32 bits

struct CountDifferencesArguments {
    SparseSource source;
    Array<u32, 1> parts;       // of each part by class: members and, 16 bits up, how many differ
    Array<u32, 2> counts;      // of each sub-stream by class: how many differ, zeros so far
};

// A part of a tensor.
struct Part {
    u32 per_stream_log2;     // log2 of the parts of a sub-stream
    u32 n;
    u64 number, stream, at;

    __device__ __forceinline__ explicit Part(const SparseSource &source) {
        u32 log2 = least(source.stream_log2, CLASS_PART_LOG2);
        per_stream_log2 = source.stream_log2 - log2;
        number = blockIdx.x;
        stream = number >> per_stream_log2;
        at = number << log2;
        u64 left = source.n_values - at;
        n = left < 1u << log2 ? (u32)left : 1u << log2;
    }
    // Return the first part of its sub-stream.
    __device__ __forceinline__ u64 first() const { return stream << per_stream_log2; }
};

__device__ __forceinline__ void count_differences_of(const CountDifferencesArguments &a, CountsShared &shared) {
    Part part(a.source);
    bring_bounds(shared, a.source.bounds.data);
    __syncthreads();
    count_part<true>(a.source.base, a.source.values, part.at, part.n, shared);
    u32 c = threadIdx.x;
    if (c >= MAX_CLASSES) return;
    u32 packed = shared.totals[c];
    CHECK(part.number * MAX_CLASSES + c < (u64)a.parts.n_items);
    a.parts.data[part.number * MAX_CLASSES + c] = packed;
    if (packed / DIFFERING) atomicAdd(a.counts.data + (part.stream * MAX_CLASSES + c), packed / DIFFERING);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    count_differences(const __grid_constant__ CountDifferencesArguments a) {
    __shared__ CountsShared shared;
    count_differences_of(a, shared);
}

struct NoteArguments {
    SparseSource source;
    FoundChanges found;
    Array<const u32, 1> parts;
};

// Note a value that differs: its rank, and the step modulo 2**W.
__device__ __forceinline__ void note_difference(const NoteArguments &a, u64 i, u32 rank, u64 at) {
    if (at >= (u64)a.found.ranks.n_items) return;      // of a tensor that somebody writes to meanwhile
    u32 sign = sign_of(a.source.base.item_bytes);
    u32 step = ordered(item_at(a.source.values, i), sign) - ordered(item_at(a.source.base, i), sign);
    a.found.ranks.data[at] = rank;
    put_item(a.found.steps, at, step);
}

__device__ __forceinline__ void note_differences_of(const NoteArguments &a, ClassesShared &shared) {
    Part part(a.source);
    u32 thread = threadIdx.x, c = thread & (MAX_CLASSES - 1), any = 0;
    const u32 *own = a.parts.data + part.number * MAX_CLASSES, *counts = a.found.counts.data + part.stream * MAX_CLASSES;
    for (u32 k = 0; k < MAX_CLASSES; k++) any |= own[k];
    if (any < DIFFERING) return;                      // so say all threads
    bring_bounds(shared, a.source.bounds.data);
    if (thread < MAX_CLASSES) {
        u64 first = a.found.starts.data[part.stream];
        for (u32 k = 0; k < thread; k++) first += counts[k];
        shared.firsts[thread] = first;
        shared.before[thread] = shared.totals[thread] = 0;
    }
    __syncthreads();
    for (u64 p = part.first() + thread / MAX_CLASSES; p < part.number; p += THREADS / MAX_CLASSES) {
        u32 packed = a.parts.data[p * MAX_CLASSES + c];
        atomicAdd(shared.before + c, packed % DIFFERING);
        if (packed / DIFFERING) atomicAdd(shared.firsts + c, (u64)(packed / DIFFERING));
    }
    u32 n_changes = name_values<true>(a.source.base, a.source.values, part.at, part.n, shared);
    u32 begin = thread * RUN;
#pragma unroll 1
    for (u32 i = begin; n_changes; i++) {
        u32 byte = shared.classes[thread * ROW + ((i - begin) >> 2)] >> 8 * (i & 3) & 255, k = byte & (MAX_CLASSES - 1);
        u32 packed = shared.counters[k][thread];
        CHECK(i < part.n);
        if (byte & DIFFERS) {
            n_changes--;
            note_difference(a, part.at + i, shared.before[k] + packed % DIFFERING, shared.firsts[k] + packed / DIFFERING);
        }
        count_value(shared, byte);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) note_all_differences(const __grid_constant__ NoteArguments a) {
    __shared__ ClassesShared shared;
    note_differences_of(a, shared);
}

// Numbers as they are coded: categories are half octaves (gcodec.kernels.entropy.changes).
__device__ __forceinline__ u32 category_of(u32 number) {
    u32 place = 31 - __clz(number | 1);
    return number < 2 ? number : 2 * place + (number >> (place - 1) & 1);
}

__device__ __forceinline__ u32 category_bits(u32 category) { return category > 3 ? (category >> 1) - 1 : 0; }

__device__ __forceinline__ u32 first_of(u32 category) {
    return category < 2 ? category : (2 + (category & 1)) << ((category >> 1) - 1);
}

// Return how many bits follow the symbol of a step.
__device__ __forceinline__ u32 bits_after(u32 symbol) { return symbol ? ((symbol + 1) >> 1) - 1 : 0; }

// A change as it is coded.
struct ChangeSymbols {
    u32 gap, category, kind, symbol, magnitude;
};

// Return change number `i`, of a class whose first one in the sub-stream is number `first`.
__device__ __forceinline__ ChangeSymbols symbols_of(const FoundChanges &found, u64 first, u64 i) {
    CHECK(i < (u64)found.ranks.n_items);
    u32 gap = found.ranks.data[i], step = item_at(found.steps, i), sign = sign_of(found.steps.item_bytes);
    if (i > first) gap -= found.ranks.data[i - 1] + 1;
    u32 magnitude = step <= sign ? step : (0 - step) & (2 * sign - 1);
    u32 symbol = step ? 2 * (32 - __clz(magnitude)) - (step <= sign ? 1 : 0) : 0;
    return {gap, category_of(gap), symbol == 1 || symbol == 2 ? symbol - 1 : (u32)OTHER, symbol, magnitude};
}

struct CountSymbolsArguments {
    FoundChanges found;
    Array<u64, 1> classes, steps;
};

struct CountSymbolsShared {
    u32 classes[ALL_SYMBOLS], steps[STEP_SYMBOLS];
};

__device__ __forceinline__ void count_symbols_of_changes(const CountSymbolsArguments &a, CountSymbolsShared &shared) {
    u32 thread = threadIdx.x;
    const u32 *counts = a.found.counts.data + (u64)blockIdx.x * MAX_CLASSES;
    for (u32 i = thread; i < ALL_SYMBOLS; i += THREADS) shared.classes[i] = 0;
    if (thread < STEP_SYMBOLS) shared.steps[thread] = 0;
    __syncthreads();
    u64 first = a.found.starts.data[blockIdx.x];
    for (u32 c = 0; c < MAX_CLASSES; c++) {
        u32 count = counts[c];
        for (u32 i = thread; i < count; i += THREADS) {
            ChangeSymbols change = symbols_of(a.found, first, first + i);
            u32 place = c * CLASS_SYMBOLS + 3 * change.category + change.kind;
            CHECK(place < ALL_SYMBOLS && change.symbol < STEP_SYMBOLS);
            atomicAdd(shared.classes + place, 1u);
            if (change.kind == OTHER) atomicAdd(shared.steps + change.symbol, 1u);
        }
        first += count;
    }
    __syncthreads();
    for (u32 i = thread; i < ALL_SYMBOLS; i += THREADS)
        if (shared.classes[i]) atomicAdd(a.classes.data + i, (u64)shared.classes[i]);
    if (thread < STEP_SYMBOLS && shared.steps[thread]) atomicAdd(a.steps.data + thread, (u64)shared.steps[thread]);
}

extern "C" __global__ void __launch_bounds__(THREADS) count_change_symbols(const __grid_constant__ CountSymbolsArguments a) {
    __shared__ CountSymbolsShared shared;
    count_symbols_of_changes(a, shared);
}

struct WriteArguments {
    FoundChanges found;
    ChangeCodes codes;
    Array<u32, 1> sizes;           // bytes of each sub-stream, results
    Array<const i64, 1> begins;    // byte of `out` at which each begins; -1 for one that is only measured
    Array<u32, 1> out;             // zeros so far
};

struct WriteShared {
    u32 cells[WARPS];
};

// Add a number of at most 32 bits, which has no others, to words that are zeros so far.
__device__ __forceinline__ void put_bits(const Array<u32, 1> &out, u64 bit, u32 number, u32 width) {
    u64 both = (u64)number << (bit & 31);
    CHECK(bit + width <= (u64)out.n_items * 32 && (width == 32 || number >> width == 0));
    if (width == 0) return;
    atomicOr(out.data + (bit >> 5), (u32)both);
    if ((bit & 31) + width > 32) atomicOr(out.data + (bit >> 5) + 1, (u32)(both >> 32));
}

// Return how many bits a number takes: the code of its category, of which `entry` has the length, and what follows.
__device__ __forceinline__ u32 bits_of_number(u32 category, u32 entry) { return (entry & 15) + category_bits(category); }

__device__ __forceinline__ void put_number(const Array<u32, 1> &out, u64 bit, u32 number, u32 category, u32 entry) {
    u32 rest = number - first_of(category);
    put_bits(out, bit, entry >> 4 | rest << (entry & 15), bits_of_number(category, entry));
}

// What a change of class `c` takes.
struct ChangeEntries {
    u32 gap, step, bits;

    __device__ __forceinline__ ChangeEntries(const ChangeCodes &codes, u32 c, const ChangeSymbols &change) {
        CHECK((i64)c < codes.classes.shape[0] && change.symbol < (u64)codes.steps.n_items);
        gap = codes.classes.data[(u64)c * (u64)codes.classes.shape[1] + 3 * change.category + change.kind];
        step = change.kind == OTHER ? codes.steps.data[change.symbol] : 0;
        bits = bits_of_number(change.category, gap);
        if (change.kind == OTHER) bits += (step & 15) + bits_after(change.symbol);
    }
};

__device__ __forceinline__ void put_change(const Array<u32, 1> &out, u64 bit, const ChangeSymbols &change,
                                           const ChangeEntries &entries) {
    put_number(out, bit, change.gap, change.category, entries.gap);
    if (change.kind != OTHER) return;
    u32 length = entries.step & 15, count = bits_after(change.symbol);
    bit += bits_of_number(change.category, entries.gap);
    put_bits(out, bit, entries.step >> 4, length);
    put_bits(out, bit + length, change.magnitude & ((1u << count) - 1), count);
}

// Measure or write a sub-stream.
//
//     number of changes of a class | change | change | ... | number of changes of the next class | ...
__device__ __forceinline__ void write_sub_stream(const WriteArguments &a, WriteShared &shared) {
    u32 thread = threadIdx.x, g = blockIdx.x, total = 0;
    const u32 *counts = a.found.counts.data + (u64)g * MAX_CLASSES;
    i64 begin = a.begins.data[g];
    u64 first = a.found.starts.data[g], place = begin < 0 ? 0 : (u64)begin * 8, done = 0;
    for (u32 c = 0; c < MAX_CLASSES; c++) total += counts[c];
#pragma unroll 1
    for (u32 c = 0; c < MAX_CLASSES && total; c++) {
        if (a.codes.is_empty.data[c]) continue;
        u32 count = counts[c], category = category_of(count), entry = a.codes.counts.data[category];
        if (thread == 0 && begin >= 0) put_number(a.out, place + done, count, category, entry);
        done += bits_of_number(category, entry);
#pragma unroll 1
        for (u32 tile = 0; tile < count; tile += THREADS) {
            u32 i = tile + thread, all;
            ChangeSymbols change = symbols_of(a.found, first, first + least(i, count - 1));
            ChangeEntries entries(a.codes, c, change);
            u32 own = i < count ? entries.bits : 0, before = sum_before_thread(own, shared.cells, all);
            if (i < count && begin >= 0) put_change(a.out, place + done + before, change, entries);
            done += all;
        }
        first += count;
    }
    if (thread == 0) a.sizes.data[g] = (u32)((done + 7) >> 3);
}

extern "C" __global__ void __launch_bounds__(THREADS) write_sub_streams(const __grid_constant__ WriteArguments a) {
    __shared__ WriteShared shared;
    write_sub_stream(a, shared);
}

// Columns of the table of blocks to write (gcodec.kernels.cuda.sparse_tables).
struct SealColumn {
    enum { PLACE_WORD, SIZE_BYTES, IS_RAW, STREAMS_BYTES, MIN_BYTES, LENGTH_BITS, FIRST_STREAM, UNUSED, NUMBER };
};

struct SealBlocksArguments {
    Array<const i64, 2> rows;
    SparseSource source;
    Array<const u32, 1> sizes, prelude;
    Array<u32, 1> out;       // the frame, in which only sub-streams are written so far
};

struct SealBlocksShared {
    u64 cells[WARPS];
};

// Write the values of a raw block, from word `place` on.
__device__ __forceinline__ void put_raw(const SealBlocksArguments &a, u64 first, u32 n, u64 place) {
    u32 bytes = (u32)a.source.values.item_bytes, per_word = 4 / bytes;
    for (u32 j = threadIdx.x; j < (n + per_word - 1) / per_word; j += THREADS) {
        u32 word = 0;
        for (u32 k = 0; k < per_word && j * per_word + k < n; k++)
            word |= item_at(a.source.values, first + j * per_word + k) << 8 * bytes * k;
        CHECK(place + j < (u64)a.out.n_items);
        a.out.data[place + j] = word;
    }
}

// Write the lengths of a block's sub-streams, from bit `at` on, and the fields of its header.
__device__ __forceinline__ void put_lengths(const SealBlocksArguments &a, const i64 *row, u32 n_streams, u64 at) {
    u32 width = (u32)row[SealColumn::LENGTH_BITS], min_bytes = (u32)row[SealColumn::MIN_BYTES];
    const u32 *sizes = a.sizes.data + row[SealColumn::FIRST_STREAM];
    for (u32 s = threadIdx.x; s < n_streams; s += THREADS) put_bits(a.out, at + s * width, sizes[s] - min_bytes, width);
    if (threadIdx.x) return;
    u32 *header = a.out.data + row[SealColumn::PLACE_WORD];
    header[4] = (u32)row[SealColumn::STREAMS_BYTES];
    header[5] = min_bytes;
    header[6] = width | a.source.stream_log2 << 8;
}

// Return this thread's share of the checksum of n words, which begin at a multiple of eight bytes.
__device__ __forceinline__ u64 weigh_words(const u32 *words, u32 n) {
    u64 sum = 0;
    const uint2 *pairs = (const uint2 *)words;
    for (u32 i = threadIdx.x; i < n >> 1; i += THREADS) {
        uint2 pair = pairs[i];
        sum += weighed(pair.x, 2 * i) + weighed(pair.y, 2 * i + 1);
    }
    return sum;
}

__device__ __forceinline__ void seal_sparse_block(const SealBlocksArguments &a, SealBlocksShared &shared) {
    u32 b = blockIdx.x, thread = threadIdx.x, stream_log2 = a.source.stream_log2;
    if (b == (u64)a.rows.shape[0]) {        // behind the last block: blocks have codebook 0 and template 0
        for (u32 i = thread; i < (u64)a.prelude.n_items; i += THREADS) a.out.data[i] = a.prelude.data[i];
        return;
    }
    const i64 *row = a.rows.data + (u64)b * SealColumn::NUMBER;
    u64 place = (u64)row[SealColumn::PLACE_WORD], first = (u64)b << a.source.block_log2, left = a.source.n_values - first;
    u32 n = left < 1ull << a.source.block_log2 ? (u32)left : 1u << a.source.block_log2;
    u32 size = (u32)row[SealColumn::SIZE_BYTES], n_streams = (n + (1u << stream_log2) - 1) >> stream_log2;
    bool is_raw = row[SealColumn::IS_RAW];
    CHECK(place * 4 + size <= (u64)a.out.n_items * 4 && size % 8 == 0);
    if (is_raw) {
        put_raw(a, first, n, place + BLOCK_HEADER / 4);
    } else {
        put_lengths(a, row, n_streams, (place * 4 + CODED_HEADER + (u64)row[SealColumn::STREAMS_BYTES]) * 8);
    }
    u32 *words = a.out.data + place;
    if (thread == 0) {
        words[0] = is_raw ? RAW : SPARSE;
        words[1] = n;
    }
    __syncthreads();
    u64 sum = sum_of_block(weigh_words(words, size >> 2), shared.cells) + (b + 1) * SEED;
    if (thread == 0) {
        words[2] = (u32)sum;
        words[3] = (u32)(sum >> 32);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) seal_sparse_blocks(const __grid_constant__ SealBlocksArguments a) {
    __shared__ SealBlocksShared shared;
    seal_sparse_block(a, shared);
}
