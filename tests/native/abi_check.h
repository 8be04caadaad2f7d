// Is a declaration of ours the same, to the machine, as the one in a vendor's header? Compile time only.
// The vendor's header is included first, so that its opaque structs are the ones that our pointers point to.
#pragma once

#include <cstdint>
#include <type_traits>

namespace abi_check {

// An enumeration crosses as the integer that holds it.
template <typename T, bool = std::is_enum_v<T>>
struct Crossing {
  using Type = T;
};
template <typename T>
struct Crossing<T, true> {
  using Type = std::underlying_type_t<T>;
};

template <typename Ours, typename Theirs>
constexpr bool same();

template <typename Ours, typename Theirs>
struct SameFunction : std::false_type {};
template <typename OursResult, typename... Ours, typename TheirsResult, typename... Theirs>
struct SameFunction<OursResult(Ours...), TheirsResult(Theirs...)> {
  static constexpr bool compare() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return same<OursResult, TheirsResult>() && (same<Ours, Theirs>() && ...);
    }
  }
  static constexpr bool value = compare();
};

template <typename Ours, typename Theirs>
constexpr bool same() {
  using O = typename Crossing<Ours>::Type;
  using T = typename Crossing<Theirs>::Type;
  if constexpr (std::is_same_v<O, T>) {
    return true;
  } else if constexpr (std::is_function_v<O> && std::is_function_v<T>) {
    return SameFunction<O, T>::value;
  } else if constexpr (std::is_pointer_v<O> && std::is_pointer_v<T>) {
    using PointedOurs = std::remove_pointer_t<O>;
    using PointedTheirs = std::remove_pointer_t<T>;
    return std::is_const_v<PointedOurs> == std::is_const_v<PointedTheirs> &&
           same<std::remove_const_t<PointedOurs>, std::remove_const_t<PointedTheirs>>();
  } else if constexpr (std::is_integral_v<O> && std::is_integral_v<T>) {
    return sizeof(O) == sizeof(T);  // an enumeration's integer may be without a sign
  } else if constexpr (std::is_class_v<O> && std::is_class_v<T>) {
    return sizeof(O) == sizeof(T) && alignof(O) == alignof(T) && std::is_trivially_copyable_v<O> &&
           std::is_trivially_copyable_v<T>;
  } else {
    return false;
  }
}

constexpr bool equal(const char* left, const char* right) {
  while (*left != '\0' && *left == *right) {
    ++left;
    ++right;
  }
  return *left == *right;
}

}  // namespace abi_check

#define ABI_CHECK_TEXT(token) #token
#define ABI_CHECK_TEXT_OF(token) ABI_CHECK_TEXT(token)  // of what the token expands to
