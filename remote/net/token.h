#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ir/status.h"

// Shared secrets: where they are read from, and proofs that an end knows one.
namespace torch_remote::remote {

inline constexpr size_t kMinTokenBytes = 16;  // bytes
inline constexpr size_t kMaxTokenBytes = 4096;

// Reads the first line of a file. *readable_by_others says whether the file's mode lets other users read it.
Status read_token_file(const std::string& path, std::string* token, bool* readable_by_others);
// Reads TORCH_REMOTE_TOKEN_FILE or TORCH_REMOTE_TOKEN. The token is empty if neither is set; it is an error to set
// both. Prints one warning to stderr if other users can read the file.
Status read_token_from_environment(std::string* token);
// Overwrites the string's memory and clears it.
void wipe(std::string* secret);

using Digest = std::array<uint8_t, 32>;
// HMAC-SHA256 (RFC 2104, FIPS 180-4).
Digest hmac_sha256(std::span<const uint8_t> key, std::span<const uint8_t> message);
// HKDF-SHA256 (RFC 5869) with one block of output.
Digest derive_key(std::span<const uint8_t> secret, std::span<const uint8_t> salt, std::string_view label);
// Compares in constant time.
bool equal(std::span<const uint8_t> a, std::span<const uint8_t> b);
// Fills `bytes` with random bytes from the kernel.
void fill_random(std::span<uint8_t> bytes);

}  // namespace torch_remote::remote
