// The worker's own runner: programs run on torch.
#include "tests/libfuzzer/runner.h"

extern "C" const tr_runner_api* torch_remote_runner_api();

namespace torch_remote::fuzzers {

// Small, because ops on large tensors are slow.
uint64_t session_memory() { return 8 << 20; }

const tr_runner_api* runner() { return torch_remote_runner_api(); }

}  // namespace torch_remote::fuzzers
