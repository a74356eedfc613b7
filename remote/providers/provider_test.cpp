#include "remote/providers/provider.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 60s;

class ProviderTest : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("TEST_WORKER");
    char name[] = "/tmp/provider_test.XXXXXX";  // short, because a socket path has at most 107 bytes
    folder = mkdtemp(name);
    for (const char* name : {"plugin.so", "libtorch_cpu.so", "not_executable"})
      std::ofstream(folder + "/" + name) << "x";
    options = {"remote/providers/provider_test_worker", folder + "/plugin.so", folder, 0, ""};
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  // Starts the worker and returns its first message: its arguments and environment.
  std::string start() {
    const Status status = start_local_worker(options, &worker);
    EXPECT_TRUE(status.ok()) << status.message();
    transport = worker->take_transport();
    Frame frame;
    if (!transport->receive(&frame, kLong).ok()) return {};
    return {frame.control.begin(), frame.control.end()};
  }

  std::string folder;
  LocalWorkerOptions options;
  std::unique_ptr<WorkerHandle> worker;
  std::unique_ptr<Transport> transport;
};

bool exists(int pid) { return kill(pid, 0) == 0; }

TEST_F(ProviderTest, StartsAWorkerWithItsArgumentsAndNothingOfOurs) {
  const int inheritable = open("/dev/null", O_RDONLY);  // inheritable, because it has no O_CLOEXEC
  options.threads = 5;
  EXPECT_EQ(start(), "--socket-fd 3 --plugin " + folder + "/plugin.so --allow-files=/ --threads 5 " + folder);
  close(inheritable);
  EXPECT_GT(worker->process(), 0);
  EXPECT_TRUE(exists(worker->process()));
}

TEST_F(ProviderTest, FramesAndSharedMemoryCrossTheProcessBoundary) {
  start();
  AttachmentPtr attachment = transport->allocate(1'000'000);
  std::ranges::fill(attachment->bytes(), std::byte{7});
  ASSERT_TRUE(transport->send({}, {}, attachment).ok());
  Frame frame;
  ASSERT_TRUE(transport->receive(&frame, kLong).ok());
  // The worker sent our own memory back.
  EXPECT_EQ(frame.attachment->bytes().data(), attachment->bytes().data());
  EXPECT_EQ(frame.attachment->bytes().size(), 1'000'000u);
}

TEST_F(ProviderTest, DestroyingTheWorkerEndsItsProcess) {
  start();
  const int pid = worker->process();
  transport = nullptr;
  worker = nullptr;
  EXPECT_FALSE(exists(pid));
}

TEST_F(ProviderTest, AWorkerThatWillNotEndIsKilled) {
  setenv("TEST_WORKER", "stubborn", 1);
  start();
  const int pid = worker->process();
  transport = nullptr;
  worker = nullptr;
  EXPECT_FALSE(exists(pid));
}

TEST_F(ProviderTest, LossSaysHowTheProcessEnded) {
  setenv("TEST_WORKER", "exit", 1);
  ASSERT_TRUE(start_local_worker(options, &worker).ok());
  transport = worker->take_transport();
  Frame frame;
  Status status = transport->receive(&frame, kLong);
  EXPECT_EQ(status.code(), ErrorCode::kLost);
  EXPECT_EQ(status.message(),
            "remote: the worker (pid " + std::to_string(worker->process()) + ") exited with status 3");

  unsetenv("TEST_WORKER");
  start();
  kill(worker->process(), SIGKILL);
  status = transport->receive(&frame, kLong);
  EXPECT_EQ(status.code(), ErrorCode::kLost);
  EXPECT_NE(status.message().find("was killed by signal 9"), std::string::npos) << status.message();

  setenv("TEST_WORKER", "crash", 1);
  start();
  ASSERT_TRUE(transport->send({}, {}, nullptr).ok());
  status = transport->receive(&frame, kLong);
  EXPECT_NE(status.message().find("was killed by signal 10"), std::string::npos) << status.message();
}

TEST_F(ProviderTest, TheWorkerDiesWithItsParent) {
  int pids[2];
  ASSERT_EQ(pipe(pids), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    std::unique_ptr<WorkerHandle> its;
    int pid = -1;
    if (start_local_worker(options, &its).ok()) pid = its->process();
    (void)!write(pids[1], &pid, sizeof(pid));
    raise(SIGKILL);
  }
  int pid = -1;
  ASSERT_EQ(read(pids[0], &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
  waitpid(parent, nullptr, 0);
  ASSERT_GT(pid, 0);
  // The child now belongs to the init process, which may leave it a zombie. A zombie has no memory map.
  const auto running = [&] {
    std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
    return maps.is_open() && maps.peek() != std::ifstream::traits_type::eof();
  };
  for (int i = 0; i < 10'000 && running(); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(running());
  close(pids[0]);
  close(pids[1]);
}

TEST_F(ProviderTest, AnAbandonedWorkerIsLeftAlone) {
  start();
  const int pid = worker->process();
  const pid_t child = fork();
  if (child == 0) {
    transport.release()->abandon();
    worker->abandon();
    worker = nullptr;
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(exists(pid));
  ASSERT_TRUE(transport->send({}, {}, nullptr).ok());
  Frame frame;
  EXPECT_TRUE(transport->receive(&frame, kLong).ok());
}

TEST_F(ProviderTest, ErrorsNameTheFileAndTheFix) {
  const auto message = [&](auto change) {
    LocalWorkerOptions broken = options;
    change(broken);
    const Status status = start_local_worker(broken, &worker);
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    return status.message();
  };
  EXPECT_EQ(message([](auto& o) { o.binary = "/no/such/worker"; }),
            "remote: the worker's program '/no/such/worker': No such file or directory; install torch-remote again "
            "(pip install "
            "--force-reinstall torch-remote)");
  EXPECT_NE(message([](auto& o) { o.plugin = "/no/such/plugin.so"; }).find("'/no/such/plugin.so'"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.torch_lib = "/no/such/torch"; }).find("'/no/such/torch/libtorch_cpu.so'"),
            std::string::npos);
  const std::string not_executable = message([&](auto& o) { o.binary = folder + "/not_executable"; });
  EXPECT_NE(not_executable.find(folder + "/not_executable"), std::string::npos) << not_executable;
  EXPECT_NE(not_executable.find("chmod +x"), std::string::npos) << not_executable;
}

TEST_F(ProviderTest, AProgramOfAnotherKindCannotBeStarted) {
  options.binary = folder + "/not_executable";
  chmod(options.binary.c_str(), 0755);
  const Status status = start_local_worker(options, &worker);
  EXPECT_NE(status.message().find("cannot start the worker " + options.binary), std::string::npos) << status.message();
}

TEST_F(ProviderTest, ConnectsToAListeningWorker) {
  const std::string path = folder + "/socket";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(listener, 0) << strerror(errno);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << strerror(errno);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_TRUE(connect_unix_worker(path, &worker).ok());
  EXPECT_EQ(worker->process(), -1);
  auto server = make_unix_transport(accept(listener, nullptr, nullptr));
  transport = worker->take_transport();
  ASSERT_TRUE(transport->send({}, {}, nullptr).ok());
  Frame frame;
  EXPECT_TRUE(server->receive(&frame, kLong).ok());
  close(listener);
  server = nullptr;
  const Status refused = connect_unix_worker(path, &worker);
  EXPECT_EQ(refused.code(), ErrorCode::kLost);
  EXPECT_NE(refused.message().find("torch-remote-worker --listen unix://" + path), std::string::npos)
      << refused.message();
}

TEST_F(ProviderTest, NoSocketOrAnImpossiblePathIsAClearError) {
  EXPECT_NE(connect_unix_worker(folder + "/none", &worker).message().find("No such file"), std::string::npos);
  EXPECT_EQ(connect_unix_worker(std::string(200, 'x'), &worker).code(), ErrorCode::kInvalid);
  EXPECT_EQ(connect_unix_worker("", &worker).code(), ErrorCode::kInvalid);
}

}  // namespace
}  // namespace torch_remote::remote
