#include "worker/targets/cuda/device/library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "worker/targets/cuda/device/library_search.h"
#include "worker/targets/cuda/dnn/cudnn.h"
#include "worker/targets/cuda/gemm/cublaslt.h"

namespace torch_remote::worker::cuda {
namespace {

namespace fs = std::filesystem;

constexpr Library kNone = {"none of them", "libnone_of_them.so", "nvidia-none", "none"};

// Makes a tree of folders with libraries that can be opened.
class LibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root = fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root);
    fs::create_directories(root);
    for (const char* variable : {"CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX", "VIRTUAL_ENV", "PYTHONPATH",
                                 "TORCH_REMOTE_CUDA_LIB", "TORCH_REMOTE_TORCH_LIB"}) {
      unsetenv(variable);
    }
    set("PATH", root / "bin");
  }
  static void set(const char* variable, const std::string& value) { ASSERT_EQ(setenv(variable, value.c_str(), 1), 0); }
  void put(const std::string& path) {
    fs::create_directories((root / path).parent_path());
    fs::copy_file("tests/emulated_gpu/libfake_driver.so", root / path, fs::copy_options::overwrite_existing);
  }
  void put_program(const std::string& path, const std::string& script) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << "#!/bin/sh\n" << script;
    fs::permissions(root / path, fs::perms::owner_all);
  }
  // The path of kNone that a worker opens whose package is in `package`; an error is in *message.
  std::string find(const std::string& package, int driver = 13000, std::string* message = nullptr) {
    LibrarySearchPath search_path = find_libraries(root / package);
    search_path.driver = driver;
    OpenLibrary library;
    const Status status = open_library(kNone, search_path, &library);
    if (message != nullptr) *message = status.message();
    if (!status.ok()) return {};
    dlclose(library.handle);  // Otherwise the next call finds a library that is open.
    return fs::path(library.path).lexically_relative(root);
  }
  fs::path root;
};

constexpr const char* k12 = "nvidia/none/lib/libnone_of_them.so.12";
constexpr const char* k13 = "nvidia/cu13/lib/libnone_of_them.so.13";

TEST_F(LibraryTest, ThatIsMissingIsNamedWithItsPackage) {
  OpenLibrary library;
  Status status = open_library(kNone, {.packages = {root}, .toolkits = {"/opt/cuda"}, .driver = 13000}, &library);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "cuda: there is no libnone_of_them.so.13 (none of them) in NVIDIA's packages in " + root.string() +
                ", the folders of the dynamic linker, /opt/cuda; install it: pip install nvidia-none, or set the "
                "folders that contain it: TORCH_REMOTE_CUDA_LIB=/usr/local/cuda/lib64");
  status = open_library(kNone, {.driver = 12040}, &library);
  EXPECT_NE(status.message().find("libnone_of_them.so.12"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("pip install nvidia-none-cu12"), std::string::npos) << status.message();
}

TEST_F(LibraryTest, MajorVersionIsThatOfTheDriverOrOlder) {
  put("site/" + std::string(k13));
  put("site/" + std::string(k12));
  EXPECT_EQ(find("site/torch_remote"), "site/" + std::string(k13));
  EXPECT_EQ(find("site/torch_remote", 12080), "site/" + std::string(k12));
  fs::remove(root / "site" / k13);
  EXPECT_EQ(find("site/torch_remote"), "site/" + std::string(k12));
}

// The wheels of CUDA 12 have a folder for each library, so one folder does not contain all of them.
TEST_F(LibraryTest, FoldersOfTheVariableComeFirstAndDoNotExcludeOthers) {
  put("site/" + std::string(k13));
  set("TORCH_REMOTE_CUDA_LIB", (root / "a").string() + "::" + (root / "b").string());
  EXPECT_EQ(find("site/torch_remote"), "site/" + std::string(k13));
  put("b/libnone_of_them.so.12");
  EXPECT_EQ(find("site/torch_remote"), "b/libnone_of_them.so.12");
  put("a/libnone_of_them.so.12");
  EXPECT_EQ(find("site/torch_remote"), "a/libnone_of_them.so.12");
}

TEST_F(LibraryTest, PackagesOfTheActiveEnvironmentAreFound) {
  for (const auto& [variable, environment] : {std::pair{"VIRTUAL_ENV", "venv"}, {"CONDA_PREFIX", "conda"}}) {
    const std::string file = std::string(environment) + "/lib/python3.12/site-packages/" + k12;
    put(file);
    EXPECT_EQ(find("bundle/torch_remote"), "");
    set(variable, root / environment);
    EXPECT_EQ(find("bundle/torch_remote"), file);
    unsetenv(variable);
  }
  put("other/" + std::string(k12));
  for (const char* const libraries : {"other/torch/lib", "other/torch/lib/"}) {
    set("TORCH_REMOTE_TORCH_LIB", root / libraries);
    EXPECT_EQ(find("bundle/torch_remote"), "other/" + std::string(k12));
  }
}

// On a machine that a provider sets up, the worker is in a folder of its own, far from Python's packages.
TEST_F(LibraryTest, PythonIsAskedForItsPackages) {
  put("usr/dist-packages/" + std::string(k12));
  put_program("bin/python3", "echo relative/nvidia; echo " + (root / "usr/dist-packages/nvidia").string() + "\n");
  EXPECT_EQ(find("bundle/torch_remote"), "usr/dist-packages/" + std::string(k12));
  EXPECT_EQ(packages_of_python("python3"), (std::vector<std::string>{root / "usr/dist-packages"}));
  put("bundle/" + std::string(k12));  // Python is not asked if packages are next to ours.
  put_program("bin/python3", ": >" + (root / "asked").string() + "\n");
  EXPECT_EQ(find("bundle/torch_remote"), "bundle/" + std::string(k12));
  EXPECT_FALSE(fs::exists(root / "asked"));
  EXPECT_EQ(packages_of_python((root / "no_such_python").string()), std::vector<std::string>());
}

TEST_F(LibraryTest, ScriptForPythonRuns) {
  set("PATH", "/usr/local/bin:/usr/bin:/bin");
  set("PYTHONPATH", root / "site");
  put("site/" + std::string(k12));
  const std::vector<std::string> found = packages_of_python("python3");
  EXPECT_EQ(std::ranges::count(found, (root / "site").string()), 1) << "python3 is not on PATH?";
}

TEST_F(LibraryTest, FoldersOfCudaAndCondaComeLast) {
  set("CUDA_HOME", "/opt/cuda");
  set("CONDA_PREFIX", "/opt/conda");
  LibrarySearchPath search_path = find_libraries("/nowhere/torch_remote");
  EXPECT_EQ(search_path.toolkits, (std::vector<std::string>{"/opt/cuda", "/opt/conda", "/usr/local/cuda"}));
  search_path.packages = {"/packages"};
  search_path.driver = 13000;
  std::vector<std::string> paths;
  for (const LibraryFile& file : files_of(kNone, search_path)) {
    if (file.major == 13) paths.push_back(file.path);
  }
  ASSERT_EQ(paths.size(), 11u);
  EXPECT_EQ(paths[0], "/packages/nvidia/cu13/lib/libnone_of_them.so.13");
  EXPECT_EQ(paths[1], "libnone_of_them.so.13");
  EXPECT_EQ(paths[2], "/opt/cuda/lib64/libnone_of_them.so.13");
  EXPECT_EQ(paths[6], "/opt/conda/lib/libnone_of_them.so.13");
  EXPECT_EQ(paths[10], "/usr/local/cuda/targets/x86_64-linux/lib/libnone_of_them.so.13");
  put("conda/lib/libnone_of_them.so.12");
  set("CONDA_PREFIX", root / "conda");
  EXPECT_EQ(find("bundle/torch_remote"), "conda/lib/libnone_of_them.so.12");
}

// The file exists, so the error is about the file.
TEST_F(LibraryTest, ErrorSaysWhatIsWrongWithAFile) {
  fs::create_directories(root / "folder");
  std::ofstream(root / "folder/libnone_of_them.so.13") << "text";
  set("TORCH_REMOTE_CUDA_LIB", root / "folder");
  std::string message;
  EXPECT_EQ(find("bundle/torch_remote", 13000, &message), "");
  EXPECT_NE(message.find("folder/libnone_of_them.so.13: "), std::string::npos) << message;
}

TEST_F(LibraryTest, OneThatIsNoneIsRefused) {
  put("libcublasLt.so.13");
  lt::Table table;
  const Status status = lt::open({.folders = {root}, .linker = false, .driver = 13000}, &table);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("has no cublasLt"), std::string::npos) << status.message();
}

// cuDNN has its own version, and one package per CUDA version.
TEST_F(LibraryTest, WithItsOwnVersionHasOneNameAndTwoPackages) {
  for (const int driver : {13000, 12080}) {
    const std::vector<LibraryFile> files =
        files_of(dnn::kLibrary, {.packages = {"/packages"}, .linker = false, .driver = driver});
    EXPECT_EQ(files, (std::vector<LibraryFile>{{"/packages/nvidia/cudnn/lib/libcudnn.so.9", driver / 1000}}));
  }
  dnn::Table table;
  for (const auto& [driver, package] : {std::pair{13000, "nvidia-cudnn-cu13,"}, {12080, "nvidia-cudnn-cu12,"}}) {
    const Status status = dnn::open({.folders = {root / "empty"}, .linker = false, .driver = driver}, &table);
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_NE(status.message().find("there is no libcudnn.so.9 (cuDNN)"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(package), std::string::npos) << status.message();
  }
  put("libcudnn.so.9");
  EXPECT_NE(dnn::open({.folders = {root}, .linker = false, .driver = 13000}, &table).message().find("has no cudnn"),
            std::string::npos);
}

}  // namespace
}  // namespace torch_remote::worker::cuda
