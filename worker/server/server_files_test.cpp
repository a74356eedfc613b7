// Files that a session reads for its client, and attempts of a hostile client.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "worker/server/testing/delayed.h"
#include "worker/server/testing/server_fixture.h"

namespace torch_remote::worker {
namespace {

namespace fs = std::filesystem;

class ServerFilesTest : public ServerTest {
 protected:
  void SetUp() override {
    folder = fs::path(::testing::TempDir()) / ("server_files_" + std::to_string(getpid()));
    fs::create_directories(folder);
    const Floats values = {1, 2, 3, 4};
    std::ofstream(folder / "w").write(reinterpret_cast<const char*>(values.data()), 16);
    ASSERT_TRUE(Files::in(folder, &options.files).ok());
  }
  void TearDown() override {
    ServerTest::TearDown();
    fs::remove_all(folder);
  }

  // Asks the worker for a file. `reason` receives the error's text.
  bool find(const std::string& path) {
    FlatBufferBuilder builder;
    builder.Finish(wire::CreateStatFile(builder, builder.CreateString(path)));
    send(Type::kStatFile, builder, nullptr, wire::kWantsReply);
    Frame frame;
    EXPECT_TRUE(receive(Type::kStatFileReply, &frame));
    const auto* reply = wire::verify<wire::StatFileReply>(frame.control);
    reason = reply->reason() ? reply->reason()->str() : "";
    allowed = reply->allowed();
    if (reply->version()) version = *reply->version();
    return reply->version() != nullptr;
  }

  void read_file(uint64_t id, const std::string& path, uint64_t offset, uint64_t size) {
    FlatBufferBuilder builder;
    const auto name = builder.CreateString(path);
    builder.Finish(wire::CreateReadFile(builder, id, name, &version, offset, size));
    send(Type::kReadFile, builder);
  }

  fs::path folder;
  ServerOptions options;
  wire::FileVersion version;
  std::string reason;
  bool allowed = false;
};

TEST_F(ServerFilesTest, AFileBecomesABuffer) {
  start(options);
  ASSERT_EQ(hello(), "");
  ASSERT_TRUE(find("w"));
  EXPECT_TRUE(allowed);
  EXPECT_EQ(version.size(), 16u);
  read_file(1, "w", 0, 16);
  read_file(2, (folder / "w").string(), 8, 4);
  EXPECT_EQ(read(1, {4}, {1}), (Floats{1, 2, 3, 4}));
  EXPECT_EQ(read(2, {1}, {1}), Floats{3});
  load(1, kDouble);
  run(1, {4, 16}, {1}, 100);
  EXPECT_EQ(read(100, {4}, {1}), (Floats{2, 4, 6, 8}));
  EXPECT_EQ(synchronize(), "");
}

TEST_F(ServerFilesTest, WithoutLeaveNothingIsRead) {
  start();
  ASSERT_EQ(hello(), "");
  EXPECT_FALSE(find((folder / "w").string()));
  EXPECT_FALSE(allowed);
  EXPECT_NE(reason.find("start it with --allow-files"), std::string::npos);
  read_file(1, (folder / "w").string(), 0, 16);
  EXPECT_NE(synchronize().find("--allow-files"), std::string::npos);
  std::string error;
  read(1, {4}, {1}, &error);
  EXPECT_NE(error.find("--allow-files"), std::string::npos);
}

TEST_F(ServerFilesTest, AHostileClientGetsNothingAndHarmsNobody) {
  options.memory_limit = 1 << 20;
  start(options);
  ASSERT_EQ(hello(), "");
  std::ofstream(folder / "sparse").seekp((1 << 30) - 1).put(0);  // Larger than the session's limit.
  ASSERT_TRUE(find("sparse"));
  read_file(1, "sparse", 0, 1 << 30);
  EXPECT_NE(synchronize().find(" out of memory."), std::string::npos);
  ASSERT_TRUE(find("w"));
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 17}, {16, 1}, {UINT64_MAX, 1}, {1, UINT64_MAX}, {0, uint64_t{1} << 40}}) {
    read_file(1, "w", offset, size);
    EXPECT_NE(synchronize().find("it ends before byte"), std::string::npos);
  }
  read_file(1, "../w", 0, 16);
  EXPECT_NE(synchronize().find("outside of the folder"), std::string::npos);
  read_file(1, std::string("w\0w", 3), 0, 16);
  EXPECT_NE(synchronize().find("no path"), std::string::npos);
  version = wire::FileVersion(1 << 20, version.inode(), version.mtime_ns());
  read_file(1, "w", 100, 16);
  EXPECT_NE(synchronize().find("was changed meanwhile"), std::string::npos);
  upload(3, {5});
  EXPECT_EQ(read(3, {1}, {1}), Floats{5});
}

TEST_F(ServerFilesTest, AFailedReadIsAFailedOp) {
  start(options);
  ASSERT_EQ(hello(), "");
  ASSERT_TRUE(find("w"));
  fs::resize_file(folder / "w", 8);
  read_file(1, "w", 0, 16);
  load(1, kDouble);
  run(1, {4, 16}, {1}, 100);
  std::string error;
  read(100, {4}, {1}, &error);
  EXPECT_NE(error.find("changed meanwhile"), std::string::npos);
}

TEST_F(ServerFilesTest, ReadsOfNoBufferOrNoPathEndTheSession) {
  for (const bool id : {true, false}) {
    sequence = 0;
    start(options);
    ASSERT_EQ(hello(), "");
    if (id) {
      read_file(0, "w", 0, 0);
    } else {
      FlatBufferBuilder builder;
      builder.Finish(wire::CreateReadFile(builder, 1));
      send(Type::kReadFile, builder);
    }
    thread.join();
    EXPECT_EQ(result.code(), ErrorCode::kInvalid) << result.message();
    client.reset();
  }
}

// On a device whose memory only the device can access.
TEST_F(ServerFilesTest, OnADeviceToo) {
  options.open_device = testing::open_delayed_device;
  start(options);
  ASSERT_EQ(hello(), "");
  ASSERT_TRUE(find("w"));
  read_file(1, "w", 0, 16);
  EXPECT_EQ(read(1, {4}, {1}), (Floats{1, 2, 3, 4}));
}

}  // namespace
}  // namespace torch_remote::worker
