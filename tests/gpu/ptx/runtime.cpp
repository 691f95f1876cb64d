// The device that translated PTX runs on: threads of the host (host_threads.h), whose every access of memory is checked.
//
// An access is a fault if it lies outside of the arrays of the launch or of the block's shared memory, if it is not aligned,
// if it reads what nothing has written, or if it races: if another thread has touched the same byte in this launch, one of
// the two writes, they are not both atomic, and nothing orders them. Volatile accesses of one number are as good as atomic. What
// orders two threads is __syncthreads for those of a block, and __syncwarp for those of a warp; a shuffle orders no memory,
// and blocks nothing: what one block tells another must be in the number that it is told by. A write that leaves a byte as it
// is races with nothing: two threads may clear the same word. Faults are noted, and the launch goes on.
#define STACK_BYTES (1 << 18)
#include "../host_threads.h"
#include "device.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr uint32_t NONE = ~0u, MANY = ~0u - 1;
constexpr uint16_t MANY_THREADS = 0xFFFF;
constexpr uint8_t MANY_WARPS = 0xFF;

// What is known of a byte: the last write of it, or those that are atomic and that nothing orders, and the reads since. Waits
// are how often block and warp had waited then. A stamp tells for which launch this is, or for which block.
struct Byte {
    uint32_t stamp;
    uint32_t writer_block, writer_waits, writer_warp_waits;
    uint32_t reader_block, reader_waits, reader_warp_waits, reader_lanes;
    const char *written_at, *read_at;
    uint16_t writer;
    uint8_t writer_warp;
    bool atomic;
    bool reads_are_atomic;               // all of them
    uint8_t reader_warps, reader_warp;   // all warps that read; the last one's lanes are above

    bool write_is_before(uint32_t block, uint32_t t, uint32_t waits, uint32_t warp_waits) const {
        if (writer_block == NONE) return true;
        if (writer_block != block) return false;
        return writer == t || writer_waits != waits || (writer_warp == t >> 5 && writer_warp_waits != warp_waits);
    }
    bool reads_are_before(uint32_t block, uint32_t t, uint32_t waits, uint32_t warp_waits) const {
        if (reader_block == NONE) return true;
        if (reader_block != block) return false;
        if (reader_waits != waits) return true;
        if (reader_warps & ~(1u << (t >> 5))) return false;
        return reader_warp_waits != warp_waits || !(reader_lanes & ~(1u << (t & 31)));
    }
};

struct Region { uint64_t begin, end; };

// What is known of a piece of memory: of words of four bytes, and of the bytes of those of which a part has been touched since
// the launch or the block began. Most of memory is touched by words.
struct Shadow {
    std::vector<Byte> words, bytes;
    std::vector<uint32_t> parted;    // the stamp under which a word is known by its bytes
    std::vector<uint8_t> unwritten;  // whether a byte is one of global memory that nothing was put into

    void reserve(uint64_t n) {
        if (parted.size() * 4 < n) words.resize((n + 3) / 4), parted.resize((n + 3) / 4), unwritten.resize((n + 3) & ~3ull);
    }
    // The bytes of a word, from now on each for itself.
    Byte *part(uint64_t word, uint32_t stamp) {
        if (bytes.size() < words.size() * 4) bytes.resize(words.size() * 4);
        if (parted[word] != stamp) {
            parted[word] = stamp;
            for (unsigned k = 0; k < 4; k++) bytes[4 * word + k] = words[word];
        }
        return &bytes[4 * word];
    }
};

constexpr uint64_t PAGE = 1 << 12, MOST_PAGES = 1 << 12;
std::unordered_map<uint64_t, Shadow> pages;
uint64_t last_page_number;
Shadow *last_page;

// The shared memory of a resident block, and what is known of it.
struct SharedMemory {
    Shadow shadow;
    std::vector<uint8_t> bytes;
    uint32_t stamp;
    const char *asked_at[host_threads::MOST];   // where each thread has waited last
};
SharedMemory of_residents[host_threads::RESIDENT];
SharedMemory &shared() { return of_residents[host_threads::resident]; }
std::vector<Region> regions;
const uint8_t *arguments;
uint32_t argument_bytes, launch_stamp, block_stamp;     // the last stamp of each kind
void (*kernel)(const uint8_t *);

struct Found { uint64_t times; uint32_t block, thread; };
std::map<std::string, Found> faults;
std::string text_of_faults;

void fault(const std::string &what, const char *place, const char *other = nullptr) {
    std::string text = what + " at " + place + (other ? std::string(" and at ") + other : "");
    Found &found = faults.try_emplace(text, Found{0, blockIdx.x, threadIdx.x}).first->second;
    found.times++;
}

Shadow &page_of(uint64_t address) {
    if (!last_page || address / PAGE != last_page_number) {
        last_page_number = address / PAGE;
        last_page = &pages[last_page_number];
        last_page->reserve(PAGE);
    }
    return *last_page;
}

// Forget what was known of earlier launches, but for bytes that nothing was put into, where that has become much.
void forget_pages() {
    if (pages.size() < MOST_PAGES) return;
    last_page = nullptr;
    for (auto page = pages.begin(); page != pages.end();) {
        Shadow &shadow = page->second;
        shadow.words = {}, shadow.bytes = {}, shadow.parted = {};
        bool is_unwritten = std::find(shadow.unwritten.begin(), shadow.unwritten.end(), 1) != shadow.unwritten.end();
        page = is_unwritten ? std::next(page) : pages.erase(page);
    }
}

// Note an access of a byte or a word, and return the place of one with which it races, or nothing.
inline const char *note(Byte &byte, uint32_t stamp, bool writes, bool atomic, bool changes, const char *place) {
    uint32_t t = threadIdx.x, warp = t >> 5, block = blockIdx.x;
    const host_threads::Block &own = host_threads::residents[host_threads::resident];
    uint32_t waits = own.waits, warp_waits = own.waits_of_warp[warp];
    const char *other = nullptr;
    if (byte.stamp != stamp) {
        byte = Byte();
        byte.stamp = stamp;
        byte.writer_block = byte.reader_block = NONE;
    }
    bool is_after = byte.write_is_before(block, t, waits, warp_waits);
    if (!is_after && !(atomic && byte.atomic)) other = byte.written_at;
    if (writes) {
        if (!(atomic && byte.reads_are_atomic) && !byte.reads_are_before(block, t, waits, warp_waits)) other = byte.read_at;
        if (!changes) return nullptr;
        byte.writer = is_after ? (uint16_t)t : MANY_THREADS;
        byte.writer_warp = is_after || byte.writer_warp == warp ? (uint8_t)warp : MANY_WARPS;
        byte.writer_block = is_after || byte.writer_block == block ? block : MANY;
        byte.writer_waits = waits, byte.writer_warp_waits = warp_waits;
        byte.atomic = atomic, byte.written_at = place;
        byte.reader_block = NONE;
        return other;
    }
    byte.reads_are_atomic = atomic && (byte.reads_are_atomic || byte.reader_block == NONE);
    if (byte.reader_block != NONE && byte.reader_block != block) {
        byte.reader_block = MANY;
    } else if (byte.reader_block == NONE || byte.reader_waits != waits) {
        byte.reader_block = block, byte.reader_waits = waits, byte.reader_warps = 0, byte.reader_lanes = 0;
    }
    if (byte.reader_warp != warp || byte.reader_warp_waits != warp_waits) byte.reader_lanes = 0;
    byte.reader_warp = (uint8_t)warp, byte.reader_warp_waits = warp_waits;
    byte.reader_warps |= (uint8_t)(1u << warp), byte.reader_lanes |= 1u << (t & 31);
    byte.read_at = place;
    return other;
}

// A read may begin and end in what an aligned word of 16 bytes has beside the array's own: no device has less there.
bool lies_in_a_region(uint64_t address, uint32_t bytes, bool writes) {
    uint64_t beside = writes ? 0 : 15;
    for (size_t k = 0; k < regions.size(); k++) {
        Region own = regions[k];
        if (address < (own.begin & ~beside) || address + bytes > ((own.end + beside) & ~beside)) continue;
        if (k) std::swap(regions[k], regions[k / 2]);   // what is touched often is soon found
        return true;
    }
    return false;
}

// Return where an access reaches memory of the host, having noted its faults; nothing if there is no memory.
uint8_t *reach(Space space, uint64_t address, uint32_t bytes, uint32_t used, bool writes, bool atomic,
               const uint8_t *values, const char *place) {
    SharedMemory &own = shared();
    uint64_t shared_begin = (uint64_t)own.bytes.data();
    const char *what = atomic ? "atomic" : writes ? "write" : "read";
    if (space == GENERIC) {
        if (address - shared_begin < own.bytes.size()) space = SHARED, address -= shared_begin;
        else if (address - (uint64_t)arguments < argument_bytes) space = ARGUMENTS;
        else space = GLOBAL;
    }
    if (address % bytes) {
        fault(std::string("a misaligned ") + what, place);
        return nullptr;
    }
    if (space == ARGUMENTS) {
        if (!writes && address - (uint64_t)arguments <= argument_bytes - bytes) return (uint8_t *)address;
        fault(std::string("a ") + what + " outside of the arguments", place);
        return nullptr;
    }
    bool is_shared = space == SHARED;
    if (is_shared ? address > own.bytes.size() || bytes > own.bytes.size() - address
                  : !lies_in_a_region(address, bytes, writes)) {
        fault(std::string("a ") + what + (is_shared ? " outside of shared memory" : " outside of the arrays"), place);
        return nullptr;
    }
    uint8_t *memory = is_shared ? own.bytes.data() + address : (uint8_t *)address;
    uint32_t stamp = is_shared ? own.stamp : launch_stamp;
    Shadow &shadow = is_shared ? own.shadow : page_of(address);
    uint64_t first = is_shared ? address : address % PAGE;
    const char *other = nullptr;
    bool is_unwritten = false;
    for (uint32_t k = 0, step; k < bytes; k += step) {
        uint64_t at = first + k;
        step = bytes < 4 || (used >> k & 15) != 15 ? 1 : 4;
        if (!(used >> k & 1)) continue;
        bool whole = step == 4 && shadow.parted[at / 4] != stamp;
        Byte *known = whole ? &shadow.words[at / 4] : shadow.part(at / 4, stamp) + at % 4;
        for (uint32_t j = 0; j < (whole ? 1 : step); j++) {
            uint32_t n = whole ? 4 : 1;
            bool unwritten = is_shared ? known[j].stamp != stamp || known[j].writer_block == NONE : false;
            if (!is_shared)
                for (uint32_t i = 0; i < n; i++) unwritten |= shadow.unwritten[at + j + i];
            bool changes = unwritten || !values || memcmp(memory + k + j, values + k + j, n);
            const char *found = note(known[j], stamp, writes, atomic, changes, place);
            if (found) other = found;
            is_unwritten |= unwritten;
        }
        if (writes && !is_shared) memset(&shadow.unwritten[at], 0, step);
    }
    if (is_unwritten && (!writes || atomic)) {
        fault(std::string("a ") + what + " of what was never written, in " + (is_shared ? "shared" : "global") + " memory",
              place);
    }
    if (other) fault(std::string("a race in ") + (is_shared ? "shared" : "global") + " memory: " + what, place, other);
    return memory;
}

void begin_block() {
    memset(shared().bytes.data(), host_threads::order == host_threads::RISING ? 0x5A : 0xFF, shared().bytes.size());
    shared().stamp = ++block_stamp;
}

void run_thread() { kernel(arguments); }

jmp_buf before_launch;

// End the launch where threads that should wait together do not, and say where one of them waits.
void stop(const char *what) {
    using namespace host_threads;
    const char *place = "the end of a kernel";
    for (unsigned k = 0; k < residents[resident].n_threads; k++) {
        unsigned t = (threadIdx.x & ~31u) ^ k;   // those of this warp come first
        State state = fibers[t].state;
        if (state != AT_BARRIER && state != IN_WARP && state != ASLEEP) continue;
        place = shared().asked_at[t];
        break;
    }
    fault(what, place);
    _longjmp(before_launch, 1);
}

// Note where a thread waits, and that all lanes of its warp are asked to.
void begin_to_wait(uint32_t mask, const char *place) {
    shared().asked_at[threadIdx.x] = place;
    check_mask(mask);
}

}  // namespace

uint32_t thread_of_block() { return threadIdx.x; }
uint32_t block_of_grid() { return blockIdx.x; }
uint64_t generic_address_of_shared(uint64_t address) { return (uint64_t)shared().bytes.data() + address; }
void report(const char *what, const char *place) { fault(what, place); }

void read_memory(Space space, uint64_t address, void *values, uint32_t bytes, uint32_t used, bool atomic, const char *place) {
    const uint8_t *memory = reach(space, address, bytes, used, false, atomic, nullptr, place);
    if (memory) memcpy(values, memory, bytes);
    else memset(values, 0, bytes);
}

void write_memory(Space space, uint64_t address, const void *values, uint32_t bytes, bool atomic, const char *place) {
    uint8_t *memory = reach(space, address, bytes, NONE, true, atomic, (const uint8_t *)values, place);
    if (memory) memcpy(memory, values, bytes);
}

uint64_t change_memory(Space space, Change change, uint64_t address, uint64_t number, uint32_t bytes, const char *place) {
    uint8_t *memory = reach(space, address, bytes, NONE, true, true, nullptr, place);
    uint64_t before = 0;
    if (!memory) return 0;
    memcpy(&before, memory, bytes);
    uint64_t after = change == ADD ? before + number : before | number;
    memcpy(memory, &after, bytes);
    return before;
}

void wait_for_block(const char *place) {
    begin_to_wait(NONE, place);
    host_threads::wait(host_threads::AT_BARRIER);
}

void wait_for_warp(uint32_t mask, const char *place) {
    begin_to_wait(mask, place);
    host_threads::ask("w", 0, 0);
}

void sleep_a_while(const char *place) {
    shared().asked_at[threadIdx.x] = place;
    host_threads::wait(host_threads::ASLEEP);
}

uint32_t ballot(bool is_so, uint32_t mask, const char *place) {
    begin_to_wait(mask, place);
    return (uint32_t)host_threads::ask("ballot", 0, is_so);
}

uint32_t sum_of_warp(uint32_t number, uint32_t mask, const char *place) {
    begin_to_wait(mask, place);
    return (uint32_t)host_threads::ask("add", 0, number);
}

uint32_t shuffled(char kind, uint32_t number, uint32_t argument, uint32_t clamp, uint32_t mask, const char *place) {
    begin_to_wait(mask, place);
    if (clamp != (kind == 'u' ? 0 : 31)) fault("a shuffle among fewer than 32 lanes", place);
    return (uint32_t)host_threads::ask(kind == 'u' ? "up" : kind == 'x' ? "xor" : "index", argument, number);
}

extern "C" {

// Run a kernel, which may touch arrays in these regions.
void run_kernel(void (*body)(const uint8_t *), const uint8_t *given, uint32_t n_bytes, uint32_t n_shared, uint32_t blocks,
                uint32_t order, const Region *arrays, uint32_t n_arrays) {
    kernel = body, arguments = given, argument_bytes = n_bytes;
    regions.assign(arrays, arrays + n_arrays);
    for (SharedMemory &own : of_residents) {
        own.bytes.assign((n_shared + 15) & ~15u, 0);
        own.bytes.resize(n_shared);
        own.shadow.reserve(n_shared);
    }
    launch_stamp++;
    forget_pages();
    host_threads::instead_of_abort = stop;
    if (_setjmp(before_launch)) {
        for (host_threads::Block &block : host_threads::residents) block.n_threads = 0;   // none goes on where it is
        return;
    }
    host_threads::run(run_thread, begin_block, blocks, 256, order);
}

// Take note that a piece of memory holds nothing yet, or that it does.
void mark(uint64_t address, uint64_t bytes, bool unwritten) {
    for (uint64_t end = address + bytes; address < end;) {
        uint64_t n = std::min(end - address, PAGE - address % PAGE);
        memset(&page_of(address).unwritten[address % PAGE], unwritten, n);
        address += n;
    }
}

// Return all faults that were found, a line each, and forget them.
const char *take_faults() {
    text_of_faults.clear();
    for (auto &[text, found] : faults) {
        text_of_faults += text + ", " + std::to_string(found.times) + " times, first by block " +
                          std::to_string(found.block) + ", thread " + std::to_string(found.thread) + "\n";
    }
    faults.clear();
    return text_of_faults.c_str();
}
}
