#pragma once

#include <cstdint>

#include "worker/runner/plugin.h"

// What the sessions of tests/libfuzzer/messages.cpp run programs with: a target has one of the two files that define
// these.
namespace torch_remote::fuzzers {

const tr_runner_api* runner();
// The limit of a session, in bytes.
uint64_t session_memory();

}  // namespace torch_remote::fuzzers
