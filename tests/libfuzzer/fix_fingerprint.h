#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "ir/ops/op_table.h"
#include "ir/program_generated.h"

namespace torch_remote::fuzzers {

// If the bytes are a program, overwrites its op-table fingerprint with that of this build. So the corpus survives
// changes of the table, and damage reaches the code after the comparison.
inline void fix_fingerprint(std::span<uint8_t> bytes) {
  namespace fbs = ir::fbs;
  // The buffer must be aligned as the decoder requires.
  if (bytes.size() < 8 || reinterpret_cast<uintptr_t>(bytes.data()) % 8 != 0) return;
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), /*max_depth=*/16, /*max_tables=*/1'000'000);
  if (!fbs::VerifyProgramBuffer(verifier)) return;
  const auto* table = reinterpret_cast<const flatbuffers::Table*>(fbs::GetProgram(bytes.data()));
  const uint8_t* field = table->GetAddressOf(fbs::Program::VT_FINGERPRINT);
  if (field == nullptr) return;
  const uint64_t fingerprint = ir::op_table_fingerprint();
  std::memcpy(bytes.data() + (field - bytes.data()), &fingerprint, sizeof(fingerprint));
}

}  // namespace torch_remote::fuzzers
