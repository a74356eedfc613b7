// Python functions that a session calls for its client: permissions, results, and processes that die or misbehave.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "worker/server/python.h"
#include "worker/server/testing/server_fixture.h"

namespace torch_remote::worker {
namespace {

namespace fs = std::filesystem;

// Replaces python_process.py. The first part selects what to do; the answer repeats all parts of the request.
constexpr const char* kProgram = R"(
import mmap, os, socket, struct, sys, time
connection = socket.socket(fileno=3)
while True:
    data, fds, _, _ = socket.recv_fds(connection, 1, 1)
    if not data:
        break
    connection.send(b"1")
    request = mmap.mmap(fds[0], 0, access=mmap.ACCESS_READ)
    offset, size = struct.unpack_from("<QQ", request, 8)
    word = bytes(request[offset:offset + size]).decode()
    if word == "die":
        os._exit(3)
    if word == "sleep":
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            pass
    if word == "deaf":
        import signal
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(60)
    answer = bytes(request)
    if word == "environment":
        names = ("TORCH_REMOTE_TEST_OTHER", "TORCH_REMOTE_TOKEN")
        text = "".join(f"{name}={os.environ.get(name)};" for name in names).encode()
        answer = struct.pack("<QQQ", 1, 24, len(text)) + text
    if word == "outside":
        answer = struct.pack("<QQQ", 1, 1 << 40, 8)
    if word == "overflow":
        answer = struct.pack("<QQQ", 1, (1 << 64) - 8, 16)
    if word == "many":
        answer = struct.pack("<Q", 1 << 60)
    if word == "none":
        answer = b"abc"
    descriptor = os.memfd_create("answer")
    os.write(descriptor, answer)
    socket.send_fds(connection, [b"0"], [descriptor])
    os.close(descriptor)
    if word == "leave":
        time.sleep(0.1)
        break
)";

class ServerPythonTest : public ServerTest {
 protected:
  void SetUp() override {
    program = fs::path(::testing::TempDir()) / ("python_" + std::to_string(getpid()) + ".py");
    std::ofstream(program) << kProgram;
    options.python = "python3";
    options.python_program = program;
  }
  void TearDown() override {
    ServerTest::TearDown();
    fs::remove(program);
  }

  // Returns the sequence of the call.
  uint64_t call(const std::string& word, const std::vector<uint64_t>& buffers, uint64_t first_result_id,
                const std::vector<int64_t>& sizes = {4}) {
    FlatBufferBuilder builder;
    std::vector<flatbuffers::Offset<wire::CallInput>> inputs;
    for (const uint64_t buffer : buffers) {
      const std::vector<int64_t> strides(sizes.size(), 1);
      const auto encoded = builder.CreateVector(sizes), encoded_strides = builder.CreateVector(strides);
      inputs.push_back(wire::CreateCallInput(builder, buffer, 4, encoded, encoded_strides, 0));
    }
    builder.Finish(wire::CreateCallFunction(builder, builder.CreateVector(inputs), first_result_id));
    send(Type::kCallFunction, builder, bytes(word.data(), word.size()), wire::kAttachment | wire::kWantsReply);
    return sequence;
  }
  void end(uint64_t its, bool kill, uint64_t drop_results_from = 0) {
    FlatBufferBuilder builder;
    builder.Finish(wire::CreateCancelFunction(builder, its, kill, drop_results_from));
    send(Type::kCancelFunction, builder);
  }
  // Waits for the next call that ends; returns the error's text, or an empty string.
  std::string wait() {
    Frame frame;
    if (!receive(Type::kCallFunctionReply, &frame)) return "no reply";
    answered = frame.header.sequence;
    const auto* reply = wire::verify<wire::CallFunctionReply>(frame.control);
    EXPECT_NE(reply, nullptr);
    results.clear();
    if (reply->sizes()) results.assign(reply->sizes()->begin(), reply->sizes()->end());
    answer.clear();
    if (frame.attachment) {
      const auto text = frame.attachment->bytes();
      answer.assign(reinterpret_cast<const char*>(text.data()), text.size());
    }
    return reply->error() ? reply->error()->message()->str() : "";
  }

  fs::path program;
  ServerOptions options;
  uint64_t answered = 0;
  std::vector<uint64_t> results;
  std::string answer;
};

TEST_F(ServerPythonTest, TensorsGoThereAndComeBack) {
  start(options);
  ASSERT_EQ(hello(), "");
  upload(1, {1, 2, 3, 4});
  upload(2, {5, 6, 7, 8});
  const uint64_t its = call("echo", {1, 2}, 100);
  EXPECT_EQ(wait(), "");
  EXPECT_EQ(answered, its);
  EXPECT_EQ(answer, "echo");
  EXPECT_EQ(results, (std::vector<uint64_t>{16, 16}));
  EXPECT_EQ(read(100, {4}, {1}), (Floats{1, 2, 3, 4}));
  EXPECT_EQ(read(101, {4}, {1}), (Floats{5, 6, 7, 8}));
}

TEST_F(ServerPythonTest, NobodyWhoMayNotCallsAnything) {
  options.python.clear();
  options.python_program = "/bin/false";
  start(options);
  ASSERT_EQ(hello(), "");
  upload(1, {1, 2, 3, 4});
  for (int i = 0; i < 3; ++i) {
    call("echo", {1}, 100);
    EXPECT_NE(wait().find("start it with --allow-python"), std::string::npos);
    end(sequence, true);
    end(sequence, false, 100);
  }
  EXPECT_EQ(read(1, {4}, {1}), (Floats{1, 2, 3, 4}));
}

TEST_F(ServerPythonTest, AProcessThatDiesOrLiesFailsItsCall) {
  start(options);
  ASSERT_EQ(hello(), "");
  upload(1, {1, 2, 3, 4});
  call("die", {1}, 100);
  EXPECT_NE(wait().find("exited with status 3 before"), std::string::npos);
  for (const char* word : {"outside", "overflow", "many", "none"}) {
    call(word, {}, 100);
    EXPECT_NE(wait().find("no answer"), std::string::npos) << word;
  }
  call("echo", {1}, 100);
  EXPECT_EQ(wait(), "");
  EXPECT_EQ(read(100, {4}, {1}), (Floats{1, 2, 3, 4}));
}

TEST_F(ServerPythonTest, CallsAreInterruptedAndEnded) {
  start(options);
  ASSERT_EQ(hello(), "");
  upload(1, {1, 2, 3, 4});
  call("echo", {}, 100);
  EXPECT_EQ(wait(), "");
  const uint64_t sleeps = call("sleep", {1}, 1000);
  end(sleeps + 1000, true);  // Not the number of a call.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  end(sleeps, false);
  EXPECT_EQ(wait(), "");
  EXPECT_EQ(read(1000, {4}, {1}), (Floats{1, 2, 3, 4}));
  end(sleeps, false, 1000);  // Too late: the results are freed.
  std::string error;
  (void)read(1000, {4}, {1}, &error);
  EXPECT_NE(error, "");
  const uint64_t deaf = call("deaf", {1}, 2000);
  end(deaf, true);
  EXPECT_NE(wait().find("killed by signal 9"), std::string::npos);
  const uint64_t unwanted = call("sleep", {1}, 3000);
  end(unwanted, false, 3000);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  end(unwanted, false);
  EXPECT_NE(wait().find("nobody wants"), std::string::npos);
  (void)read(3000, {4}, {1}, &error);
  EXPECT_NE(error, "");
}

TEST_F(ServerPythonTest, ACallThatAnEndingProcessGetsIsDoneByAnother) {
  start(options);
  ASSERT_EQ(hello(), "");
  for (int i = 0; i < 5; ++i) {
    call("leave", {}, 100);
    EXPECT_EQ(wait(), "");
    call("echo", {}, 100);
    EXPECT_EQ(wait(), "");
    EXPECT_EQ(answer, "echo");
  }
  // A call that was ended does not start again elsewhere.
  call("leave", {}, 100);
  EXPECT_EQ(wait(), "");
  end(call("sleep", {}, 100), true);
  EXPECT_NE(wait().find("killed by signal 9"), std::string::npos);
  call("die", {}, 100);
  EXPECT_NE(wait().find("exited with status 3"), std::string::npos);
}

TEST_F(ServerPythonTest, FunctionsDoNotSeeTheToken) {
  setenv("TORCH_REMOTE_TOKEN", "0123456789abcdef-secret", 1);
  setenv("TORCH_REMOTE_TEST_OTHER", "seen", 1);
  start(options);
  ASSERT_EQ(hello(), "");
  call("environment", {}, 100);
  EXPECT_EQ(wait(), "");
  EXPECT_EQ(answer, "TORCH_REMOTE_TEST_OTHER=seen;TORCH_REMOTE_TOKEN=None;");
  unsetenv("TORCH_REMOTE_TOKEN");
}

TEST_F(ServerPythonTest, MoreCallsThanProcessesWait) {
  start(options);
  ASSERT_EQ(hello(), "");
  const unsigned count = std::max(kMostProcesses, std::thread::hardware_concurrency()) + 2;
  std::vector<uint64_t> all;
  for (unsigned i = 0; i < count; ++i) all.push_back(call("die", {}, 100 + i * kMostParts));
  for (unsigned i = 0; i < count; ++i) EXPECT_NE(wait().find("exited with status 3"), std::string::npos);
  call("echo", {}, 10);
  EXPECT_EQ(wait(), "");
}

TEST_F(ServerPythonTest, MemoryOfCallsCounts) {
  options.memory_limit = 64 << 20;
  start(options);
  ASSERT_EQ(hello(), "");
  upload(1, std::vector<float>(4'000'000));
  call("echo", {1, 1, 1}, 100, {4'000'000});
  EXPECT_NE(wait().find("none left for a call"), std::string::npos);
  for (int i = 0; i < 8; ++i) {  // The memory is released.
    call("echo", {1}, 200 + static_cast<uint64_t>(i), {0});
    EXPECT_EQ(wait(), "");
    call("die", {1}, 1000, {4'000'000});
    EXPECT_NE(wait().find("exited with status 3"), std::string::npos);
  }
}

TEST_F(ServerPythonTest, WrongBuffersAndMissingInterpretersAreTold) {
  start(options);
  ASSERT_EQ(hello(), "");
  call("echo", {77}, 100);
  EXPECT_NE(wait(), "");
  upload(1, {1, 2});
  call("echo", {1}, 100, {400});
  EXPECT_NE(wait(), "");
  call("echo", std::vector<uint64_t>(kMostParts, 1), 100, {1});
  EXPECT_NE(wait().find("too many tensors"), std::string::npos);
  TearDown();
  SetUp();
  options.python = "/no/such/python";
  sequence = 0;
  start(options);
  ASSERT_EQ(hello(), "");
  call("echo", {}, 100);
  EXPECT_NE(wait().find("cannot start '/no/such/python'"), std::string::npos);
}

TEST_F(ServerPythonTest, MessagesThatSayNothingEndTheSession) {
  for (const int what : {0, 1, 2, 3}) {
    sequence = 0;
    start(options);
    ASSERT_EQ(hello(), "");
    FlatBufferBuilder builder;
    if (what == 0) call("echo", {}, 0);
    if (what == 1) call("echo", {}, UINT64_MAX);
    if (what == 2) {
      builder.Finish(wire::CreateCallFunction(builder, 0, 100));
      send(Type::kCallFunction, builder, nullptr, wire::kWantsReply);
    }
    if (what == 3) end(1, false, UINT64_MAX);
    thread.join();
    EXPECT_EQ(result.code(), ErrorCode::kInvalid) << result.message();
    client.reset();
  }
}

}  // namespace
}  // namespace torch_remote::worker
