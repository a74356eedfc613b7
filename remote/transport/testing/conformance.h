#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "remote/transport/transport.h"

// The conformance suite of transports. A test defines `transport_kinds` and links this library, which checks those
// transports.
namespace torch_remote::remote {

using TransportPair = std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>>;

struct TransportKind {
  const char* name;
  TransportPair (*make)();
};

std::vector<TransportKind> transport_kinds();

}  // namespace torch_remote::remote
