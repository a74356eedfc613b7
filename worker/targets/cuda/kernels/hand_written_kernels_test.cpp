#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

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
  ASSERT_EQ(logs.size(), 3u);
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

TEST(WrittenKernels, HaveImagesForAllGpus) {
  const KernelArchive all = hand_written_kernels();
  for (size_t f = 0; f < kKernelFiles; ++f) {
    const auto file = static_cast<KernelFile>(f);
    const auto begins = [&](uint32_t sm) {
      const KernelArchive image = find_image(all, file, sm);
      return image.size() < 4 ? std::string() : std::string(image.begin() + 1, image.begin() + 4);
    };
    for (const uint32_t sm : {80u, 86u, 90u, 100u, 103u}) EXPECT_EQ(begins(sm), "ELF") << sm;
    EXPECT_TRUE(find_image(all, file, 75).empty());
    const KernelArchive later = find_image(all, file, 120);  // PTX, for the driver.
    ASSERT_FALSE(later.empty());
    EXPECT_NE(begins(120), "ELF");
    EXPECT_EQ(later.back(), 0);
  }
}

}  // namespace
}  // namespace torch_remote::worker::cuda
