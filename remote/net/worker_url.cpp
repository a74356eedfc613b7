#include "remote/net/worker_url.h"

#include <array>

namespace torch_remote::remote {
namespace {

constexpr std::array<std::string_view, 3> kPrefixes = {"unix://", "tcp://", "tls://"};  // By scheme.

std::string_view prefix(WorkerUrl::Scheme scheme) { return kPrefixes[static_cast<size_t>(scheme)]; }

}  // namespace

std::string WorkerUrl::text() const { return std::string(prefix(scheme)) + (is_network() ? address.text() : path); }

std::optional<WorkerUrl::Scheme> scheme_of(std::string_view url) {
  for (const auto scheme : {WorkerUrl::Scheme::kUnix, WorkerUrl::Scheme::kTcp, WorkerUrl::Scheme::kTls}) {
    if (url.starts_with(prefix(scheme))) return scheme;
  }
  return {};
}

bool is_network_url(std::string_view url) {
  return scheme_of(url).value_or(WorkerUrl::Scheme::kUnix) != WorkerUrl::Scheme::kUnix;
}

Status parse_worker_url(std::string_view text, WorkerUrl* url) {
  const std::optional<WorkerUrl::Scheme> scheme = scheme_of(text);
  if (!scheme) {
    return Status::invalid("remote: '" + std::string(text) +
                           "' is not the address of a worker; write unix://PATH, tcp://HOST:PORT or tls://HOST:PORT");
  }
  *url = {};
  url->scheme = *scheme;
  const std::string_view rest = text.substr(prefix(*scheme).size());
  if (url->is_network()) return parse_address(rest, text, &url->address);
  url->path = rest;
  return {};
}

}  // namespace torch_remote::remote
