#include "remote/wire/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace torch_remote::remote {
namespace {

// Sets an environment variable for the lifetime of this object.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }

 private:
  const char* const name_;
};

std::string message_with(const char* name, const char* value) {
  const Setting setting(name, value);
  return check_environment().message();
}

TEST(Environment, WhatIsAllowedPasses) {
  EXPECT_EQ(check_environment().message(), "");
  EXPECT_EQ(message_with("TORCH_REMOTE_SYNC", "1"), "");
  EXPECT_EQ(message_with("TORCH_REMOTE_LOG", "flush"), "");
  EXPECT_EQ(message_with("TORCH_REMOTE_WORKER_LOG", "trace"), "");
  EXPECT_EQ(message_with("TORCH_REMOTE_WORKER_THREADS", "16"), "");
  EXPECT_EQ(message_with("TORCH_REMOTE_DUMP", "/any/folder"), "");
  EXPECT_EQ(message_with("TORCH_REMOTE_TEST_OF_OUR_OWN", "x"), "");
  EXPECT_EQ(message_with("TORCH_REMOTELY", "x"), "");  // has another prefix
}

TEST(Environment, TheEmptyTextCountsAsNotSet) {
  for (const EnvironmentVariable& variable : environment_variables()) {
    EXPECT_EQ(message_with(std::string(variable.name).c_str(), ""), "") << variable.name;
  }
}

TEST(Environment, AWrongValueIsToldWithThoseThatAreAllowed) {
  EXPECT_EQ(message_with("TORCH_REMOTE_SYNC", "maybe"),
            "remote: TORCH_REMOTE_SYNC='maybe' is not a setting; use '0' (the default) or '1'");
  EXPECT_EQ(message_with("TORCH_REMOTE_FALLBACK", "bla"),
            "remote: TORCH_REMOTE_FALLBACK='bla' is not a setting; use 'error' (the default), 'warn' or 'allow'");
  EXPECT_EQ(message_with("TORCH_REMOTE_LOG", "nonsense"),
            "remote: TORCH_REMOTE_LOG='nonsense' is not a setting; use 'flush', or unset it");
  for (const char* wrong : {"0", "two", "-1", "1.5", "10000000", "4 "}) {
    EXPECT_EQ(message_with("TORCH_REMOTE_WORKER_THREADS", wrong),
              "remote: TORCH_REMOTE_WORKER_THREADS='" + std::string(wrong) +
                  "' is not a setting; use an integer from 1 to 999999");
  }
}

TEST(Environment, AnUnknownNameIsToldWithTheNearestOne) {
  EXPECT_EQ(message_with("TORCH_REMOTE_SNYC", "1"),
            "remote: TORCH_REMOTE_SNYC is set, but is not a variable of torch_remote; did you mean TORCH_REMOTE_SYNC? "
            "Correct it, or unset it");
  EXPECT_NE(message_with("TORCH_REMOTE_WORKERS", "local").find("did you mean TORCH_REMOTE_WORKER?"), std::string::npos);
  const std::string far = message_with("TORCH_REMOTE_SOMETHING_QUITE_DIFFERENT", "1");
  for (const EnvironmentVariable& variable : environment_variables()) {
    EXPECT_NE(far.find(variable.name), std::string::npos) << far;
  }
}

TEST(Environment, ThePackageIsWhereTheVariableSaysOrWhereTheProgramIs) {
  EXPECT_TRUE(package_folder().is_absolute());
  const Setting setting("TORCH_REMOTE_PACKAGE", "/some/where");
  EXPECT_EQ(package_folder(), "/some/where");
}

TEST(Environment, ThePluginIsForTheTorchThatIsUsed) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(::testing::TempDir()) / "plugins";
  fs::remove_all(folder);
  const auto write = [](const fs::path& file, std::string_view text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  const fs::path package = folder / "package";
  for (const char* minor : {"2.9", "2.13", "2.14"}) {
    write(package / (std::string("torch") + minor) / "libaten_plugin.so", "");
  }
  const Setting setting("TORCH_REMOTE_PACKAGE", package.c_str());
  // torch is next to the package.
  write(folder / "torch/version.py", "from typing import Optional\n__version__ = '2.13.0+cpu'\ndebug = False\n");
  EXPECT_EQ(aten_plugin(), package / "torch2.13/libaten_plugin.so");
  // torch is elsewhere.
  write(folder / "site/torch/version.py", "__version__ = '2.9.1'\n");
  const std::string elsewhere = folder / "site/torch/lib";
  const Setting torch("TORCH_REMOTE_TORCH_LIB", elsewhere.c_str());
  EXPECT_EQ(aten_plugin(), package / "torch2.9/libaten_plugin.so");
  // There are only libraries.
  fs::remove(folder / "site/torch/version.py");
  EXPECT_EQ(aten_plugin(), package / "torch2.14/libaten_plugin.so");
  write(package / "torch2.1001/libaten_plugin.so", "");
  EXPECT_EQ(aten_plugin(), package / "torch2.1001/libaten_plugin.so");
  write(package / "torch3.0/libaten_plugin.so", "");
  EXPECT_EQ(aten_plugin(), package / "torch3.0/libaten_plugin.so");
}

}  // namespace
}  // namespace torch_remote::remote
