// What all native tests share: a case is a function with a name, which runs in a process of its own (main.cc).
// Thread: main's. Owns: the registry. Blocks: as the cases do. Throws: Failure, which ends the case as failed.
#pragma once

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace native_test {

// By name: folder, file and the case's own, as in "engine.stall.zero_is_never".
using Cases = std::map<std::string, std::function<void()>>;
Cases& cases();

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void failed(const char* file, int line, const std::string& what);

struct Registration {
  Registration(const char* file, const std::string& name, std::function<void()> run);
};

}  // namespace native_test

#define TEST(name)                                                                             \
  static void test_##name();                                                                   \
  static const ::native_test::Registration registration_##name(__FILE__, #name, &test_##name); \
  static void test_##name()

#define EXPECT(condition)                                                                \
  do {                                                                                   \
    if (!(condition)) ::native_test::failed(__FILE__, __LINE__, "expected " #condition); \
  } while (false)

// For a condition that does not show why it does not hold.
#define EXPECT_OR(condition, why)                                                \
  do {                                                                           \
    if (!(condition)) {                                                          \
      ::native_test::failed(__FILE__, __LINE__,                                  \
                            "expected " #condition ", but " + std::string(why)); \
    }                                                                            \
  } while (false)

#define EXPECT_HAS(text, part)                                                              \
  do {                                                                                      \
    const std::string has_text = (text);                                                    \
    const std::string has_part = (part);                                                    \
    if (has_text.find(has_part) == std::string::npos) {                                     \
      ::native_test::failed(__FILE__, __LINE__, "no \"" + has_part + "\" in: " + has_text); \
    }                                                                                       \
  } while (false)
