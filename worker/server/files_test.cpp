#include "worker/server/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

namespace torch_remote::worker {
namespace {

namespace fs = std::filesystem;

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root = fs::path(::testing::TempDir()) / ("files_" + std::to_string(getpid()));
    fs::create_directories(root / "in/deep");
    write(root / "in/a", "0123456789");
    write(root / "in/deep/b", "bb");
    write(root / "out", "secret");
    const Status status = Files::in(root / "in", &files);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void TearDown() override { fs::remove_all(root); }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

  // Returns "" if the file may be read.
  std::string why(const std::string& path) {
    OpenFile file;
    return files->open(path, &file).message();
  }
  FileVersion version(const std::string& path) {
    OpenFile file;
    EXPECT_TRUE(files->open(path, &file).ok());
    return file.version();
  }
  bool outside(const std::string& path) { return why(path).find("outside of the folder") != std::string::npos; }

  fs::path root;
  std::shared_ptr<const Files> files;
};

TEST_F(FilesTest, WhatLiesInTheFolderIsRead) {
  for (const std::string& path : {std::string("a"), (root / "in/a").string(), std::string("deep/../a")}) {
    EXPECT_EQ(why(path), "") << path;
  }
  EXPECT_EQ(why("deep/b"), "");
  OpenFile file;
  ASSERT_TRUE(files->open("a", version("a"), 3, 4, &file).ok());
  std::vector<std::byte> bytes(4);
  ASSERT_TRUE(file.read(3, bytes).ok());
  EXPECT_EQ(std::memcmp(bytes.data(), "3456", 4), 0);
}

TEST_F(FilesTest, WhatLiesOutsideIsNot) {
  for (const char* path : {"../out", "deep/../../out", "/etc/passwd", "..", "/", "../in/../out", "../inside",
                           "../not_there", "/not/there", "."}) {
    EXPECT_TRUE(outside(path) || why(path).find("no regular file") != std::string::npos) << path << ": " << why(path);
    EXPECT_EQ(why(path).find("No such"), std::string::npos) << path;  // A client cannot probe for files outside.
  }
  fs::create_directories(root / "in2");
  write(root / "in2/c", "c");
  EXPECT_TRUE(outside((root / "in2/c").string()));  // "in" is a prefix of "in2".
  EXPECT_NE(why(""), "");
  EXPECT_NE(why(std::string("a\0b", 3)), "");
  EXPECT_NE(why(std::string(1 << 16, 'a')), "");
}

TEST_F(FilesTest, LinksCountByWhereTheyLead) {
  fs::create_symlink("a", root / "in/to_a");
  fs::create_symlink(root / "in/deep", root / "in/to_deep");
  fs::create_symlink("../out", root / "in/to_out");
  fs::create_symlink(root, root / "in/to_root");
  fs::create_symlink("/proc/self/root", root / "in/to_all");
  fs::create_symlink("../not_there", root / "in/to_nothing");
  fs::create_symlink("round", root / "in/round");
  EXPECT_EQ(why("to_a"), "");
  EXPECT_EQ(why("to_deep/b"), "");
  EXPECT_TRUE(outside("to_out"));
  EXPECT_TRUE(outside("to_root/out"));
  EXPECT_EQ(why("to_root/in/a"), "");  // The target is in the folder.
  EXPECT_TRUE(outside("to_all/etc/passwd"));
  // The answer is the same whether a path outside exists.
  const auto reason = [this](const std::string& path) { return why(path).substr(why(path).find("':")); };
  for (const char* path :
       {"to_nothing", "to_nothing/x", "to_root/not_there", "to_out/x", "to_all/not/there", "round"}) {
    EXPECT_EQ(reason(path), reason("to_out")) << path;
  }
  fs::create_symlink(root / "in", root / "named");  // The folder's own name may be a link.
  std::shared_ptr<const Files> linked;
  ASSERT_TRUE(Files::in(root / "named", &linked).ok());
  OpenFile file;
  EXPECT_TRUE(linked->open("a", &file).ok());
}

TEST_F(FilesTest, OnlyRegularFilesAreRead) {
  ASSERT_EQ(mkfifo((root / "in/pipe").c_str(), 0600), 0);  // Opening it would wait for a writer.
  EXPECT_NE(why("pipe").find("no regular file"), std::string::npos);
  EXPECT_NE(why("deep").find("no regular file"), std::string::npos);
  EXPECT_NE(why("no_such").find("does not exist"), std::string::npos);
}

TEST_F(FilesTest, AnotherVersionIsNotRead) {
  const FileVersion before = version("a");
  OpenFile file;
  write(root / "in/a", "0123456789+");
  EXPECT_NE(files->open("a", before, 0, 1, &file).message().find("was changed meanwhile"), std::string::npos);
  const FileVersion now = version("a");
  EXPECT_EQ(now.size, 11u);
  write(root / "in/other", "0123456789+");
  fs::rename(root / "in/other", root / "in/a");
  EXPECT_NE(files->open("a", now, 0, 1, &file).message().find("was changed meanwhile"), std::string::npos);
}

TEST_F(FilesTest, NothingBeyondItsEndIsRead) {
  const FileVersion its = version("a");
  OpenFile file;
  EXPECT_TRUE(files->open("a", its, 10, 0, &file).ok());
  EXPECT_TRUE(files->open("a", its, 0, 10, &file).ok());
  for (const auto& [offset, size] :
       std::vector<std::pair<uint64_t, uint64_t>>{{0, 11},
                                                  {10, 1},
                                                  {11, 0},
                                                  {1, 10},
                                                  {UINT64_MAX, 2},
                                                  {2, UINT64_MAX},
                                                  {UINT64_MAX, UINT64_MAX},
                                                  {uint64_t{1} << 63, uint64_t{1} << 63}}) {
    EXPECT_FALSE(files->open("a", its, offset, size, &file).ok()) << offset << " " << size;
  }
}

TEST_F(FilesTest, AFileThatGetsShorterIsAnError) {
  OpenFile file;
  ASSERT_TRUE(files->open("a", version("a"), 0, 10, &file).ok());
  fs::resize_file(root / "in/a", 4);
  std::vector<std::byte> bytes(10);
  EXPECT_NE(file.read(0, bytes).message().find("became shorter"), std::string::npos);
}

TEST_F(FilesTest, AFolderMustBeThere) {
  std::shared_ptr<const Files> none;
  EXPECT_NE(Files::in(root / "no_such", &none).message().find("is no folder: No such file"), std::string::npos);
  EXPECT_NE(Files::in(root / "out", &none).message().find("is no folder: Not a directory"), std::string::npos);
  ASSERT_TRUE(Files::in("/", &none).ok());
  OpenFile file;
  EXPECT_TRUE(none->open((root / "out").string(), &file).ok());
  EXPECT_NE(none->open((root / "no_such").string(), &file).message().find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace torch_remote::worker
