#include "worker/targets/cuda/device/library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "worker/targets/cuda/dnn/cudnn.h"
#include "worker/targets/cuda/gemm/cublaslt.h"

namespace torch_remote::worker::cuda {
namespace {

namespace fs = std::filesystem;

constexpr Library kNone = {"none of them", "libnone_of_them.so", "nvidia-none", "none"};

// Makes a folder of NVIDIA packages with a library that can be opened.
class LibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root = fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    for (const char* variable : {"CUDA_PATH", "CUDA_HOME"}) unsetenv(variable);
  }
  void put(const std::string& path) {
    fs::create_directories((root / path).parent_path());
    fs::copy_file("tests/emulated_gpu/libfake_driver.so", root / path, fs::copy_options::overwrite_existing);
  }
  fs::path root;
};

TEST_F(LibraryTest, ThatIsMissingIsNamedWithItsPackage) {
  OpenLibrary library;
  Status status = open_library(kNone, {"", root, 13000}, &library);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "cuda: there is no libnone_of_them.so.13 (none of them); install it: pip install nvidia-none, or set the "
            "folder that contains it: TORCH_REMOTE_CUDA_LIB=/usr/local/cuda/lib64");
  status = open_library(kNone, {"", "", 12040}, &library);
  EXPECT_NE(status.message().find("libnone_of_them.so.12"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("pip install nvidia-none-cu12"), std::string::npos) << status.message();
}

TEST_F(LibraryTest, IsThatOfThePackages) {
  put("nvidia/cu13/lib/libnone_of_them.so.13");
  put("nvidia/none/lib/libnone_of_them.so.12");
  OpenLibrary library;
  ASSERT_TRUE(open_library(kNone, {"", root, 13000}, &library).ok());
  EXPECT_EQ(library.path, root / "nvidia/cu13/lib/libnone_of_them.so.13");
  EXPECT_EQ(library.major, 13);
  ASSERT_TRUE(open_library(kNone, {"", root, 12080}, &library).ok());
  EXPECT_EQ(library.path, root / "nvidia/none/lib/libnone_of_them.so.12");
}

TEST_F(LibraryTest, IsAnOlderOneWhereThereIsNoOther) {
  put("nvidia/none/lib/libnone_of_them.so.12");
  OpenLibrary library;
  ASSERT_TRUE(open_library(kNone, {"", root, 13000}, &library).ok());
  EXPECT_EQ(library.major, 12);
}

TEST_F(LibraryTest, AFolderThatIsGivenIsTheOnlyOne) {
  put("nvidia/cu13/lib/libnone_of_them.so.13");
  put("given/libnone_of_them.so.13");
  OpenLibrary library;
  ASSERT_TRUE(open_library(kNone, {root / "given", root, 13000}, &library).ok());
  EXPECT_EQ(library.path, root / "given/libnone_of_them.so.13");
  const Status status = open_library(kNone, {root / "empty", root, 13000}, &library);
  EXPECT_NE(status.message().find("(none of them) in " + (root / "empty").string()), std::string::npos)
      << status.message();
}

TEST_F(LibraryTest, CudasFoldersComeLast) {
  ASSERT_EQ(setenv("CUDA_HOME", "/opt/cuda", 1), 0);
  const std::vector<std::string> paths = paths_of(kNone, {"", "/packages", 13000}, 13);
  EXPECT_EQ(paths, (std::vector<std::string>{
                       "/packages/nvidia/cu13/lib/libnone_of_them.so.13", "libnone_of_them.so.13",
                       "/opt/cuda/lib64/libnone_of_them.so.13", "/opt/cuda/lib/libnone_of_them.so.13",
                       "/usr/local/cuda/lib64/libnone_of_them.so.13", "/usr/local/cuda/lib/libnone_of_them.so.13"}));
}

TEST_F(LibraryTest, OneThatIsNoneIsRefused) {
  put("libcublasLt.so.13");
  lt::Table table;
  const Status status = lt::open({root, "", 13000}, &table);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("has no cublasLt"), std::string::npos) << status.message();
}

// cuDNN has its own version, and one package per CUDA version.
TEST_F(LibraryTest, WithItsOwnVersionHasOneNameAndTwoPackages) {
  EXPECT_EQ(paths_of(dnn::kLibrary, {"", "/packages", 13000}, 13)[0], "/packages/nvidia/cudnn/lib/libcudnn.so.9");
  EXPECT_EQ(paths_of(dnn::kLibrary, {"", "/packages", 12080}, 12)[0], "/packages/nvidia/cudnn/lib/libcudnn.so.9");
  dnn::Table table;
  for (const auto& [driver, package] : {std::pair{13000, "nvidia-cudnn-cu13,"}, {12080, "nvidia-cudnn-cu12,"}}) {
    const Status status = dnn::open({root / "empty", "", driver}, &table);
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_NE(status.message().find("there is no libcudnn.so.9 (cuDNN)"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(package), std::string::npos) << status.message();
  }
  put("libcudnn.so.9");
  EXPECT_NE(dnn::open({root, "", 13000}, &table).message().find("has no cudnn"), std::string::npos);
}

}  // namespace
}  // namespace torch_remote::worker::cuda
