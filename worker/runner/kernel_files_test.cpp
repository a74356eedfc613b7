#include "worker/runner/kernel_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace torch_remote::worker::kernels {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLimit = 64 << 10;

mode_t mode_of(const fs::path& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

class KernelFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "kernel_files_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
  const std::vector<uint8_t> bytes_ = std::vector<uint8_t>(20 << 10, 7);
  std::vector<uint8_t> found_;
};

TEST_F(KernelFilesTest, PruningLeavesFilesOfOthersAlone) {
  // A sparse file of 300 MB that is older than all kernels, and names that almost match ours.
  const std::string digits(32, 'a');
  const std::vector<std::string> foreign = {
      "model.pt", digits, digits + ".kernels", digits + ".kernel.", digits + ".kernel.12x", "x" + digits + ".kernel"};
  for (const std::string& name : foreign) {
    std::ofstream(folder_ / name) << "mine";
    fs::resize_file(folder_ / name, 300'000'000);
    fs::last_write_time(folder_ / name, fs::file_time_type::clock::now() - std::chrono::hours(24));
  }
  fs::create_directory(folder_ / (digits + ".kernel"));
  fs::create_symlink(folder_ / "model.pt", folder_ / (std::string(32, 'b') + ".kernel"));
  const KernelFiles files(folder_, kLimit, "about");
  for (int i = 0; i < 3; ++i) files.write("kernel " + std::to_string(i), bytes_);
  files.prune();  // 60 KB are within the limit: foreign files do not count.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(files.read("kernel " + std::to_string(i), &found_)) << i;
  for (int i = 3; i < 6; ++i) files.write("kernel " + std::to_string(i), bytes_);
  files.prune();
  int left = 0;
  for (int i = 0; i < 6; ++i) left += files.read("kernel " + std::to_string(i), &found_) ? 1 : 0;
  EXPECT_EQ(left, 1);  // Pruning leaves half of the limit.
  for (const std::string& name : foreign) EXPECT_TRUE(fs::exists(folder_ / name)) << name;
  EXPECT_TRUE(fs::exists(folder_ / (digits + ".kernel")));
  EXPECT_TRUE(fs::is_symlink(folder_ / (std::string(32, 'b') + ".kernel")));
}

TEST_F(KernelFilesTest, WhatAProcessLeftWhileItWroteIsPruned) {
  const KernelFiles files(folder_, kLimit, "about");
  const fs::path half = folder_ / (std::string(32, '0') + ".kernel.123");
  std::ofstream(half) << std::string(2 * kLimit, 'x');
  files.prune();
  EXPECT_FALSE(fs::exists(half));
}

TEST_F(KernelFilesTest, AFolderThatIsThereKeepsItsMode) {
  for (const mode_t mode : {0755, 0750, 0700, 0711}) {
    ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
    const KernelFiles files(folder_, kLimit, "about");
    files.write("kernel", bytes_);
    EXPECT_TRUE(files.read("kernel", &found_));
    EXPECT_EQ(mode_of(folder_), mode);
  }
}

TEST_F(KernelFilesTest, WhereOthersCanWriteNothingIsKeptAndTheModeStays) {
  for (const mode_t mode : {0777, 0775, 01777}) {
    ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
    const KernelFiles files(folder_, kLimit, "about");
    files.write("kernel", bytes_);
    EXPECT_FALSE(files.read("kernel", &found_));
    EXPECT_TRUE(fs::is_empty(folder_));
    EXPECT_EQ(mode_of(folder_), mode);
  }
}

TEST_F(KernelFilesTest, AFolderThatIsMadeIsOnlyTheUsers) {
  const mode_t before = ::umask(0);
  for (const char* name : {"new/kernels", "other/kernels/"}) {
    const KernelFiles files((folder_ / name).string(), kLimit, "about");
    files.write("kernel", bytes_);
    EXPECT_TRUE(files.read("kernel", &found_)) << name;
    EXPECT_EQ(mode_of(folder_ / name), 0700u) << name;
  }
  ::umask(before);
}

}  // namespace
}  // namespace torch_remote::worker::kernels
