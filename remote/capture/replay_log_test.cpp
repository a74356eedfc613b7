// Tests what a log can repeat after writing to the disk failed.
#include "remote/capture/replay_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <vector>

#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

wire::Header header(wire::Type type) {
  wire::Header made;
  made.type = static_cast<uint8_t>(type);
  return made;
}

// Limits the size of files that this process writes. Writing more fails as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

class ReplayLogTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(ReplayLog::open(::testing::TempDir(), 1 << 20, &log).ok()); }

  Status append(wire::Type type) { return log->append(header(type), control, {}); }
  void make_checkpoint() {
    ASSERT_TRUE(log->cut().ok());
    ASSERT_TRUE(log->begin_checkpoint().ok());
    ASSERT_TRUE(log->commit_checkpoint().ok());
  }

  std::unique_ptr<ReplayLog> log;
  const std::vector<uint8_t> control = std::vector<uint8_t>(10'000);
};

TEST_F(ReplayLogTest, ACheckpointReplacesAMessageThatCouldNotBeWritten) {
  ASSERT_TRUE(append(wire::Type::kLoadProgram).ok());
  {
    const FileLimit full(4096);
    EXPECT_FALSE(append(wire::Type::kRun).ok());
  }
  EXPECT_FALSE(log->usable().ok());
  EXPECT_TRUE(log->may_become_usable());
  make_checkpoint();
  EXPECT_TRUE(log->usable().ok());
  EXPECT_TRUE(append(wire::Type::kRun).ok());
}

TEST_F(ReplayLogTest, NoCheckpointReplacesAProgramThatCouldNotBeWritten) {
  {
    const FileLimit full(4096);
    EXPECT_FALSE(append(wire::Type::kLoadProgram).ok());
  }
  for (int i = 0; i < 2; ++i) {
    const Status status = log->usable();
    EXPECT_EQ(status.code(), ErrorCode::kLost);
    EXPECT_NE(status.message().find("a program could not be written"), std::string::npos) << status.message();
    EXPECT_FALSE(log->may_become_usable());
    EXPECT_FALSE(append(wire::Type::kRun).ok());
    EXPECT_FALSE(append(wire::Type::kLoadProgram).ok());
    make_checkpoint();
  }
}

}  // namespace
}  // namespace torch_remote::remote
