#pragma once

#include <cstdint>

#include "worker/runner/plugin.h"

// The runner of the sessions in messages.cpp. Two files define these functions; each target links one of them.
namespace torch_remote::fuzzers {

const tr_runner_api* runner();
// The memory limit of a session in bytes.
uint64_t session_memory();

}  // namespace torch_remote::fuzzers
