#include "remote/wire/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

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

}  // namespace
}  // namespace torch_remote::remote
