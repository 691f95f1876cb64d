// The CUDA C++ kernels as functions of a library for the host; see host_threads.h.
#include "host_threads.h"

#include "decode.cu"
#include "decode_planes.cu"
#include "decode_general.cu"
#include "encode.cu"
#include "encode_planes.cu"
#include "encode_general.cu"
#include "assemble.cu"
#include "count.cu"
#include "levels.cu"
#include "patch_make.cu"
#include "patch_apply.cu"
#include "hash.cu"

// A kernel, each of whose blocks gets shared memory of this type, filled with anything.
template <typename Shared, typename Arguments, void (*BODY)(const Arguments &, Shared &)>
struct Kernel {
    static inline const Arguments *arguments;
    static constexpr size_t BYTES = (sizeof(Shared) + 15) & ~15ul;
    static inline char *shared;      // of all resident blocks
    static inline unsigned order;

    static char *own() { return shared + BYTES * host_threads::resident; }
    static void thread() { BODY(*arguments, *(Shared *)own()); }
    static void prepare() { memset(own(), order == host_threads::RISING ? 0x5A : 0xFF, BYTES); }

    // Return the bytes of the arguments.
    static unsigned run(const void *given, unsigned blocks, unsigned in_order) {
        arguments = (const Arguments *)given;
        order = in_order;
        shared = (char *)aligned_alloc(16, BYTES * host_threads::RESIDENT);
        host_threads::run(thread, prepare, blocks, THREADS, order);
        free(shared);
        return sizeof(Arguments);
    }
};

template <typename V>
using Decode = Kernel<WholeDecoder, DecodeArguments<V>, decode_blocks<WholeDecoder, V>>;
template <typename V>
using DecodePlanes = Kernel<PlanesDecoder, DecodeArguments<V>, decode_planes<V>>;
template <typename V>
using DecodeGeneral = Kernel<GeneralDecoder, DecodeArguments<V>, decode_general<V>>;
template <typename V>
using Encode = Kernel<WholeEncoder, EncodeArguments<V>, encode_whole<V>>;
template <typename V>
using EncodePlanes = Kernel<PlanesEncoder<false>, EncodeArguments<V>, encode_planes<false, V>>;
template <typename V>
using EncodeGeneral = Kernel<PlanesEncoder<true>, EncodeArguments<V>, encode_planes<true, V>>;
template <typename V>
using Bare = Kernel<BareShared, BareArguments<V>, write_bare<V>>;
template <typename V>
using BarePlanes = Kernel<BarePlanesShared, BareArguments<V>, write_bare_planes<V>>;
template <typename V>
using Count = Kernel<CountShared, CountArguments<V>, count_block<V>>;
template <typename Rule>
using Choose = Kernel<LevelShared, LevelArguments, choose_levels<Rule>>;
using Seal = Kernel<SealShared, SealArguments, seal_frame>;

#define ON_HOST(name, ...) \
    extern "C" unsigned name##_on_host(const void *a, unsigned n, unsigned f) { return __VA_ARGS__::run(a, n, f); }

ON_HOST(decode_float32, Decode<u32>)
ON_HOST(decode_float16, Decode<u16>)
ON_HOST(decode_planes_float32, DecodePlanes<u32>)
ON_HOST(decode_planes_float16, DecodePlanes<u16>)
ON_HOST(decode_general_float32, DecodeGeneral<u32>)
ON_HOST(decode_general_float16, DecodeGeneral<u16>)
ON_HOST(encode_float32, Encode<u32>)
ON_HOST(encode_float16, Encode<u16>)
ON_HOST(encode_planes_float32, EncodePlanes<u32>)
ON_HOST(encode_planes_float16, EncodePlanes<u16>)
ON_HOST(encode_general_float32, EncodeGeneral<u32>)
ON_HOST(encode_general_float16, EncodeGeneral<u16>)
ON_HOST(write_bare_float32, Bare<u32>)
ON_HOST(write_bare_float16, Bare<u16>)
ON_HOST(write_bare_planes_float32, BarePlanes<u32>)
ON_HOST(write_bare_planes_float16, BarePlanes<u16>)
ON_HOST(count_float32, Count<u32>)
ON_HOST(count_float16, Count<u16>)
ON_HOST(choose_linear, Choose<LinearRule>)
ON_HOST(choose_accumulator, Choose<AccumulatorRule>)
ON_HOST(choose_adam, Choose<AdamRule>)
ON_HOST(choose_delta, Choose<DeltaRule>)
ON_HOST(choose_peak, Choose<PeakRule>)
ON_HOST(seal_frames, Seal)
ON_HOST(count_differences, Kernel<CountsShared, CountDifferencesArguments, count_differences_of>)
ON_HOST(note_all_differences, Kernel<ClassesShared, NoteArguments, note_differences_of>)
ON_HOST(count_change_symbols, Kernel<CountSymbolsShared, CountSymbolsArguments, count_symbols_of_changes>)
ON_HOST(write_sub_streams, Kernel<WriteShared, WriteArguments, write_sub_stream>)
ON_HOST(seal_sparse_blocks, Kernel<SealBlocksShared, SealBlocksArguments, seal_sparse_block>)
ON_HOST(check_sparse_blocks, Kernel<CheckShared, CheckArguments, check_sparse_block>)
ON_HOST(find_sub_streams, Kernel<FindStreamsShared, FindStreamsArguments, find_sub_streams_of>)
ON_HOST(read_sub_streams, Kernel<Nothing, ReadArguments, read_sub_stream>)
ON_HOST(count_members, Kernel<CountsShared, CountMembersArguments, count_members_of>)
ON_HOST(place_changes, Kernel<PlaceShared, PlaceArguments, place_changes_of>)
ON_HOST(apply_changes, Kernel<Nothing, ApplyArguments, apply_to_sub_stream>)
ON_HOST(copy_stored_blocks, Kernel<Nothing, CopyArguments, copy_stored_block>)
ON_HOST(sum_words, Kernel<SumWordsShared, SumWordsArguments, sum_part>)
ON_HOST(sum_hash_blocks, Kernel<Nothing, SumHashArguments, sum_blocks>)
ON_HOST(chain_hash_blocks, Kernel<ChainShared, ChainArguments, chain_hash>)
