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

// The ids that a run binds. Each binding has a rule, which predicts its id from the last run:
//
//   absolute: the same id, as for weights
//   relative: the same distance from `first_result_id`, as for results of the current step
//
// Encoding: (skip count id*)*. The next `skip` bindings have the predicted ids. For each of the `count` bindings after
// them, `id` is 0 if the other rule predicts the id and holds from now on. Otherwise it encodes the id itself (see
// delta.cpp). Bindings after the last `count` have the predicted ids. Before the first run all ids are 0 and all rules
// absolute. The receiver sets the number of bindings, as it does for params.
struct Bindings {
  std::vector<uint64_t> ids;
  std::vector<bool> relative;  // the rule of each binding
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
