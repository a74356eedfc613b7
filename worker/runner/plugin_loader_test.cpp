#include "worker/runner/plugin_loader.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace torch_remote::worker {
namespace {

std::string message_of(const std::string& path) {
  const tr_runner_api* api = nullptr;
  const Status status = load_plugin(path, &api);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(api, nullptr);
  return status.message();
}

TEST(PluginLoader, AMissingFileIsNamed) {
  EXPECT_NE(message_of("/nowhere/libaten_plugin.so").find("/nowhere/libaten_plugin.so"), std::string::npos);
}

TEST(PluginLoader, ALibraryThatIsNoPluginIsRefused) {
  EXPECT_NE(message_of("libm.so.6").find("not a plugin of the worker"), std::string::npos);
}

TEST(PluginLoader, AnotherVersionOfTheInterfaceIsRefused) {
  const std::string message = message_of("worker/runner/testing/libold_plugin.so");
  EXPECT_NE(message.find("version 99"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(TR_RUNNER_ABI)), std::string::npos) << message;
}

TEST(PluginLoader, TheTorchFolderMustHaveTorch) {
  setenv("TORCH_REMOTE_TORCH_LIB", "/nowhere", 1);
  EXPECT_NE(message_of("libm.so.6").find("TORCH_REMOTE_TORCH_LIB"), std::string::npos);
  unsetenv("TORCH_REMOTE_TORCH_LIB");
}

}  // namespace
}  // namespace torch_remote::worker
