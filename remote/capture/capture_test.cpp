#include "remote/capture/capture.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "remote/capture/capture_format.h"
#include "remote/capture/session_writer.h"
#include "remote/client/client.h"
#include "remote/testing/fake_worker.h"

namespace torch_remote::remote {
namespace {

namespace fs = std::filesystem;

const std::string kTwoInputs = R"(graph(s0, s1) {
  b0: input survives
  b1: input
  b2: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %1, alpha=1) loc("train.py:3 in step")
})";

ir::Graph graph(const std::string& text) {
  ir::Graph result;
  const Status status = ir::parse_graph(text, &result);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string string_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class CaptureTest : public testing::Test {
 protected:
  std::shared_ptr<CaptureWriter> open(uint64_t limit = uint64_t{4} << 30) {
    std::shared_ptr<CaptureWriter> writer;
    const Status status = CaptureWriter::open({path, limit, "2.13.0"}, &writer);
    EXPECT_TRUE(status.ok()) << status.message();
    return writer;
  }
  // Writes two uploads, a program, three runs and a read.
  void write_session() {
    SessionWriter session(open());
    session.upload(1, bytes_of("abcdefgh"));
    session.upload(2, bytes_of("12345678"));
    ir::Graph source = graph(kTwoInputs);
    ir::Graph program = source;
    program.source_lines.clear();
    session.load(1, &source, program);
    session.run(1, std::vector<int64_t>{2, 8}, std::vector<uint64_t>{1, 2}, 3);
    session.run(1, std::vector<int64_t>{2, 8}, std::vector<uint64_t>{1, 3}, 4);
    session.run(1, std::vector<int64_t>{2, int64_t{1} << 60}, std::vector<uint64_t>{1, 4}, 5, {1, 3});
    session.read(5, 4, std::vector<int64_t>{2}, std::vector<int64_t>{1}, 0, bytes_of("abcdefgh"));
  }
  std::vector<std::byte> contents() const {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return {bytes_of(text).begin(), bytes_of(text).end()};
  }
  std::unique_ptr<CaptureReader> read() {
    std::unique_ptr<CaptureReader> reader;
    const Status status = CaptureReader::open(path, &reader);
    EXPECT_TRUE(status.ok()) << status.message();
    return reader;
  }
  static Status all(CaptureReader& reader, std::vector<CaptureEvent>* events) {
    std::optional<CaptureEvent> event;
    do {
      if (Status status = reader.next(&event); !status) return status;
      if (event) events->push_back(*event);
    } while (event);
    return {};
  }
  std::vector<CaptureEvent> events(CaptureReader& reader) {
    std::vector<CaptureEvent> result;
    const Status status = all(reader, &result);
    EXPECT_TRUE(status.ok()) << status.message();
    return result;
  }
  static Status parse(std::vector<std::byte> bytes, size_t* count = nullptr) {
    std::unique_ptr<CaptureReader> reader;
    if (Status status = CaptureReader::parse(std::move(bytes), &reader); !status) return status;
    std::vector<CaptureEvent> events;
    Status status = all(*reader, &events);
    if (count) *count = events.size();
    return status;
  }
  template <class T>
  static const T& as(const CaptureEvent& event) {
    return std::get<T>(event.what);
  }

  const fs::path folder = [] {
    std::string name = testing::TempDir() + "captureXXXXXX";
    return fs::path(mkdtemp(name.data()));
  }();
  const std::string path = folder / "session.rreplay";
  void TearDown() override { fs::remove_all(folder); }
};

TEST_F(CaptureTest, GivesBackWhatWasSent) {
  write_session();
  const auto reader = read();
  EXPECT_EQ(reader->info().torch_version, "2.13.0");
  EXPECT_EQ(reader->info().process, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(reader->ending(), CaptureEnding::kComplete);
  for (int round = 0; round < 2; ++round, reader->rewind()) {
    const auto all = events(*reader);
    ASSERT_EQ(all.size(), 7u);
    EXPECT_EQ(as<UploadEvent>(all[1]).buffer, 2u);
    EXPECT_EQ(string_of(as<UploadEvent>(all[1]).bytes), "12345678");
    const CapturedProgram& program = *as<ProgramEvent>(all[2]).program;
    ASSERT_TRUE(program.source.has_value());
    EXPECT_EQ(*program.source, graph(kTwoInputs));
    EXPECT_EQ(program.graph, *program.source);  // including the lines, which were not sent to the worker
    EXPECT_EQ(program.inputs, (std::vector<uint32_t>{0, 1}));
    EXPECT_EQ(program.survivors, (std::vector<uint32_t>{2}));
    const auto& last = as<RunEvent>(all[5]);
    EXPECT_EQ(last.params, (std::vector<int64_t>{2, int64_t{1} << 60}));
    EXPECT_EQ(last.inputs, (std::vector<uint64_t>{1, 4}));
    EXPECT_EQ(last.first_result_id, 5u);
    EXPECT_EQ(last.freed_ids, (std::vector<uint64_t>{1, 3}));
    EXPECT_FALSE(last.wants_reply);
    EXPECT_EQ(as<RunEvent>(all[4]).inputs, (std::vector<uint64_t>{1, 3}));
    const auto& question = as<ReadEvent>(all[6]);
    EXPECT_TRUE(question.has_reply);
    EXPECT_EQ(question.sizes, (std::vector<int64_t>{2}));
    EXPECT_EQ(string_of(question.bytes), "abcdefgh");
  }
}

TEST_F(CaptureTest, ASessionThroughATransport) {
  auto [ours, theirs] = make_inproc_transport();
  FakeWorker worker(std::move(theirs));
  {
    std::unique_ptr<Client> client;
    const Status connected = Client::connect(
        capture_frames(std::move(ours), open()), [](auto&&...) { return Status::internal("nothing"); }, {}, &client);
    ASSERT_TRUE(connected.ok()) << connected.message();
    uint64_t id = 0;
    ASSERT_TRUE(client->upload(4, [](std::byte* to) { std::memcpy(to, "wxyz", 4); }, &id).ok());
    OpError error;
    const int64_t size = 1, stride = 1;
    ASSERT_TRUE(client->read(id, 4, {&size, 1}, {&stride, 1}, 0, [](auto) {}, {}, &error).ok());
    ASSERT_FALSE(client->read(77, 4, {&size, 1}, {&stride, 1}, 0, [](auto) {}, {}, &error).ok());
    client->free(id);
    ASSERT_TRUE(client->synchronize({}, &error).ok());
  }
  const auto reader = read();
  EXPECT_EQ(reader->ending(), CaptureEnding::kComplete);
  const auto all = events(*reader);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(string_of(as<UploadEvent>(all[0]).bytes), "wxyz");
  EXPECT_EQ(string_of(as<ReadEvent>(all[1]).bytes), "wxyz");
  ASSERT_TRUE(as<ReadEvent>(all[2]).error.has_value());
  EXPECT_EQ(as<ReadEvent>(all[2]).error->status.message(), "no buffer 77");
  EXPECT_EQ(as<FreeEvent>(all[3]).buffers, (std::vector<uint64_t>{1}));
  EXPECT_TRUE(as<SynchronizeEvent>(all[4]).has_reply);
  EXPECT_LE(all[0].time, all[4].time);
}

TEST_F(CaptureTest, TheLimitEndsItAndSaysSo) {
  testing::internal::CaptureStderr();
  {
    SessionWriter session(open(/*limit=*/64 << 10));
    const std::string block(10000, 'x');
    for (uint64_t id = 1; id < 20; ++id) session.upload(id, bytes_of(block));
  }
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("65536"), std::string::npos) << warning;
  EXPECT_EQ(warning.find("remote:", 1), std::string::npos) << "one warning";
  EXPECT_LE(fs::file_size(path), 64u << 10);
  const auto reader = read();
  EXPECT_EQ(reader->ending(), CaptureEnding::kLimit);
  EXPECT_EQ(events(*reader).size(), 6u);
}

TEST_F(CaptureTest, EveryPrefixCanBeRead) {
  write_session();
  const std::vector<std::byte> whole = contents();
  size_t last = 0;
  for (size_t size = sizeof(capture::FileHeader) + 256; size < whole.size(); ++size) {
    size_t count = 0;
    const Status status = parse({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)}, &count);
    ASSERT_TRUE(status.ok()) << size << ": " << status.message();
    ASSERT_GE(count, last);
    last = count;
  }
  EXPECT_EQ(last, 7u);
}

TEST_F(CaptureTest, AKilledProcessLeavesWhatItDid) {
  const pid_t child = fork();
  if (child == 0) {
    SessionWriter session(open());
    session.upload(1, bytes_of("abcd"));
    raise(SIGKILL);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto reader = read();
  EXPECT_EQ(reader->ending(), CaptureEnding::kCutOff);
  EXPECT_EQ(events(*reader).size(), 1u);
}

TEST_F(CaptureTest, AForkedChildDoesNotWrite) {
  auto writer = open();
  const pid_t child = fork();
  if (child == 0) {
    writer->abandon();
    writer->source_graph(1, {});
    writer.reset();
    _exit(0);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  SessionWriter(writer).upload(1, bytes_of("abcd"));
  writer.reset();
  const auto reader = read();
  EXPECT_EQ(reader->ending(), CaptureEnding::kComplete);
  EXPECT_EQ(events(*reader).size(), 1u);
}

TEST_F(CaptureTest, TwoWritersOfOneFileAreRefused) {
  const auto writer = open();
  std::shared_ptr<CaptureWriter> second;
  const Status status = CaptureWriter::open({path}, &second);
  EXPECT_EQ(status.code(), ErrorCode::kInvalid);
  EXPECT_NE(status.message().find("%p"), std::string::npos) << status.message();
}

// A capture contains tensors, so other users must not read it.
TEST_F(CaptureTest, OnlyTheUserReadsACapture) {
  const mode_t before = umask(0);
  open();
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::permissions(path, fs::perms::all);  // an existing capture, which is overwritten
  open();
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  umask(before);
}

TEST_F(CaptureTest, ACaptureFollowsNoLink) {
  const fs::path victim = folder / "victim";
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, path);
  std::shared_ptr<CaptureWriter> writer;
  const Status status = CaptureWriter::open({path}, &writer);
  EXPECT_EQ(status.code(), ErrorCode::kInvalid);
  EXPECT_NE(status.message().find("symbolic link"), std::string::npos) << status.message();
  EXPECT_EQ(fs::file_size(victim), 8u);
}

TEST_F(CaptureTest, AnImpossiblePathIsNamed) {
  std::shared_ptr<CaptureWriter> writer;
  const Status status = CaptureWriter::open({folder / "no" / "such.rreplay"}, &writer);
  EXPECT_EQ(status.code(), ErrorCode::kInvalid);
  EXPECT_NE(status.message().find("such.rreplay"), std::string::npos) << status.message();
}

TEST_F(CaptureTest, AFullDiskEndsTheCaptureOnly) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20000, 20000};
    setrlimit(RLIMIT_FSIZE, &limit);
    testing::internal::CaptureStderr();
    SessionWriter session(open());
    const std::string block(8000, 'x');
    for (uint64_t id = 1; id < 10; ++id) session.upload(id, bytes_of(block));
    const std::string warning = testing::internal::GetCapturedStderr();
    _exit(warning.starts_with("remote: the capture '" + path + "' ends here") &&
                  std::count(warning.begin(), warning.end(), '\n') == 1
              ? 0
              : 1);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const auto reader = read();
  EXPECT_EQ(reader->ending(), CaptureEnding::kCutOff);
  EXPECT_EQ(events(*reader).size(), 2u);
}

TEST_F(CaptureTest, AnyChangedByteIsFound) {
  write_session();
  const std::vector<std::byte> whole = contents();
  for (size_t at = 0; at < whole.size(); ++at) {
    if (at >= offsetof(capture::FileHeader, zero) && at < sizeof(capture::FileHeader)) continue;
    std::vector<std::byte> changed = whole;
    changed[at] ^= std::byte{0x10};
    const Status status = parse(std::move(changed));
    ASSERT_FALSE(status.ok()) << at;
    ASSERT_TRUE(status.message().starts_with("remote: the capture ")) << status.message();
  }
}

TEST_F(CaptureTest, AnotherVersionNamesBoth) {
  write_session();
  std::vector<std::byte> bytes = contents();
  bytes[offsetof(capture::FileHeader, version)] = std::byte{9};
  const Status status = parse(std::move(bytes));
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("version 9"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("version " + std::to_string(capture::kFormatVersion)), std::string::npos)
      << status.message();
}

TEST(CaptureOptions, PathAndLimit) {
  CaptureOptions options;
  ASSERT_TRUE(capture_options(nullptr, "nonsense", &options).ok());
  EXPECT_EQ(options.path, "");
  ASSERT_TRUE(capture_options("a.%p.rreplay", "3M", &options).ok());
  EXPECT_EQ(options.path, "a." + std::to_string(getpid()) + ".rreplay");
  EXPECT_EQ(options.limit, 3u << 20);
  ASSERT_TRUE(capture_options("b.rreplay", "1000", &options).ok());
  EXPECT_EQ(options.path, "b.2.rreplay");
  EXPECT_EQ(options.limit, 1000u);
  for (const char* wrong : {"G", "4X", "-1", "4GG", "99999999999999999999", "20000000000G", " 4"}) {
    EXPECT_FALSE(capture_options("b", wrong, &options).ok()) << wrong;
  }
}

}  // namespace
}  // namespace torch_remote::remote
