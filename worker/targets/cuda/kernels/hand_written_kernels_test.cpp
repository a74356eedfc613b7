#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "tests/emulated_gpu/image_rules.h"
#include "worker/targets/cuda/kernels/kernel_images.h"

namespace torch_remote::worker::cuda {
namespace {

struct Facts {
  bool is_kernel = false;  // Otherwise a function that kernels call.
  int registers = 0, stack = 0, spills = 0, shared = 0;
};

// Parses the assembler's report on each kernel.
std::map<std::string, Facts> read_facts(const std::string& log) {
  std::map<std::string, Facts> all;
  std::istringstream lines(log);
  std::string line, name;
  std::smatch found;
  const auto number = [&](const char* pattern) {
    return std::regex_search(line, found, std::regex(pattern)) ? std::atoi(found[1].str().c_str()) : 0;
  };
  while (std::getline(lines, line)) {
    if (std::regex_search(line, found, std::regex("entry function '(\\w+)'"))) {
      name = found[1];
      all[name].is_kernel = true;
    }
    if (std::regex_search(line, found, std::regex("Function properties for '?(\\w+)'?"))) name = found[1];
    if (name.empty()) continue;
    Facts& facts = all[name];
    facts.stack = std::max(facts.stack, number("(\\d+) bytes stack frame"));
    facts.spills = std::max({facts.spills, number("(\\d+) bytes spill stores"), number("(\\d+) bytes spill loads")});
    facts.registers = std::max(facts.registers, number("Used (\\d+) registers"));
    facts.shared = std::max(facts.shared, number("(\\d+) bytes smem"));
  }
  return all;
}

// Resident blocks of 256 threads per multiprocessor: limited by registers (65536, in units of 8) and shared memory (164
// KiB).
int blocks_at_once(const Facts& facts) {
  if (facts.registers == 0) return 0;
  const int by_registers = 65536 / (256 * ((facts.registers + 7) / 8 * 8));
  const int by_shared = facts.shared == 0 ? 8 : (164 << 10) / (facts.shared + 1024);
  return std::min({8, by_registers, by_shared});
}

TEST(WrittenKernels, AreAssembledWithoutSpills) {
  std::ifstream log(std::getenv("KERNELS_LOG"));
  std::string sm, line;
  std::map<std::string, std::string> logs;  // By compute capability.
  while (std::getline(log, line)) {
    if (line.starts_with("sm_")) {
      sm = line;
    } else {
      logs[sm] += line + "\n";
    }
  }
  ASSERT_EQ(logs.size(), 5u);
  std::printf("%-26s %8s %10s %6s %7s %7s %14s\n", "kernel", "", "registers", "stack", "spills", "shared",
              "blocks of 256");
  for (const auto& [processor, text] : logs) {
    const auto all = read_facts(text);
    EXPECT_GT(all.size(), 20u) << "the assembler's log is not understood: " << text;
    for (const auto& [name, facts] : all) {
      std::printf("%-26s %-8s %10d %6d %7d %7d %14d\n", name.c_str(), processor.c_str(), facts.registers, facts.stack,
                  facts.spills, facts.shared, blocks_at_once(facts));
      EXPECT_EQ(facts.registers > 0, facts.is_kernel) << name;
      EXPECT_EQ(facts.spills, 0) << name << " " << processor;
      EXPECT_LE(facts.shared, 48 << 10) << name;
    }
  }
}

// The driver of CUDA 12.0 (525) is the oldest one that we support. Drivers know Blackwell since CUDA 12.8.
TEST(WrittenKernels, AreMachineCodeThatTheOldestDriverLoads) {
  for (size_t f = 0; f < kKernelFiles; ++f) {
    for (const uint32_t sm : {75u, 80u, 86u, 89u, 90u, 100u, 103u, 120u, 121u}) {
      const KernelArchive code = find_images(hand_written_kernels(), static_cast<KernelFile>(f), sm).code;
      ASSERT_GT(code.size(), 64u) << f << " sm_" << sm;
      EXPECT_EQ(code[7], sm < 100 ? 0x33 : 0x41) << "the OS ABI";
      EXPECT_EQ(code[8], sm < 100 ? 7 : 8) << "the ABI's version";
      std::string log;
      for (const int driver : {sm < 100 ? 12000 : 12080, 12090, 13000}) {
        EXPECT_EQ(emulated::check_image(emulated::read_image(code.data()), driver, sm, &log), Result::kSuccess)
            << f << " sm_" << sm << " driver " << driver;
      }
    }
  }
}

// The PTX serves GPUs without machine code, and drivers that refuse the machine code.
TEST(WrittenKernels, ArePtxThatTheOldestDriverAssembles) {
  for (size_t f = 0; f < kKernelFiles; ++f) {
    const auto file = static_cast<KernelFile>(f);
    for (const uint32_t sm : {75u, 80u, 90u, 110u, 130u}) {
      const KernelArchive ptx = find_images(hand_written_kernels(), file, sm).ptx;
      ASSERT_FALSE(ptx.empty()) << f << " sm_" << sm;
      EXPECT_EQ(ptx.back(), 0);
      const emulated::ImageFacts facts = emulated::read_image(ptx.data());
      EXPECT_EQ(facts.ptx_version, 80) << f;
      EXPECT_EQ(facts.sm, std::min(sm, 80u)) << f;
      std::string log;
      EXPECT_EQ(emulated::check_image(facts, 12000, sm, &log), Result::kSuccess) << log;
    }
    const KernelImages none = find_images(hand_written_kernels(), file, 70);
    EXPECT_TRUE(none.code.empty() && none.ptx.empty());
    EXPECT_TRUE(find_images(hand_written_kernels(), file, 110).code.empty());
  }
}

}  // namespace
}  // namespace torch_remote::worker::cuda
