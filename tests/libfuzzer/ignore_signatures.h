#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "ir/program_generated.h"

namespace torch_remote::fuzzers {

// If the bytes are a program, makes the decoder compare no signature of the op table. So the corpus survives changes of
// the table, and damage reaches the code after the comparison.
inline void ignore_signatures(std::span<uint8_t> bytes) {
  namespace fbs = ir::fbs;
  // The buffer must be aligned as the decoder requires.
  if (bytes.size() < 8 || reinterpret_cast<uintptr_t>(bytes.data()) % 8 != 0) return;
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), /*max_depth=*/16, /*max_tables=*/1'000'000);
  if (!fbs::VerifyProgramBuffer(verifier)) return;
  const auto* hashes = fbs::GetProgram(bytes.data())->op_hashes();
  if (hashes == nullptr) return;
  std::memset(bytes.data() + (hashes->Data() - bytes.data()), 0, hashes->size() * sizeof(uint64_t));
}

}  // namespace torch_remote::fuzzers
