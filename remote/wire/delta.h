#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/status.h"

// How a run's parameters and bindings travel: only what differs from the last run of the same program, which both ends
// keep. Varints are LEB128, signed ones zigzag coded.
namespace torch_remote::remote {

// params: (skip count value*)*: `skip` words are as they were, then `count` words change by `value` (signed difference,
// wrapping, or for words that changed much, the bits: see delta.cpp). `last` becomes `now`. Before the first run of a
// program all words are 0; their number never changes (both ends know it from the program).
void encode_params(std::span<const int64_t> now, std::vector<int64_t>& last, std::vector<uint8_t>& out);
// Applies it to `last`, whose size the receiver set from the program. kInvalid for bytes that do not decode or run past
// its end; `changed` is set if any word did.
Status decode_params(std::span<const uint8_t> bytes, std::vector<int64_t>& last, bool* changed);

// Buffer ids come in two sorts: the same as last time (weights), or as far from `base` as last time (what this step
// made). bindings: (skip count id*)*, `skip` ids follow the rule that held for them last time, and so do those after
// the last pair. Before the first run all ids are 0 and not relative; as with params, the receiver sets their number.
struct Bindings {
  std::vector<uint64_t> ids;
  std::vector<bool> relative;  // id = base - offset: keeps its distance from base
  uint64_t base = 0;
};
void encode_bindings(std::span<const uint64_t> now, uint64_t base, Bindings& last, std::vector<uint8_t>& out);
Status decode_bindings(std::span<const uint8_t> bytes, uint64_t base, Bindings& last);

// What an end keeps of a program's last run.
struct LastRun {
  std::vector<int64_t> params;
  Bindings bindings;
};

// Ids to free: sorted differences, so none can be there twice. `ids` is sorted by this.
void encode_frees(std::vector<uint64_t>& ids, std::vector<uint8_t>& out);
Status decode_frees(std::span<const uint8_t> bytes, std::vector<uint64_t>* ids);

}  // namespace torch_remote::remote
