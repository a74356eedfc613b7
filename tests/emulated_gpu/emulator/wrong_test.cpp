#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "tests/emulated_gpu/emulator/emulator.h"
#include "tests/emulated_gpu/emulator/testing/harness.h"

// Kernels that are wrong on purpose: checked mode reports what is wrong and where. The right version of each has no
// findings.
namespace torch_remote::codegen::emulator {
namespace {

using testing::Buffer;
using testing::must;

constexpr const char* kSource = "tests/emulated_gpu/emulator/testing/wrong.cu";
constexpr Dim3 kGrid = {2}, kBlock = {64};

struct Case {
  const char* name;
  std::vector<const char*> arguments;  // x, out: 256 floats each; new: 256 unwritten floats; n: 256; four; flags: zeros
  const char* thread;                  // that the finding names; "" if any thread is possible
  std::vector<const char*> findings;   // parts of the message
};
void PrintTo(const Case& one, std::ostream* stream) { *stream << one.name; }

const Case kCases[] = {
    {"race", {"out"}, "block (0,0,0), thread (32,0,0)", {"races with a read by thread (", " (1024 bytes, shared)"}},
    {"warp_race", {"out"}, "block (0,0,0), thread (1,0,0)", {"races with a read by thread (", " (1024 bytes, shared)"}},
    {"block_race", {"out"}, "block (1,0,0), thread (0,0,0)", {"races with a write by thread (0,0,0) of block ("}},
    {"shared_bounds",
     {"out", "four"},
     "block (0,0,0), thread (60,0,0)",
     {"is out of bounds: byte 2", " of '_ZZ13shared_boundsILb0EEvPfiE1a' (256 bytes, shared)"}},
    {"bounds", {"x", "out", "n"}, "block (0,0,0), thread (0,0,0)", {"is out of bounds: byte 1024 of 'x' (1024 bytes)"}},
    {"uninitialised", {"out"}, "block (0,0,0), thread (0,0,0)", {"reads what was never written: byte "}},
    {"shuffle",
     {"out"},
     "block (0,0,0)",
     {"deadlock\n", " with mask ffffffff\n", "threads 24 25 26 27 28 29 30 31 56 57 58 59 60 61 62 63 wait at "}},
    {"barrier", {"out"}, "block (0,0,0), thread (32,0,0)", {"barriers that differ: this thread is at "}},
    {"alignment",
     {"x", "out"},
     "block (0,0,0), thread (0,0,0)",
     {"is misaligned (16 bytes are asked for): byte 4 of 'x' (1024 bytes)"}},
    {"endless", {"flags"}, "block (0,0,0), thread (0,0,0)", {"runs too long (an endless loop, or it waits for what"}},
    {"local_bounds",
     {"out", "four"},
     "block (0,0,0), thread (4,0,0)",
     {"is out of bounds: byte ", " of a local variable (32 bytes)"}},
    {"no_fence",
     {"new", "zero", "out"},
     "block (1,0,0), thread (0,0,0)",
     {"races with a write by thread (", " of block ("}},
    {"gone_lane", {"out"}, "block (0,0,0), thread (32,0,0)", {"reads lane 16, which takes no part"}},
    {"wrong_mask", {"out"}, "block (0,0,0), thread (16,0,0)", {"the mask ff000000 lacks the calling lane"}},
    {"unwritten",
     {"new"},
     "block (0,0,0), thread (5,0,0)",
     {"reads what was never written: byte ", " of 'new' (1024 bytes)"}},
    {"stops", {"out"}, "block (0,0,0), thread (3,0,0)", {"stops itself"}},
    {"shuffle_race", {"x", "out"}, "block (0,0,0), thread (0,0,0)", {"races with a read by ", " of 'x' (1024 bytes)"}},
};

// The line of the comment "found: name".
int line_of(const std::string& name) {
  const std::string source = testing::read_file(kSource);
  const size_t at = source.find("// found: " + name + "\n");
  if (at == std::string::npos) return 0;
  return 1 + static_cast<int>(std::count(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

class Wrong : public ::testing::TestWithParam<Case> {
 protected:
  static Device& device() {
    static Device device;
    return device;
  }
  static Module& module() {
    static const auto module = testing::load_file(device(), "tests/emulated_gpu/emulator/testing/wrong.bc");
    return *module;
  }

  Status launch(const std::string& kernel, const LaunchOptions& options) {
    const std::vector<float> ones(256, 1);
    Buffer<float> x(device(), ones, "x"), out(device(), ones, "out"), fresh(device(), 256, "new");
    Buffer<int> flags(device(), std::vector<int>(8), "flags"), zero(device(), std::vector<int>{0}, "zero");
    int n = 256, four = 4;
    std::vector<void*> arguments;
    for (const std::string argument : GetParam().arguments) {
      arguments.push_back(argument == "x"       ? x.argument()
                          : argument == "out"   ? out.argument()
                          : argument == "new"   ? fresh.argument()
                          : argument == "flags" ? flags.argument()
                          : argument == "zero"  ? zero.argument()
                          : argument == "n"     ? &n
                                                : &four);
    }
    return module().launch(kernel, kGrid, kBlock, 0, arguments.data(), options);
  }
};

TEST_P(Wrong, IsNamedByItsFinding) {
  const Case& one = GetParam();
  for (const uint64_t seed : {0, 1, 2, 3}) {
    const Status status =
        launch("wrong_" + std::string(one.name), {.seed = seed, .checked = true, .max_loop_iterations = 100000});
    ASSERT_EQ(status.code(), ErrorCode::kOpFailed) << "nothing was found, seed " << seed;
    const std::string& message = status.message();
    EXPECT_NE(message.find("kernel 'wrong_" + std::string(one.name) + "', block ("), std::string::npos) << message;
    for (const char* part : one.findings) EXPECT_NE(message.find(part), std::string::npos) << message;
    const bool ordered = seed == 0;  // in another order, the finding may name another thread
    EXPECT_TRUE(!ordered || message.find(one.thread) != std::string::npos) << message;
    const std::string line = "wrong.cu:" + std::to_string(line_of(one.name));
    EXPECT_NE(message.find(line), std::string::npos) << line << " is not in: " << message;
  }
}

TEST_P(Wrong, IsFoundInTheSameWayWithTheSameSeed) {
  const std::string kernel = "wrong_" + std::string(GetParam().name);
  const LaunchOptions options = {.seed = 5, .checked = true, .max_loop_iterations = 100000};
  EXPECT_EQ(launch(kernel, options).message(), launch(kernel, options).message());
}

TEST_P(Wrong, RightVersionHasNoFinding) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    for (const bool checked : {false, true}) {
      const Status status = launch("right_" + std::string(GetParam().name), {.seed = seed, .checked = checked});
      EXPECT_TRUE(status) << status.message();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Wrong, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Findings without checked mode: errors after which the kernel cannot continue.
class Plain : public Wrong {};

TEST_P(Plain, IsFoundWithoutChecks) {
  const Status status = launch("wrong_" + std::string(GetParam().name), {.seconds = 0.3});
  ASSERT_EQ(status.code(), ErrorCode::kOpFailed);
  for (const char* part : GetParam().findings) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_NE(status.message().find(GetParam().thread), std::string::npos) << status.message();
}

const Case kPlainCases[] = {
    {"bounds", {"x", "out", "n"}, "block (0,0,0), thread (0,0,0)", {"byte 1024 of 'x' (1024 bytes)"}},
    {"shuffle", {"out"}, "", {"deadlock\n"}},
    {"barrier", {"out"}, "", {"barriers that differ"}},
    {"endless", {"flags"}, "thread (0,0,0)", {"runs too long"}},
    {"gone_lane", {"out"}, "", {"reads lane 16, which takes no part"}},
    {"wrong_mask", {"out"}, "thread (16,0,0)", {"the mask ff000000 lacks the calling lane"}},
    {"stops", {"out"}, "thread (3,0,0)", {"stops itself"}},
};
INSTANTIATE_TEST_SUITE_P(Cases, Plain, ::testing::ValuesIn(kPlainCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace torch_remote::codegen::emulator
