#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/tcp.h"

namespace torch_remote::remote {

// Where a worker listens: "unix://PATH", "tcp://HOST:PORT" or "tls://HOST:PORT".
struct WorkerUrl {
  enum class Scheme : uint8_t { kUnix, kTcp, kTls };

  Scheme scheme = Scheme::kUnix;
  std::string path;  // kUnix.
  Address address;   // kTcp, kTls.

  bool is_network() const { return scheme != Scheme::kUnix; }
  bool is_tls() const { return scheme == Scheme::kTls; }
  std::string text() const;  // The URL.
};

// The scheme of a URL; none if the text is no such URL.
std::optional<WorkerUrl::Scheme> scheme_of(std::string_view url);
bool is_network_url(std::string_view url);

// Returns kInvalid for any other text; the message shows the three forms.
Status parse_worker_url(std::string_view text, WorkerUrl* url);

}  // namespace torch_remote::remote
