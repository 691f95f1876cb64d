// What translated PTX calls: the arithmetic of instructions that C++ has no operator for, and the device that runtime.cpp is.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

enum Space { GENERIC, GLOBAL, SHARED, ARGUMENTS };
enum Change { ADD, OR };

// The device. Places are files and lines of the CUDA source, for reports.
extern "C" {
uint32_t thread_of_block();
uint32_t block_of_grid();
uint64_t generic_address_of_shared(uint64_t address);
void read_memory(Space, uint64_t address, void *values, uint32_t bytes, uint32_t used, bool atomic, const char *place);
void write_memory(Space, uint64_t address, const void *values, uint32_t bytes, bool atomic, const char *place);
uint64_t change_memory(Space, Change, uint64_t address, uint64_t number, uint32_t bytes, const char *place);
void wait_for_block(const char *place);
void wait_for_warp(uint32_t mask, const char *place);
void sleep_a_while(const char *place);
uint32_t ballot(bool is_so, uint32_t mask, const char *place);
uint32_t sum_of_warp(uint32_t number, uint32_t mask, const char *place);
uint32_t shuffled(char kind, uint32_t number, uint32_t argument, uint32_t clamp, uint32_t mask, const char *place);
void report(const char *what, const char *place);
}

template <typename T, unsigned N>
static inline void read(Space space, uint64_t address, T (&values)[N], uint32_t used, bool atomic, const char *place) {
    read_memory(space, address, values, sizeof(values), used, atomic, place);
}

template <typename T, unsigned N>
static inline void write(Space space, uint64_t address, const T (&values)[N], bool atomic, const char *place) {
    write_memory(space, address, values, sizeof(values), atomic, place);
}

// Parameters of functions lie on the stack of the host's thread.
template <typename T> static inline T taken(const uint8_t *parameter) {
    T value;
    memcpy(&value, parameter, sizeof(T));
    return value;
}
template <typename T> static inline void put(uint8_t *parameter, T value) { memcpy(parameter, &value, sizeof(T)); }

static inline float real(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

// Shifts by the width of a number or more leave nothing but its sign.
template <typename T> static inline T shifted_left(T x, uint32_t n) { return n < 8 * sizeof(T) ? (T)(x << n) : 0; }
template <typename T> static inline T shifted_right(T x, uint32_t n) {
    return n < 8 * sizeof(T) ? (T)(x >> n) : (T)(x < 0 ? -1 : 0);
}
static inline uint32_t funnel_left(uint32_t low, uint32_t high, uint32_t n) {
    return (uint32_t)(((uint64_t)high << 32 | low) << (n & 31) >> 32);
}
static inline uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t n) {
    return (uint32_t)(((uint64_t)high << 32 | low) >> (n & 31));
}

// The bytes of eight that the four digits of `selector` name; or, where a digit's highest bit is set, copies of their signs.
static inline uint32_t bytes_by(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t eight = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (unsigned k = 0; k < 4; k++) {
        uint32_t digit = selector >> 4 * k & 15, byte = (uint32_t)(eight >> 8 * (digit & 7)) & 255;
        if (digit & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * k;
    }
    return result;
}

// The lowest `n` bits of `a` in place of those of `b` from bit `at` on, as far as `b` has so many.
template <typename T> static inline T bits_inserted(T a, T b, uint32_t at, uint32_t n) {
    at &= 255, n &= 255;
    T ones = n < 8 * sizeof(T) ? (T)(((T)1 << n) - 1) : (T)~(T)0;
    T mask = shifted_left<T>(ones, at);
    return (T)((b & ~mask) | (shifted_left<T>(a, at) & mask));
}

static inline uint32_t leading_zeros(uint32_t x) { return x ? (uint32_t)__builtin_clz(x) : 32u; }

static inline uint32_t reversed(uint32_t x) {
    uint32_t result = 0;
    for (int k = 0; k < 32; k++) result |= (x >> k & 1) << (31 - k);
    return result;
}

template <typename T> static inline T divided(T a, T b, const char *place) {
    if (b) return a / b;
    report("a division by zero", place);
    return (T)~(T)0;
}
template <typename T> static inline T remainder_of(T a, T b, const char *place) {
    if (b) return a % b;
    report("a division by zero", place);
    return a;
}
