#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ir/status.h"

// Shared secrets: what they are read from, and proofs of knowing one.
namespace torch_remote::remote {

inline constexpr size_t kLeastToken = 16;  // bytes
inline constexpr size_t kMostToken = 4096;

// The first line of a file. *readable_by_others: the file's mode lets other users read it.
Status read_token_file(const std::string& path, std::string* token, bool* readable_by_others);
// TORCH_REMOTE_TOKEN_FILE or TORCH_REMOTE_TOKEN; empty if neither is set. Both: an error. Warns once, on the standard
// error stream, of a file that other users can read.
Status read_token_from_environment(std::string* token);
// Leaves no copy of it in its memory.
void wipe(std::string* secret);

using Digest = std::array<uint8_t, 32>;
// HMAC-SHA256 (RFC 2104, FIPS 180-4).
Digest hmac_sha256(std::span<const uint8_t> key, std::span<const uint8_t> message);
// HKDF-SHA256 (RFC 5869), one block.
Digest derive_key(std::span<const uint8_t> secret, std::span<const uint8_t> salt, std::string_view label);
// In a time that does not depend on the bytes.
bool equal(std::span<const uint8_t> a, std::span<const uint8_t> b);
// From the kernel.
void fill_random(std::span<uint8_t> bytes);

}  // namespace torch_remote::remote
