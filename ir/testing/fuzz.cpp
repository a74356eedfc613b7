#include "ir/testing/fuzz.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

namespace torch_remote::ir::testing {
namespace {

std::optional<uint64_t> number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const char* const end = text + std::strlen(text);
  uint64_t number = 0;
  const auto read = std::from_chars(text, end, number);
  if (read.ec == std::errc() && read.ptr == end) return number;
  std::fprintf(stderr, "%s='%s' is not a number from 0 to 2^64 - 1\n", variable, text);
  std::exit(2);
}

}  // namespace

FuzzOptions fuzz_options() {
  FuzzOptions options;
  // The tests count on from the first seed. The shift keeps two runs apart.
  const std::optional<uint64_t> seed = number_of("TORCH_REMOTE_TEST_SEED");
  options.seed = seed.has_value() ? *seed : uint64_t{std::random_device()()} << 20;
  if (const std::optional<uint64_t> seconds = number_of("FUZZ_SECONDS")) options.time = std::chrono::seconds(*seconds);
  std::printf("again with TORCH_REMOTE_TEST_SEED=%llu\n", static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);
  return options;
}

}  // namespace torch_remote::ir::testing
