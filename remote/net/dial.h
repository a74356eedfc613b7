#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/patience.h"
#include "remote/net/tls.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

struct DialOptions {
  std::string token;  // empty: none
  TlsFiles tls;
  std::chrono::milliseconds time{20'000};  // for one connection
};

// TORCH_REMOTE_TOKEN_FILE, TORCH_REMOTE_TOKEN, TORCH_REMOTE_TLS_CA, TORCH_REMOTE_TLS_CERT, TORCH_REMOTE_TLS_KEY.
Status dial_options_from_environment(DialOptions* options);
// The last three of these.
TlsFiles tls_files_from_environment();

// Whether it begins like an address that `dial` takes.
bool is_network_url(std::string_view url);

// Begins a session with the worker at tcp://HOST:PORT or tls://HOST:PORT, which is resumed by itself while the
// transport lives.
Status dial(const std::string& url, const DialOptions& options, const KeepWaiting& keep_waiting,
            std::unique_ptr<Transport>* transport);

}  // namespace torch_remote::remote
