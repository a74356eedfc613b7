#pragma once

#include <type_traits>

// Compares our declarations with those of a real header.
namespace torch_remote::worker::cuda {

template <typename Address, typename A, typename B>
constexpr bool same_parameter() {
  return sizeof(A) == sizeof(B) && (std::is_pointer_v<A> == std::is_pointer_v<B> || std::is_same_v<A, Address>);
}

// Whether a caller can use the first declaration for a function of the second one: parameters match in number, size and
// kind (pointer or not). For a pointer of the second declaration, the first one may also have the integer type
// `Address` (void: no such type).
template <typename Address, typename R, typename... A, typename S, typename... B>
constexpr bool same_signature(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B) || std::is_void_v<R> != std::is_void_v<S>) {
    return false;
  } else if constexpr (std::is_void_v<R>) {
    return (same_parameter<Address, A, B>() && ...);
  } else {
    return sizeof(R) == sizeof(S) && (same_parameter<Address, A, B>() && ...);
  }
}

}  // namespace torch_remote::worker::cuda

#define TORCH_REMOTE_SAME_FUNCTION(address, ours, theirs) \
  static_assert(same_signature<address>(ours{}, static_cast<decltype(&::theirs)>(nullptr)), #theirs);
#define TORCH_REMOTE_SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
