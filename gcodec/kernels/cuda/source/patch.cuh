// What the kernels of patches share: sparse blocks against a base (docs/format.md section 9), of values of 8, 16 or 32 bits.
//
// A class is a range of magnitudes of the base's values, and a change is named by its rank among the values of its class in
// its sub-stream. So values are worked through in parts, whose members of each class are counted first; then a block of the
// grid does a part on its own.
//
//     sub-stream        0 ... 65535                                                              | ...
//     parts             0 ... 16383            | 16384 ... 32767        | ...
//     runs of a part    0 ... 63 | 64 ... | .. |                                                   by thread
//
// The classes of a part lie in shared memory, a byte for each value, and how many of each class come before each run.
#pragma once

#include "device.cuh"

// gcodec.kernels.cuda.sparse_tables.
struct SparseShape {
    u64 n_values;
    u32 width, block_log2, first_book;
};

struct SparseFrame {
    Array<const u32, 1> words;
    Array<const i64, 1> offsets, sizes;
    Array<const u8, 1> is_base;
};

struct ChangeBooks {
    Array<const u32, 1> n_classes;
    Array<const u64, 2> bounds;
    Array<const u8, 2> is_empty;
    Array<const u32, 1> first_rows;
    Array<const u32, 2> classes;
    Array<const u16, 2> steps;
    Array<const u32, 2> counts;
};

struct SubStreams {
    Array<const u32, 1> logs;
    Array<const i64, 1> firsts;
    Array<const i32, 1> owner;
    Array<u32, 1> begins, sizes;
    Array<const i64, 1> starts;
    Array<u32, 2> counts;
};

struct StoredChanges {
    Array<u32, 1> ranks, places;
    Array<void, 1> steps;
};

struct SparseSource {
    Array<const void, 1> values, base;
    Array<const u64, 1> bounds;
    u64 n_values;
    u32 block_log2, stream_log2;
};

struct FoundChanges {
    Array<u32, 1> ranks;
    Array<void, 1> steps;
    Array<const i64, 1> starts;
    Array<const u32, 2> counts;
};

struct ChangeCodes {
    Array<const u32, 2> classes;
    Array<const u32, 1> steps, counts;
    Array<const u8, 1> is_empty;
};

// For kernels that need no shared memory.
struct Nothing {};

constexpr u32 MAX_CLASSES = 16, N_BOUNDS = MAX_CLASSES + 1;      // gcodec.kernels.entropy.changes
enum StepKind : u32 { UP, DOWN, OTHER };
constexpr u32 CLASS_PART_LOG2 = 14, CLASS_PART = 1 << CLASS_PART_LOG2;
constexpr u32 RUN = CLASS_PART / THREADS, RUN_WORDS = RUN / 4;
constexpr u32 ROW = RUN_WORDS + 1;         // of shared memory, so that threads that read their runs reach different banks
constexpr u32 DIFFERS = 16;                // beside the class of a value
constexpr u32 DIFFERING = 1 << 16;         // in counts: 16 bits up, how many of the members differ

// Return an item of an array of integers of 8, 16 or 32 bits.
template <typename T>
__device__ __forceinline__ u32 item_at(const Array<T, 1> &items, u64 i) {
    CHECK(i < (u64)items.n_items);
    if (items.item_bytes == 4) return ((const u32 *)items.data)[i];
    return items.item_bytes == 2 ? ((const u16 *)items.data)[i] : ((const u8 *)items.data)[i];
}

__device__ __forceinline__ void put_item(const Array<void, 1> &items, u64 i, u32 item) {
    CHECK(i < (u64)items.n_items);
    if (items.item_bytes == 4) {
        ((u32 *)items.data)[i] = item;
    } else if (items.item_bytes == 2) {
        ((u16 *)items.data)[i] = (u16)item;
    } else {
        ((u8 *)items.data)[i] = (u8)item;
    }
}

// Return 2**(W - 1) of values that take so many bytes.
__device__ __forceinline__ u32 sign_of(i64 bytes) { return 1u << (8 * (u32)bytes - 1); }

// Return o(v) of docs/format.md section 8, as a number of W bits; it is its own inverse.
__device__ __forceinline__ u32 ordered(u32 bits, u32 sign) {
    return bits < sign ? bits : (sign - 1 - bits) & (2 * sign - 1);
}

// Of a kernel's shared memory the beginning: what a part's values are counted by.
struct CountsShared {
    alignas(16) u32 counters[MAX_CLASSES][THREADS];
    u32 thresholds[MAX_CLASSES];                        // where the classes after the first begin
    u32 totals[MAX_CLASSES];                            // members in this part
};

// Behind it: what names each value of a part.
struct ClassesShared : CountsShared {
    u32 classes[THREADS * ROW];
    u32 before[MAX_CLASSES];                            // members in the parts before
    u64 firsts[MAX_CLASSES];                            // number of the first change of each class
};

// Bring the bounds of classes to shared memory. A barrier is needed then.
__device__ __forceinline__ void bring_bounds(CountsShared &shared, const u64 *bounds) {
    u32 c = threadIdx.x;
    if (c < MAX_CLASSES) shared.thresholds[c] = bounds[c + 1] >> 32 ? ALL : (u32)bounds[c + 1];
}

// Return how many thresholds there are: those behind them are 2**(W - 1), which no magnitude reaches.
__device__ __forceinline__ u32 count_thresholds(const CountsShared &shared, u32 sign) {
    u32 n = 0;
    while (n < MAX_CLASSES - 1 && shared.thresholds[n] < sign) n++;
    return n;
}

// Values side by side in words: one, two or four.
//
//     word          m | m               with TOPS: a bit above each magnitude
//     less t | t    the bit stays where the magnitude reaches the threshold t
template <typename V>
struct Lanes {
    static constexpr u32 WIDTH = 8 * (u32)sizeof(V), ONES = sizeof(V) == 4 ? 1 : sizeof(V) == 2 ? 0x10001 : 0x1010101;
    static constexpr u32 TOPS = ONES << (WIDTH - 1);

    // Return the bits of TOPS above those magnitudes, which have these bits set, that reach a threshold.
    static __device__ __forceinline__ u32 reaching(u32 word, u32 threshold) { return (word - threshold * ONES) & TOPS; }
    // Return the bits of TOPS above the values that are not zero.
    static __device__ __forceinline__ u32 nonzero(u32 word) { return (((word & ~TOPS) + ~TOPS) | word) & TOPS; }
    // Return the sum of a word's numbers, which is below 256.
    static __device__ __forceinline__ u32 sum(u32 word) {
        return sizeof(V) == 4 ? word : sizeof(V) == 2 ? (word + (word >> 16)) & 0xFFFF : (word * 0x1010101) >> 24;
    }
    // Return four numbers below 256, of as many words as these take, as the bytes of one word.
    static __device__ __forceinline__ u32 as_bytes(const u32 *words) {
        if (sizeof(V) == 1) return words[0];
        if (sizeof(V) == 2) return __byte_perm(words[0], words[sizeof(V) / 2], 0x6420);
        return words[0] | words[sizeof(V) / 4] << 8 | words[sizeof(V) / 2] << 16 | words[sizeof(V) - 1] << 24;
    }
};

// A number of words of four values each, as they lie side by side.
template <typename V, u32 N>
struct Fours {
    u32 magnitudes[N][sizeof(V)], differing[N][sizeof(V)];   // with TOPS; the bits of TOPS above those that differ
    u32 number[N], own[N];                                   // which word of the part it is; how many values are there
};

__device__ __forceinline__ void load_four(const u32 *from, u32 *words) {
    uint4 four = *(const uint4 *)from;
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
}

__device__ __forceinline__ void load_four(const u16 *from, u32 *words) {
    uint2 four = *(const uint2 *)from;
    words[0] = four.x, words[1] = four.y;
}

__device__ __forceinline__ void load_four(const u8 *from, u32 *words) { words[0] = *(const u32 *)from; }

// Load up to four values one by one, zeros behind the last.
template <typename V>
__device__ __forceinline__ void load_some(const V *from, u32 own, u32 *words) {
    constexpr u32 PER_WORD = 4 / sizeof(V);
#pragma unroll
    for (u32 k = 0; k < sizeof(V); k++) {
        words[k] = 0;
#pragma unroll
        for (u32 j = 0; j < PER_WORD; j++)
            if (k * PER_WORD + j < own) words[k] |= (u32)from[k * PER_WORD + j] << (j * Lanes<V>::WIDTH) % 32;
    }
}

// Make magnitudes and differences of values of a base and those that come after.
template <bool COMPARES, typename V>
__device__ __forceinline__ void compare_four(u32 *base, const u32 *after, u32 *differing) {
#pragma unroll
    for (u32 k = 0; k < sizeof(V); k++) {
        differing[k] = COMPARES ? Lanes<V>::nonzero(base[k] ^ after[k]) : 0;
        base[k] |= Lanes<V>::TOPS;
    }
}

// Go through n values of a base, and those that come after if they are compared, without the signs. `visit` gets several
// words of four values at a time, whose loads are on their way at once.
template <bool COMPARES, typename V, typename Visit>
__device__ __forceinline__ void visit_values(const V *base, const V *after, u32 n, Visit visit) {
    constexpr u32 TOGETHER = 4;
    u64 places = (u64)base | (COMPARES ? (u64)after : 0);
    u32 n_fours = places % (4 * sizeof(V)) ? 0 : n / (4 * TOGETHER * THREADS) * (TOGETHER * THREADS);
#pragma unroll 1
    for (u32 begin = threadIdx.x; begin < n_fours; begin += TOGETHER * THREADS) {
        Fours<V, TOGETHER> fours;
        u32 fresh[TOGETHER][sizeof(V)];
#pragma unroll
        for (u32 k = 0; k < TOGETHER; k++) {
            u32 w = begin + k * THREADS;
            fours.number[k] = w;
            fours.own[k] = 4;
            load_four(base + 4 * w, fours.magnitudes[k]);
            if (COMPARES) load_four(after + 4 * w, fresh[k]);
        }
#pragma unroll
        for (u32 k = 0; k < TOGETHER; k++) compare_four<COMPARES, V>(fours.magnitudes[k], fresh[k], fours.differing[k]);
        visit(fours);
    }
#pragma unroll 1
    for (u32 w = n_fours + threadIdx.x; 4 * w < n; w += THREADS) {
        Fours<V, 1> fours;
        u32 fresh[sizeof(V)];
        fours.number[0] = w;
        fours.own[0] = least(4, n - 4 * w);
        load_some(base + 4 * w, fours.own[0], fours.magnitudes[0]);
        if (COMPARES) load_some(after + 4 * w, fours.own[0], fresh);
        compare_four<COMPARES, V>(fours.magnitudes[0], fresh, fours.differing[0]);
        visit(fours);
    }
}

// The same of values of any width, from number `at` on.
template <bool COMPARES, typename Visit>
__device__ __forceinline__ void visit_values(const Array<const void, 1> &base, const Array<const void, 1> &after, u64 at,
                                             u32 n, Visit visit) {
    CHECK(at + n <= (u64)base.n_items && at + n <= (u64)after.n_items);
    if (base.item_bytes == 4) {
        visit_values<COMPARES>((const u32 *)base.data + at, (const u32 *)after.data + at, n, visit);
    } else if (base.item_bytes == 2) {
        visit_values<COMPARES>((const u16 *)base.data + at, (const u16 *)after.data + at, n, visit);
    } else {
        visit_values<COMPARES>((const u8 *)base.data + at, (const u8 *)after.data + at, n, visit);
    }
}

// Count in this thread's counters how many of several words' values reach each threshold, and how many of those differ; in
// the first counter all of them.
template <typename V, u32 N>
__device__ __forceinline__ void count_reaching(const Fours<V, N> &fours, u32 n_thresholds, CountsShared &shared) {
    u32 thread = threadIdx.x, all = 0;
#pragma unroll
    for (u32 k = 0; k < N; k++) {
        all += fours.own[k];
#pragma unroll
        for (u32 j = 0; j < sizeof(V); j++) all += DIFFERING * __popc(fours.differing[k][j]);
    }
    shared.counters[0][thread] += all;
#pragma unroll 1
    for (u32 t = 0; t < n_thresholds; t++) {
        u32 threshold = shared.thresholds[t], members = 0, changes = 0;
#pragma unroll
        for (u32 k = 0; k < N; k++) {
#pragma unroll
            for (u32 j = 0; j < sizeof(V); j++) {
                u32 tops = Lanes<V>::reaching(fours.magnitudes[k][j], threshold);
                members += tops >> (Lanes<V>::WIDTH - 1);
                changes += (tops & fours.differing[k][j]) >> (Lanes<V>::WIDTH - 1);
            }
        }
        shared.counters[t + 1][thread] += Lanes<V>::sum(members) + DIFFERING * Lanes<V>::sum(changes);
    }
}

// Functions for `visit_values`. They are no generic lambdas: NVRTC 12 takes those for functions of the host, and refuses them.
struct CountsReaching {
    CountsShared &shared;
    u32 n_thresholds;

    template <typename V, u32 N>
    __device__ __forceinline__ void operator()(const Fours<V, N> &fours) const {
        count_reaching(fours, n_thresholds, shared);
    }
};

// Count the members of each class in a part, and how many of them differ: in `totals`, 16 bits up. The bounds are there,
// behind a barrier. Has two barriers, one at its end.
template <bool COMPARES>
__device__ __forceinline__ void count_part(const Array<const void, 1> &base, const Array<const void, 1> &after, u64 at,
                                           u32 n, CountsShared &shared) {
    u32 thread = threadIdx.x, lane = thread & 31, n_thresholds = count_thresholds(shared, sign_of(base.item_bytes));
#pragma unroll
    for (u32 c = 0; c < MAX_CLASSES; c++) shared.counters[c][thread] = 0;
    visit_values<COMPARES>(base, after, at, n, CountsReaching{shared, n_thresholds});
    __syncthreads();
#pragma unroll 1
    for (u32 c = thread >> 5; c < MAX_CLASSES; c += WARPS) {
        u32 sum = 0;
#pragma unroll
        for (u32 k = 0; k < THREADS; k += 32) {
            sum += shared.counters[c][k + lane];
            if (c + 1 < MAX_CLASSES) sum -= shared.counters[c + 1][k + lane];     // those of all later classes
        }
        sum = sum_of_warp(sum);
        if (lane == 0) shared.totals[c] = sum;
    }
    __syncthreads();
}

// Bring the classes of several words' values to shared memory, a byte for each; a byte that has no value is zero.
template <typename V, u32 N>
__device__ __forceinline__ void put_classes(const Fours<V, N> &fours, u32 n_thresholds, ClassesShared &shared) {
    u32 lanes[N][sizeof(V)];
#pragma unroll
    for (u32 k = 0; k < N; k++) {
#pragma unroll
        for (u32 j = 0; j < sizeof(V); j++) lanes[k][j] = fours.differing[k][j] >> (Lanes<V>::WIDTH - 5);    // DIFFERS
    }
#pragma unroll 1
    for (u32 t = 0; t < n_thresholds; t++) {
        u32 threshold = shared.thresholds[t];
#pragma unroll
        for (u32 k = 0; k < N; k++) {
#pragma unroll
            for (u32 j = 0; j < sizeof(V); j++)
                lanes[k][j] += Lanes<V>::reaching(fours.magnitudes[k][j], threshold) >> (Lanes<V>::WIDTH - 1);
        }
    }
#pragma unroll
    for (u32 k = 0; k < N; k++) {
        u32 w = fours.number[k];
        shared.classes[w + w / RUN_WORDS] = Lanes<V>::as_bytes(lanes[k]);
    }
}

struct PutsClasses {
    ClassesShared &shared;
    u32 n_thresholds;

    template <typename V, u32 N>
    __device__ __forceinline__ void operator()(const Fours<V, N> &fours) const {
        put_classes(fours, n_thresholds, shared);
    }
};

// Count a value in this thread's counters, by the byte of its class.
__device__ __forceinline__ void count_value(CountsShared &shared, u32 byte) {
    shared.counters[byte & (MAX_CLASSES - 1)][threadIdx.x] += byte & DIFFERS ? DIFFERING + 1 : 1;
}

// Count what this thread's run of n values has of each class, in its counters; return how many values differ.
template <bool COMPARES>
__device__ __forceinline__ u32 count_run(u32 n, u32 n_thresholds, CountsShared &shared, const u32 *run) {
    typedef Lanes<u8> Bytes;
    u32 thread = threadIdx.x, classes[RUN_WORDS], differing[RUN_WORDS], changes = 0;
#pragma unroll
    for (u32 w = 0; w < RUN_WORDS; w++) {
        u32 four = 4 * w < n ? run[w] : 0;
        classes[w] = (four & (MAX_CLASSES - 1) * Bytes::ONES) | Bytes::TOPS;
        differing[w] = COMPARES ? four << 3 & Bytes::TOPS : 0;
        changes += differing[w] >> 7;
    }
    u32 n_changes = Bytes::sum(changes), all = n + DIFFERING * n_changes;
#pragma unroll 1
    for (u32 c = 0; c < n_thresholds; c++) {      // those of class c are all that are left but those of later classes
        u32 later = 0, later_changes = 0;
#pragma unroll
        for (u32 w = 0; w < RUN_WORDS; w++) {
            u32 tops = Bytes::reaching(classes[w], c + 1);
            later += tops >> 7;
            later_changes += (tops & differing[w]) >> 7;
        }
        u32 left = Bytes::sum(later) + DIFFERING * Bytes::sum(later_changes);
        shared.counters[c][thread] = all - left;
        all = left;
    }
    shared.counters[n_thresholds][thread] = all;
    return n_changes;
}

// Replace the numbers of a row by the sums of those before, by a warp; return the sum of all.
__device__ __forceinline__ u32 scan_row(u32 *row) {
    uint4 *own = (uint4 *)row + 2 * (threadIdx.x & 31);
    uint4 a = own[0], b = own[1];
    u32 sum = a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w, up_to = sum_up_to_lane(sum, threadIdx.x & 31);
    u32 before = up_to - sum, middle = before + a.x + a.y + a.z + a.w;
    own[0] = uint4{before, before + a.x, before + a.x + a.y, before + a.x + a.y + a.z};
    own[1] = uint4{middle, middle + b.x, middle + b.x + b.y, middle + b.x + b.y + b.z};
    return __shfl_sync(ALL, up_to, 31);
}

// Name the values of a part: bring their classes to shared memory, and make counters of what is of each class before each
// run. The bounds are there, behind a barrier, and `totals` are zeros. Returns how many values of this thread's run differ.
// Has three barriers, one at its end.
template <bool COMPARES>
__device__ __forceinline__ u32 name_values(const Array<const void, 1> &base, const Array<const void, 1> &after, u64 at,
                                           u32 n, ClassesShared &shared) {
    u32 thread = threadIdx.x, begin = thread * RUN, n_thresholds = count_thresholds(shared, sign_of(base.item_bytes));
    visit_values<COMPARES>(base, after, at, n, PutsClasses{shared, n_thresholds});
    __syncthreads();
    u32 own = begin < n ? least(RUN, n - begin) : 0;
    u32 n_changes = count_run<COMPARES>(own, n_thresholds, shared, shared.classes + thread * ROW);
    __syncthreads();
#pragma unroll 1
    for (u32 c = thread >> 5; c <= n_thresholds; c += WARPS) {
        u32 total = scan_row(shared.counters[c]);
        if ((thread & 31) == 0) shared.totals[c] = total;
    }
    __syncthreads();
    return n_changes;
}
