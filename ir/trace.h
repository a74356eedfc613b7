#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "ir/dtype.h"
#include "ir/math_modes.h"
#include "ir/ops/op_table.h"

// A trace: the ops recorded since the last cut, as two flat streams.
//
//   code    32-bit words, structure only: ops, data edges, dtypes, ranks, which dims are 0 or 1, structural arguments.
//           This is the program key. It is hashed while it is written, and compared in full before a program is reused.
//   params  64-bit words, everything that may change between runs: sizes, strides, offsets, scalars, seeds.
//
// Both are append-only and keep their capacity when cleared, so that recording does not allocate.
//
// The code of one record:
//
//   record  := opcode arg* result*          arguments in schema order, without those with role kClientOnly
//   arg     := by kind and role, see below
//   result  := operand                      only tensors that alias no argument (ResultDesc::alias < 0);
//                                           a tensor list: count operand*
//   operand := slot                         a view that this trace has seen: its number, in order of first appearance
//            | kAbsent                      an optional tensor that was not given, or an undefined result
//            | kNewView|dtype<<16|origin<<14|rank<<6 [ordinal] mask*
//                                           a view that appears for the first time; it gets the next slot. origin:
//                                           ViewOrigin; `ordinal` only for kKnownBuffer; ceil(rank / 16) mask words,
//                                           2 bits per dim: 0: size 0, 1: size 1, 2: any other size, 3: unknown until
//                                           the run (kUnknownSize: a result of an op with kOpDynamicShape).
//                                           params: nbytes (kFreshBuffer only); sizes, strides, offset (elements)
//            | kScalarOperand|dtype<<8|wrapped
//                                           a 0-dim CPU tensor, or a number in place of a tensor (wrapped: 1).
//                                           params: 1 word (the bits of an int64, a double, or a bool as int64), 2
//                                           for complex (real and imaginary part as doubles)
//            | kDynamicResult               a result whose dtype, rank and sizes are unknown until the run (nonzero,
//                                           unique), or a list of unknown length. It gets the next slot, and its
//                                           buffer the next ordinal. params: none. Only in a trace's last record.
//
//   kTensor, kOptionalTensor                operand
//   kTensorList, kOptionalTensorList        count operand*
//   structural kInt, kBool                  integer: the value if 0 <= v < 2^31, else kWideInt lo hi
//   structural kFloat                       two words (bits)
//   structural lists                        count integer*   (floats: two words each)
//   structural optional, also lists         kAbsent, or as the kind that is not optional
//   structural kScalar                      tag (ScalarTag), two words (four for complex)
//   kString, kDType, kMemoryFormat          one word: interned string, dtype or memory format; kAbsent if not given
//   value kInt, kFloat, kBool               nothing; params: 1 word (int64, or the double's bits)
//   value optional                          0 or 1; params: the word if 1
//   value lists                             count (kAbsent if not given); params: one word each
//   value kScalar                           tag (ScalarTag); params: 1 word, 2 for complex
//   value kScalarList                       count tag*; params: 1 word each, 2 for complex
//   kGenerator                              nothing; params: seed, offset
namespace torch_remote::ir {

inline constexpr uint32_t kNewView = 0x8000'0000;
inline constexpr uint32_t kScalarOperand = 0x9000'0000;
inline constexpr uint32_t kDynamicResult = 0xA000'0000;
inline constexpr uint32_t kAbsent = 0xF000'0000;
inline constexpr uint32_t kWideInt = 0x8000'0000;
inline constexpr uint32_t kMaxRank = 64;
// The size that `new_buffer_view` gets for a dim whose size is unknown until the run. One such dim makes the whole view
// dynamic (View::dynamic): its other sizes and its strides are then ignored.
inline constexpr int64_t kUnknownSize = -1;
inline constexpr uint8_t kDynamicRank = 0xFF;  // TraceView::rank of a dynamic result

enum class ViewOrigin : uint32_t { kKnownBuffer = 0, kInputBuffer = 1, kFreshBuffer = 2 };
enum class ScalarTag : uint32_t { kAbsent = 0, kInt = 1, kFloat = 2, kBool = 3, kComplex = 4 };

struct Hash128 {
  uint64_t lo = 0;
  uint64_t hi = 0;
  bool operator==(const Hash128&) const = default;
};

// Where a record comes from; opaque to this component. For a Python frame: a code object, which is kept alive, and an
// instruction offset.
struct SourceRef {
  uint64_t code = 0;
  int32_t instruction = -1;
  uint32_t callers = 0;  // the chain of frames that called this one, and whether the record belongs to a backward pass
};

struct TraceBuffer {
  uint64_t id = 0;        // 0: the worker does not know it yet (fresh)
  void* owner = nullptr;  // the storage that holds it; null after the storage died
  uint64_t nbytes = 0;
  bool fresh = false;
  bool written = false;         // whether a record writes it; maintained only if several threads record
  uint32_t died_at_record = 0;  // number of records when the storage died
};

struct TraceView {
  uint32_t buffer;  // ordinal
  DType dtype;
  uint8_t rank;
  uint32_t first_param;  // index of the first size in `params`; the strides and the offset follow
};

struct TraceRecord {
  uint32_t code;         // index of the opcode word
  uint32_t first_param;  // index of the record's first parameter
};

// Not thread safe: the recorder's lock guards it.
class Trace {
 public:
  bool empty() const { return records.empty(); }
  // Removes everything, but keeps the capacity.
  void clear();

  // -- writing: begin_record, then the words in the order given above, then end_record. -----------------------------
  void begin_record(Opcode opcode, SourceRef source) {
    records.push_back({static_cast<uint32_t>(code.size()), static_cast<uint32_t>(params.size())});
    sources.push_back(source);
    code.push_back(opcode);
  }
  void word(uint32_t w) { code.push_back(w); }
  void param(int64_t v) { params.push_back(v); }
  void param(double v) {
    int64_t bits;
    std::memcpy(&bits, &v, 8);
    params.push_back(bits);
  }
  void structural_int(int64_t v) {
    if (v >= 0 && v < (int64_t{1} << 31)) {
      code.push_back(static_cast<uint32_t>(v));
    } else {
      code.push_back(kWideInt);
      code.push_back(static_cast<uint32_t>(v));
      code.push_back(static_cast<uint32_t>(static_cast<uint64_t>(v) >> 32));
    }
  }
  void structural_float(double v) {
    uint64_t bits;
    std::memcpy(&bits, &v, 8);
    code.push_back(static_cast<uint32_t>(bits));
    code.push_back(static_cast<uint32_t>(bits >> 32));
  }
  void use_view(uint32_t slot) { code.push_back(slot); }
  // Adds a view that is new to this trace, of a buffer that is not (`ordinal`). Returns the view's slot.
  uint32_t new_view(uint32_t ordinal, DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                    int64_t offset) {
    return add_view(ViewOrigin::kKnownBuffer, ordinal, dtype, sizes, strides, offset);
  }
  // Adds a view of a buffer that is also new to this trace. If `id` is 0, the buffer is fresh and has `nbytes` bytes.
  // The buffer's ordinal is buffers.size() before the call.
  uint32_t new_buffer_view(uint64_t id, void* owner, uint64_t nbytes, DType dtype, std::span<const int64_t> sizes,
                           std::span<const int64_t> strides, int64_t offset) {
    const uint32_t ordinal = static_cast<uint32_t>(buffers.size());
    buffers.push_back({id, owner, nbytes, id == 0});
    return add_view(id == 0 ? ViewOrigin::kFreshBuffer : ViewOrigin::kInputBuffer, ordinal, dtype, sizes, strides,
                    offset);
  }
  // Adds a result whose properties are unknown until the run. Its buffer's ordinal is buffers.size() before the call.
  void new_dynamic_result(void* owner) {
    code.push_back(kDynamicResult);
    views.push_back(
        {static_cast<uint32_t>(buffers.size()), DType::kFloat32, kDynamicRank, static_cast<uint32_t>(params.size())});
    buffers.push_back({0, owner, 0, true});
  }
  // Hashes the record's words.
  void end_record();

  // Removes the record that is being written. Its slots and ordinals become invalid, so the caller must cut the trace
  // next.
  void rollback_record(size_t buffer_count, size_t view_count) {
    code.resize(records.back().code);
    params.resize(records.back().first_param);
    records.pop_back();
    sources.pop_back();
    buffers.resize(buffer_count);
    views.resize(view_count);
  }

  // The key: the rolling hash of the records, combined with which buffers outlive the trace (owner != null).
  Hash128 key() const;
  // Bit i: buffer i outlives the trace. The bits are part of the key and are compared like the code.
  std::vector<uint64_t> survivors() const;
  void survivors(std::vector<uint64_t>& out) const;

  bool view_matches(uint32_t slot, DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                    int64_t offset) const {
    const TraceView& view = views[slot];
    const size_t rank = sizes.size();
    if (view.dtype != dtype || view.rank != rank) return false;
    const int64_t* p = params.data() + view.first_param;
    for (size_t i = 0; i < rank; ++i) {
      if (p[i] != sizes[i] || p[rank + i] != strides[i]) return false;
    }
    return p[2 * rank] == offset;
  }

  size_t bytes() const { return code.size() * 4 + params.size() * 8; }

  std::vector<uint32_t> code;
  std::vector<int64_t> params;
  std::vector<TraceRecord> records;
  std::vector<SourceRef> sources;  // one per record
  std::vector<TraceBuffer> buffers;
  std::vector<TraceView> views;
  MathModes math_modes = 0;  // the math modes of its run; not part of the key
  // The bits of an op's result must not depend on the other ops of the program (remote::ProgramOptions). Part of the
  // key.
  bool deterministic = false;

 private:
  uint32_t add_view(ViewOrigin origin, uint32_t ordinal, DType dtype, std::span<const int64_t> sizes,
                    std::span<const int64_t> strides, int64_t offset) {
    const uint32_t rank = static_cast<uint32_t>(sizes.size());
    code.push_back(kNewView | static_cast<uint32_t>(dtype) << 16 | static_cast<uint32_t>(origin) << 14 | rank << 6);
    if (origin == ViewOrigin::kKnownBuffer) code.push_back(ordinal);
    if (origin == ViewOrigin::kFreshBuffer) params.push_back(static_cast<int64_t>(buffers[ordinal].nbytes));
    for (uint32_t i = 0; i < rank; i += 16) {
      uint32_t mask = 0;
      for (uint32_t j = i; j < rank && j < i + 16; ++j) {
        mask |= static_cast<uint32_t>(sizes[j] < 0 ? 3 : sizes[j] < 2 ? sizes[j] : 2) << (2 * (j - i));
      }
      code.push_back(mask);
    }
    const uint32_t slot = static_cast<uint32_t>(views.size());
    views.push_back({ordinal, dtype, static_cast<uint8_t>(rank), static_cast<uint32_t>(params.size())});
    params.insert(params.end(), sizes.begin(), sizes.end());
    params.insert(params.end(), strides.begin(), strides.end());
    params.push_back(offset);
    return slot;
  }

  Hash128 hash_{0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F};
};

// Interns a string: code words refer to strings by numbers of this process.
uint32_t intern_string(std::string_view text);
std::string_view interned_string(uint32_t number);  // empty for an unknown number

}  // namespace torch_remote::ir
