#pragma once

#include <span>
#include <string>

#include "ir/status.h"
#include "remote/wire/wire_generated.h"

// Helpers to read control messages from the other end.
namespace torch_remote::wire {

// Returns the message of type T in a frame's control bytes, which the result points into. Returns null if they do not
// verify, that is, if they are truncated or an offset leads outside of them.
template <class T>
const T* verify(std::span<const uint8_t> control) {
  flatbuffers::Verifier verifier(control.data(), control.size());
  return verifier.VerifyBuffer<T>(nullptr) ? flatbuffers::GetRoot<T>(control.data()) : nullptr;
}

inline std::span<const uint8_t> bytes(const flatbuffers::Vector<uint8_t>* vector) {
  return vector ? std::span<const uint8_t>(vector->data(), vector->size()) : std::span<const uint8_t>();
}

// Never returns ok: an error without a known code becomes kInternal.
inline Status to_status(const Error& error) {
  const auto code = error.code() > 0 && error.code() <= static_cast<uint8_t>(ErrorCode::kInternal)
                        ? static_cast<ErrorCode>(error.code())
                        : ErrorCode::kInternal;
  return {code, error.message() ? error.message()->str() : "remote: the worker gave no reason",
          error.exception_type() ? error.exception_type()->str() : std::string()};
}

}  // namespace torch_remote::wire
