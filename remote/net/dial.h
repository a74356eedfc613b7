#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/deadline.h"
#include "remote/net/tls.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

struct DialOptions {
  std::string token;  // empty: none
  TlsFiles tls;
  std::chrono::milliseconds time{20'000};  // time limit for one connection
};

// Reads TORCH_REMOTE_TOKEN_FILE, TORCH_REMOTE_TOKEN, TORCH_REMOTE_TLS_CA, TORCH_REMOTE_TLS_CERT and
// TORCH_REMOTE_TLS_KEY.
Status dial_options_from_environment(DialOptions* options);
// Reads the three TORCH_REMOTE_TLS_* variables.
TlsFiles tls_files_from_environment();

// Starts a session with the worker at tcp://HOST:PORT or tls://HOST:PORT. If the connection breaks while the transport
// lives, the session is resumed automatically.
Status dial(const std::string& url, const DialOptions& options, const KeepWaiting& keep_waiting,
            std::unique_ptr<Transport>* transport);

}  // namespace torch_remote::remote
