#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/status.h"

// Delta encoding of a run's parameters and bindings. Only differences from the last run of the same program are sent;
// both ends store that run. Varints are LEB128; signed ones are zigzag encoded.
namespace torch_remote::remote {

// Encoding: (skip count value*)*. `skip` words are unchanged, then `count` words change by `value`: a signed wrapping
// difference, or the new bits after a large change (see delta.cpp). `last` becomes `now`. Before the first run of a
// program all words are 0. Their number never changes, and both ends know it from the program.
void encode_params(std::span<const int64_t> now, std::vector<int64_t>& last, std::vector<uint8_t>& out);
// Applies `bytes` to `last`, whose size the receiver has set from the program. Returns kInvalid for bytes that do not
// decode or that go past the end of `last`. Sets `changed` if `bytes` has any change.
Status decode_params(std::span<const uint8_t> bytes, std::vector<int64_t>& last, bool* changed);

// Each binding has a rule for its id. The id stays the same from run to run (weights), or it keeps its distance from
// `first_result_id` (results of this step). Encoding: (skip count id*)*. `skip` ids follow their rules, and so do all
// ids after the last pair. Each of the `count` ids is 0 if the other rule holds from now on, or 1 plus the difference
// from the previous such id. Before the first run all ids are 0 and not relative. The receiver sets their number, as it
// does for params.
struct Bindings {
  std::vector<uint64_t> ids;
  std::vector<bool>
      relative;  // the rule of each binding: id = first_result_id - offset, with the offset of the last run
  uint64_t first_result_id = 0;
};
void encode_bindings(std::span<const uint64_t> now, uint64_t first_result_id, Bindings& last,
                     std::vector<uint8_t>& out);
Status decode_bindings(std::span<const uint8_t> bytes, uint64_t first_result_id, Bindings& last);

// Each end stores this about a program's last run.
struct LastRun {
  std::vector<int64_t> params;
  Bindings bindings;
};

// Encodes ids to free as sorted differences, so no id can occur twice. Sorts `ids`.
void encode_freed_ids(std::vector<uint64_t>& ids, std::vector<uint8_t>& out);
Status decode_freed_ids(std::span<const uint8_t> bytes, std::vector<uint64_t>* ids);

}  // namespace torch_remote::remote
