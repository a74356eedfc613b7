// Tests what a log can repeat after writing to the disk failed, after checkpoints that were abandoned, and after
// messages that could not be sent.
#include "remote/capture/replay_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

wire::Header header(wire::Type type, uint64_t sequence = 0) {
  wire::Header made;
  made.type = static_cast<uint8_t>(type);
  made.sequence = sequence;
  return made;
}

ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
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

  Status append(wire::Type type, uint64_t sequence = 0) { return log->append(header(type, sequence), control, {}); }
  void make_checkpoint() {
    ASSERT_TRUE(log->cut().ok());
    ASSERT_TRUE(log->begin_checkpoint().ok());
    ASSERT_TRUE(log->commit_checkpoint().ok());
  }

  void abandon_checkpoint() {
    ASSERT_TRUE(log->begin_checkpoint().ok());
    ASSERT_TRUE(log->cut().ok());
    log->abandon_checkpoint();
  }
  using Messages = std::vector<std::pair<uint64_t, wire::Type>>;
  // The messages that a replay sends, by sequence and type.
  Messages messages() {
    Messages all;
    ReplayLog::Position position;
    const Status status = log->visit_messages(&position, [&](const LoggedFrame& frame) {
      all.emplace_back(frame.header.sequence, static_cast<wire::Type>(frame.header.type));
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
    return all;
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

TEST_F(ReplayLogTest, AbandonedCheckpointsLeaveNoFiles) {
  ASSERT_TRUE(append(wire::Type::kRun, 1).ok());
  const ptrdiff_t before = open_descriptors();
  Messages expected = {{1, wire::Type::kRun}};
  for (uint64_t i = 2; i < 6; ++i) {
    abandon_checkpoint();
    ASSERT_TRUE(append(wire::Type::kRun, i).ok());
    expected.emplace_back(i, wire::Type::kRun);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(messages(), expected);
  make_checkpoint();
  EXPECT_TRUE(messages().empty());
}

TEST_F(ReplayLogTest, AnAbandonedCheckpointDoesNotRaiseTheLimit) {
  constexpr int kMost = (1 << 20) / 10'000;  // Messages; a bit less, as each has a header.
  int count = 0;
  for (; count < kMost / 2; ++count) ASSERT_TRUE(append(wire::Type::kRun).ok());
  {
    const auto reader = log->hold_checkpoints();  // The messages keep their files.
    std::thread([this] { abandon_checkpoint(); }).join();
  }
  for (; append(wire::Type::kRun).ok(); ++count) ASSERT_LE(count, kMost);
  EXPECT_GT(count, kMost / 2);
  EXPECT_FALSE(log->usable().ok());
  const ptrdiff_t before = open_descriptors();
  abandon_checkpoint();
  EXPECT_EQ(open_descriptors(), before - 2);
  EXPECT_FALSE(log->usable().ok());
  make_checkpoint();
  EXPECT_TRUE(log->usable().ok());
  EXPECT_TRUE(append(wire::Type::kRun).ok());
}

// Sequences have no gaps, so an empty Free message takes the place of a message that could not be sent.
TEST_F(ReplayLogTest, TheMessageInPlaceOfOneThatWasNotSentIsRepeated) {
  ASSERT_TRUE(append(wire::Type::kUpload, 1).ok());
  ASSERT_TRUE(append(wire::Type::kUpload, 2).ok());
  log->forget(header(wire::Type::kUpload, 2));
  ASSERT_TRUE(append(wire::Type::kFree, 2).ok());
  EXPECT_EQ(messages(), (Messages{{1, wire::Type::kUpload}, {2, wire::Type::kFree}}));
}

}  // namespace
}  // namespace torch_remote::remote
