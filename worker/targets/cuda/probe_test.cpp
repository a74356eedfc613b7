#include "worker/targets/cuda/probe.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/emulated_gpu/emulated_cublaslt.h"
#include "tests/emulated_gpu/emulated_cudnn.h"
#include "tests/emulated_gpu/emulated_driver.h"
#include "tests/emulated_gpu/emulated_nccl.h"

namespace torch_remote::worker::cuda {
namespace {

namespace fs = std::filesystem;

const ProbedPart& part(const Probe& probe, const std::string& name) {
  for (const ProbedPart& found : probe.parts) {
    if (found.name == name) return found;
  }
  ADD_FAILURE() << "there is no " << name;
  return probe.nccl;
}

class ProbeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(folder);
    codegen = folder / "codegen.so";
    std::ofstream(codegen) << "a library";
  }
  // A machine that has every part, on the GPU emulator.
  ProbeSource in_software(emulated::EmulatedDriver& machine) {
    return {.driver =
                [&machine](Driver* driver) {
                  *driver = machine.driver();
                  return to_status(*driver, driver->init(0), "cuInit");
                },
            .cublaslt =
                [](const LibrarySearchPath&, lt::Table* table) {
                  *table = emulated::cublaslt();
                  return Status();
                },
            .cudnn =
                [](const LibrarySearchPath&, dnn::Table* table) {
                  *table = emulated::cudnn();
                  return Status();
                },
            .nccl =
                [](const LibrarySearchPath&, nccl::Table* table) {
                  *table = emulated::nccl();
                  return Status();
                },
            .nvrtc = [](const LibrarySearchPath&, std::string*) { return Status(); },
            .nvjitlink = [](const LibrarySearchPath&, std::string*) { return Status(); },
            .shown_path = "in software"};
  }
  fs::path folder;
  std::string codegen;
};

TEST_F(ProbeTest, FindsWhatIsThere) {
  emulated::EmulatedDriver machine({.devices = 2});
  const Probe found = probe(in_software(machine), {}, codegen);
  EXPECT_TRUE(found.is_complete()) << to_probed(found).text;
  ASSERT_EQ(found.gpus.size(), 2U);
  EXPECT_EQ(found.gpus[1].number, 1);
  EXPECT_EQ(found.gpus[1].sm, 90U);
  EXPECT_TRUE(found.gpus[1].uuid.starts_with("GPU-e1e1")) << found.gpus[1].uuid;
  EXPECT_GT(found.gpus[1].free_memory, 0U);
  EXPECT_LE(found.gpus[1].free_memory, found.gpus[1].all_memory);
  EXPECT_FALSE(found.gpus[1].name.empty());
  EXPECT_TRUE(found.parts[0].version.starts_with("CUDA 1")) << found.parts[0].version;
  EXPECT_NE(part(found, "cuBLASLt").version.find('.'), std::string::npos);
  EXPECT_NE(to_probed(found).text.find("Nothing is missing"), std::string::npos) << to_probed(found).text;
  EXPECT_EQ(machine.leaks(), "");  // All contexts were destroyed.
}

TEST_F(ProbeTest, OneMissingLibraryIsNamedAndTheGpuStaysUsable) {
  emulated::EmulatedDriver machine({});
  ProbeSource source = in_software(machine);
  source.shown_path = "";  // Looks for this machine's libraries, in an empty folder.
  const auto none = [this](LibrarySearchPath search_path) {
    search_path = {.folders = {folder}, .linker = false, .driver = search_path.driver};
    return search_path;
  };
  source.cudnn = [none](const LibrarySearchPath& search_path, dnn::Table* table) {
    return dnn::open(none(search_path), table);
  };
  const Probe found = probe(source, none({}), codegen);
  EXPECT_TRUE(found.has_gpu());
  EXPECT_FALSE(found.is_complete());
  EXPECT_EQ(part(found, "cuDNN").missing, "there is no libcudnn.so.9 (cuDNN) in " + folder.string());
  EXPECT_TRUE(part(found, "cuDNN").fix.starts_with("install it: pip install nvidia-cudnn-cu")) << to_probed(found).text;
  const std::string text = to_probed(found).text;
  EXPECT_NE(text.find("Without it convolutions are refused"), std::string::npos) << text;
  EXPECT_NE(text.find("except for the missing parts"), std::string::npos) << text;
}

// Process groups work without NCCL, so it does not count as missing.
TEST_F(ProbeTest, NcclIsNamedButNotMissed) {
  emulated::EmulatedDriver machine({});
  ProbeSource source = in_software(machine);
  EXPECT_NE(to_probed(probe(source, {}, codegen)).text.find("2.32.3"), std::string::npos);
  source.nccl = [](const LibrarySearchPath&, nccl::Table*) {
    return Status{ErrorCode::kUnsupported, "cuda: there is no libnccl.so.2; install it: pip install nvidia-nccl-cu13"};
  };
  const Probe found = probe(source, {}, codegen);
  EXPECT_TRUE(found.is_complete()) << to_probed(found).text;
  EXPECT_EQ(found.nccl.fix, "install it: pip install nvidia-nccl-cu13");
  EXPECT_NE(to_probed(found).text.find("Without it collective ops of process groups go through the hosts' memory"),
            std::string::npos)
      << to_probed(found).text;
}

TEST_F(ProbeTest, AGpuThatCannotBeUsedSaysWhy) {
  emulated::EmulatedDriver machine({.devices = 2});
  ProbeSource source = in_software(machine);
  // The driver reports compute capability 7.0 for the first GPU.
  static Result (*attribute)(int*, DeviceAttribute, DeviceNumber) = nullptr;
  attribute = machine.driver().device_get_attribute;
  source.driver = [&machine](Driver* driver) {
    *driver = machine.driver();
    driver->device_get_attribute = [](int* value, DeviceAttribute which, DeviceNumber device) {
      const Result result = attribute(value, which, device);
      if (device == 0 && which == DeviceAttribute::kMajor) *value = 7;
      return result;
    };
    return to_status(*driver, driver->init(0), "cuInit");
  };
  const Probe found = probe(source, {}, codegen);
  EXPECT_NE(found.gpus[0].missing.find("is too old; the worker needs sm_75"), std::string::npos)
      << to_probed(found).text;
  EXPECT_TRUE(found.gpus[1].missing.empty()) << to_probed(found).text;
  EXPECT_TRUE(found.has_gpu());
}

// Uses the real loader with stand-in libraries, as no test machine has a GPU.
TEST_F(ProbeTest, WithoutADriverLibrariesAreLookedAtAllTheSame) {
  ProbeSource source = nvidia();
  source.driver = [this](Driver* driver) { return open_driver(folder / "libcuda.so.1", driver); };
  fs::copy_file(std::getenv("NVJITLINK"), folder / "libnvJitLink.so.12", fs::copy_options::overwrite_existing);
  fs::copy_file("tests/emulated_gpu/libfake_driver.so", folder / "libcublasLt.so.13",
                fs::copy_options::overwrite_existing);
  const Probe found = probe(source, {.folders = {folder}, .linker = false}, folder / "none.so");
  EXPECT_FALSE(found.has_gpu());
  EXPECT_TRUE(found.gpus.empty());
  EXPECT_NE(found.parts[0].missing.find("there is no driver"), std::string::npos) << to_probed(found).text;
  EXPECT_NE(found.parts[0].fix.find("nvidia-driver"), std::string::npos) << to_probed(found).text;
  const ProbedPart& assembler = part(found, "nvJitLink");
  EXPECT_EQ(assembler.path, folder / "libnvJitLink.so.12") << to_probed(found).text;
  EXPECT_TRUE(assembler.version.starts_with("12.")) << assembler.version;
  EXPECT_NE(part(found, "cuBLASLt").missing.find("has no cublasLt"), std::string::npos) << to_probed(found).text;
  EXPECT_FALSE(part(found, "cuDNN").missing.empty());
  EXPECT_NE(part(found, "compiler").missing.find("none.so"), std::string::npos);
  EXPECT_NE(to_probed(found).text.find("No GPU can be used"), std::string::npos);
}

TEST_F(ProbeTest, JsonIsQuoted) {
  Probe found;
  found.parts.push_back({.name = "driver", .path = "a\"b\\c\n", .missing = "none"});
  found.gpus.push_back({.number = 3, .name = "G", .uuid = "GPU-1", .sm = 90});
  const std::string json = "{" + to_probed(found).json + "}";
  EXPECT_NE(json.find(R"("path": "a\"b\\c\u000a")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("device": "cuda:3", "name": "G", "uuid": "GPU-1", "sm": 90)"), std::string::npos) << json;
  EXPECT_TRUE(json.starts_with(R"({"usable": true, "complete": false,)")) << json;
}

}  // namespace
}  // namespace torch_remote::worker::cuda
