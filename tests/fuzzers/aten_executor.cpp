// The worker's own: programs run on torch.
#include "tests/fuzzers/executor.h"

extern "C" const tr_executor_api* torch_remote_executor_api();

namespace torch_remote::fuzzers {

// Little: an op on much is slow.
uint64_t session_memory() { return 8 << 20; }

const tr_executor_api* executor() { return torch_remote_executor_api(); }

}  // namespace torch_remote::fuzzers
