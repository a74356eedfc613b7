#pragma once

#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

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

// Copies `vector`, which may be null, into `*copy`, a container of T. Do not read elements of 8 bytes in another way,
// because they may be misaligned. verify() checks only the alignment of the vector's size.
template <class T, class Container>
void assign(const flatbuffers::Vector<T>* vector, Container* copy) {
  static_assert(std::is_same_v<typename Container::value_type, T>);
  copy->resize(vector ? vector->size() : 0);
  if (!copy->empty()) std::memcpy(copy->data(), vector->Data(), copy->size() * sizeof(T));
}

template <class T>
std::vector<T> elements(const flatbuffers::Vector<T>* vector) {
  std::vector<T> copy;
  assign(vector, &copy);
  return copy;
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
