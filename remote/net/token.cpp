#include "remote/net/token.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "remote/wire/environment.h"

namespace torch_remote::remote {
namespace {

Status check(const std::string& token, const std::string& where) {
  if (token.size() >= kMinTokenBytes && token.size() <= kMaxTokenBytes) return {};
  return Status::invalid("remote: the token in " + where + " has " + std::to_string(token.size()) +
                         " bytes; it needs " + std::to_string(kMinTokenBytes) + " to " +
                         std::to_string(kMaxTokenBytes) + " (make one: openssl rand -hex 32 > token)");
}

}  // namespace

Status read_token_file(const std::string& path, std::string* token, bool* readable_by_others) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return Status::invalid("remote: cannot read the token file '" + path + "': " + std::strerror(errno));
  }
  struct stat info{};
  *readable_by_others = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & (S_IRGRP | S_IROTH)) != 0;
  std::string text(kMaxTokenBytes + 2, '\0');
  size_t size = 0;
  for (ssize_t n; size < text.size() && (n = read(file, text.data() + size, text.size() - size)) > 0;) {
    size += static_cast<size_t>(n);
  }
  close(file);
  text.resize(size);
  if (const size_t end = text.find_first_of("\r\n"); end != std::string::npos) text.resize(end);
  *token = std::move(text);
  return check(*token, "'" + path + "'");
}

Status read_token_from_environment(std::string* token) {
  const std::string file = environment_value("TORCH_REMOTE_TOKEN_FILE"), text = environment_value("TORCH_REMOTE_TOKEN");
  if (!file.empty() && !text.empty()) {
    return Status::invalid("remote: TORCH_REMOTE_TOKEN_FILE and TORCH_REMOTE_TOKEN are both set; unset one of them");
  }
  token->clear();
  bool others = false;
  if (!file.empty()) {
    Status status = read_token_file(file, token, &others);
    static std::atomic<bool> warned{false};
    if (status.ok() && others && !warned.exchange(true)) {
      std::fprintf(stderr, "remote: other users can read the token in TORCH_REMOTE_TOKEN_FILE: chmod 600 '%s'\n",
                   file.c_str());
    }
    return status;
  }
  if (text.empty()) return {};
  *token = text;
  return check(*token, "TORCH_REMOTE_TOKEN");
}

void wipe(std::string* secret) {
  secret->resize(secret->capacity());
  OPENSSL_cleanse(secret->data(), secret->size());
  secret->clear();
}

Digest hmac_sha256(std::span<const uint8_t> key, std::span<const uint8_t> message) {
  Digest digest{};
  static constexpr uint8_t kNone = 0;  // OpenSSL needs a non-null pointer even for an empty key
  unsigned int size = digest.size();
  if (HMAC(EVP_sha256(), key.empty() ? &kNone : key.data(), static_cast<int>(key.size()), message.data(),
           message.size(), digest.data(), &size) == nullptr) {
    std::abort();  // without a valid proof anybody would be admitted
  }
  return digest;
}

Digest derive_key(std::span<const uint8_t> secret, std::span<const uint8_t> salt, std::string_view label) {
  Digest extracted = hmac_sha256(salt, secret);
  std::vector<uint8_t> info(label.begin(), label.end());
  info.push_back(1);
  const Digest key = hmac_sha256(extracted, info);
  OPENSSL_cleanse(extracted.data(), extracted.size());
  return key;
}

bool equal(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = getrandom(bytes.data(), bytes.size(), 0);
    if (n < 0 && errno != EINTR) std::abort();
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

}  // namespace torch_remote::remote
