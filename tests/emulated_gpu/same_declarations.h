#pragma once

#include <type_traits>

// Our declarations beside those of a real header.
namespace torch_remote::worker::cuda {

template <typename Address, typename A, typename B>
constexpr bool same_place() {
  return sizeof(A) == sizeof(B) && (std::is_pointer_v<A> == std::is_pointer_v<B> || std::is_same_v<A, Address>);
}

// Functions are the same to a caller: as many parameters, each as large, pointers where the other has pointers, or
// numbers of type `Address` (void: there are none).
template <typename Address, typename R, typename... A, typename S, typename... B>
constexpr bool same(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B) || std::is_void_v<R> != std::is_void_v<S>) {
    return false;
  } else if constexpr (std::is_void_v<R>) {
    return (same_place<Address, A, B>() && ...);
  } else {
    return sizeof(R) == sizeof(S) && (same_place<Address, A, B>() && ...);
  }
}

}  // namespace torch_remote::worker::cuda

#define TORCH_REMOTE_SAME_FUNCTION(address, ours, theirs) \
  static_assert(same<address>(ours{}, static_cast<decltype(&::theirs)>(nullptr)), #theirs);
#define TORCH_REMOTE_SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
