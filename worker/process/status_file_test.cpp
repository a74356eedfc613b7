#include "worker/process/status_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace torch_remote::worker {
namespace {

std::string path() { return testing::TempDir() + "status_" + std::to_string(getpid()); }

TEST(StatusFile, IsReadByOthersAndGoesWithTheListener) {
  std::unique_ptr<StatusFile> file;
  ASSERT_TRUE(StatusFile::create(path(), 3, &file).ok());
  struct stat found{};
  ASSERT_EQ(stat(path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600);
  EXPECT_EQ(found.st_size, static_cast<off_t>(sizeof(WorkerStatus)));
  SessionStatus* session = file->begin("127.0.0.1:4000");
  ASSERT_NE(session, nullptr);
  // In a forked process, such as a session's.
  if (const pid_t child = fork(); child == 0) {
    session->bytes_in = 5;
    _exit(0);
  } else {
    waitpid(child, nullptr, 0);
  }
  const int descriptor = open(path().c_str(), O_RDONLY);
  const auto* seen =
      static_cast<const WorkerStatus*>(mmap(nullptr, sizeof(WorkerStatus), PROT_READ, MAP_SHARED, descriptor, 0));
  close(descriptor);
  EXPECT_EQ(seen->magic, WorkerStatus::kMagic);
  EXPECT_EQ(seen->most, 3u);
  EXPECT_EQ(seen->session[0].bytes_in, 5u);
  EXPECT_STREQ(seen->session[0].client, "127.0.0.1:4000");
  file->end(session);
  EXPECT_EQ(seen->bytes_in, 5u);
  EXPECT_EQ(seen->session[0].began, 0u);
  EXPECT_EQ(seen->session[0].bytes_in, 0u);
  file = nullptr;
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST(StatusFile, SessionsBeyondItsRoomAreNotShown) {
  std::unique_ptr<StatusFile> file;
  ASSERT_TRUE(StatusFile::create(path(), 0, &file).ok());
  std::vector<SessionStatus*> all;
  for (size_t i = 0; i < WorkerStatus::kSessions; ++i) all.push_back(file->begin(std::string(200, 'x')));
  EXPECT_NE(all.back(), nullptr);
  EXPECT_EQ(std::string(all.back()->client), std::string(71, 'x'));
  EXPECT_EQ(file->begin("one more"), nullptr);
  file->end(nullptr);
  file->end(all[7]);
  EXPECT_EQ(file->begin("again"), all[7]);
}

TEST(StatusFile, DoesNotFollowALink) {
  const std::string victim = path() + ".victim";
  (void)unlink((path() + ".part").c_str());
  ASSERT_EQ(symlink(victim.c_str(), (path() + ".part").c_str()), 0);
  std::unique_ptr<StatusFile> file;
  ASSERT_TRUE(StatusFile::create(path(), 0, &file).ok());
  EXPECT_FALSE(std::filesystem::exists(victim));
  EXPECT_FALSE(StatusFile::create("/nowhere/status", 0, &file).ok());
}

TEST(CountingTransport, CountsBytesAndTimeBetweenMessages) {
  auto [client, worker] = remote::make_inproc_transport();
  SessionStatus counts{};
  CountingTransport transport(std::move(worker), &counts);
  const std::vector<uint8_t> control(100);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client->send({}, control, client->allocate(1000)).ok());
    remote::Frame frame;
    ASSERT_TRUE(transport.receive(&frame, std::chrono::seconds(5)).ok());
    usleep(2000);
  }
  ASSERT_TRUE(transport.send({}, control, nullptr).ok());
  EXPECT_EQ(counts.messages, 2u);
  EXPECT_EQ(counts.bytes_in, 2 * (sizeof(wire::Header) + 1100));
  EXPECT_EQ(counts.bytes_out, sizeof(wire::Header) + 100);
  EXPECT_GE(counts.busy, 2'000'000u);  // The second message is still being handled.
}

TEST(CountingTransport, ALookInTheMiddleOfWorkDoesNotEndIt) {
  auto [client, worker] = remote::make_inproc_transport();
  SessionStatus counts{};
  CountingTransport transport(std::move(worker), &counts);
  remote::Frame frame;
  // A receive that does not wait is no work, either.
  EXPECT_FALSE(transport.receive(&frame, std::chrono::nanoseconds::zero()).ok());
  usleep(2000);
  EXPECT_FALSE(transport.receive(&frame, std::chrono::nanoseconds::zero()).ok());
  EXPECT_EQ(counts.busy, 0u);
  ASSERT_TRUE(client->send({}, {}, nullptr).ok());
  ASSERT_TRUE(transport.receive(&frame, std::chrono::seconds(5)).ok());
  for (int i = 0; i < 5; ++i) {
    usleep(2000);
    EXPECT_FALSE(transport.receive(&frame, std::chrono::nanoseconds::zero()).ok());
  }
  EXPECT_GE(counts.busy, 10'000'000u);
  // The wait for the next message ends the work.
  EXPECT_FALSE(transport.receive(&frame, std::chrono::milliseconds(1)).ok());
  const uint64_t busy = counts.busy;
  EXPECT_FALSE(transport.receive(&frame, std::chrono::milliseconds(20)).ok());
  EXPECT_FALSE(transport.receive(&frame, std::chrono::nanoseconds::zero()).ok());
  EXPECT_EQ(counts.busy, busy);
}

}  // namespace
}  // namespace torch_remote::worker
