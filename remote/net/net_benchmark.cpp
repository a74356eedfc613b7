// Measures the throughput of transports relative to a bare socket: 64 MiB attachments, sent repeatedly over loopback.
#include <fcntl.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "remote/net/resuming_transport.h"
#include "remote/net/testing/net_pairs.h"
#include "remote/transport/stream_transport.h"

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kSize = size_t{64} << 20;
constexpr int kTimes = 24;

// In GB/s. `wall` is measured by wall-clock time. `processor` is measured by the CPU time of the busier end, as if each
// end had a core of its own.
struct Rate {
  double wall = 0, processor = 0;
};

double thread_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Rate rate(const std::function<void()>& sends, const std::function<void()>& receives) {
  std::vector<double> walls, processors;
  for (int round = 0; round < 5; ++round) {
    const auto begin = Clock::now();
    const double mine = thread_seconds();
    double receiver = 0;
    std::thread other([&] {
      receives();
      receiver = thread_seconds();
    });
    sends();
    const double sender = thread_seconds() - mine;
    other.join();
    const double bytes = static_cast<double>(kSize) * kTimes;
    walls.push_back(bytes / std::chrono::duration<double>(Clock::now() - begin).count());
    processors.push_back(bytes / std::max(sender, receiver));
    std::printf("  sender %4.0f, receiver %4.0f ms/GB\n", 1e12 * sender / bytes, 1e12 * receiver / bytes);
  }
  std::ranges::sort(walls);
  std::ranges::sort(processors);
  return {walls[walls.size() / 2] / 1e9, processors[processors.size() / 2] / 1e9};
}

Rate bare() {
  const auto [a, b] = testing::tcp_sockets();
  std::vector<char> from(kSize, 1), to(kSize, 1);
  fcntl(a, F_SETFL, 0);
  fcntl(b, F_SETFL, 0);
  const Rate result = rate(
      [&, a = a] {
        for (int i = 0; i < kTimes; ++i) {
          for (size_t at = 0; at < kSize;)
            at += static_cast<size_t>(std::max<ssize_t>(send(a, &from[at], kSize - at, 0), 0));
        }
      },
      [&, b = b] {
        for (int i = 0; i < kTimes; ++i) {
          for (size_t at = 0; at < kSize;)
            at += static_cast<size_t>(std::max<ssize_t>(recv(b, &to[at], kSize - at, 0), 0));
        }
      });
  close(a);
  close(b);
  return result;
}

Rate frames(Transport& from, Transport& to) {
  return rate(
      [&] {
        for (int i = 0; i < kTimes; ++i) {
          wire::Header header;
          header.type = static_cast<uint8_t>(wire::Type::kUpload);
          if (!from.send(header, {}, from.allocate(kSize)).ok()) std::abort();
        }
      },
      [&] {
        Frame frame;
        for (int i = 0; i < kTimes; ++i) {
          if (!to.receive(&frame, 60s).ok()) std::abort();
        }
      });
}

std::unique_ptr<Transport> resuming(std::unique_ptr<ByteStream> stream) {
  ResumingTransport::Options options;
  options.max_unacknowledged_bytes = size_t{512} << 20;
  return std::make_unique<ResumingTransport>(
      ResumingTransport::Connection{std::make_unique<StreamTransport>(std::move(stream), StreamTransport::Options()),
                                    0},
      options, [](bool, std::chrono::milliseconds, const ResumingTransport::Freeze&, ResumingTransport::Connection*) {
        return Status(ErrorCode::kUnsupported, "gone");
      });
}

void run() {
  const Rate socket = bare();
  std::printf("bare socket          %5.2f GB/s, by processor time %5.2f GB/s\n", socket.wall, socket.processor);
  const auto print = [socket](const char* what, const Rate& value) {
    std::printf("%-20s %5.2f GB/s, %3.0f %%, by processor time %5.2f GB/s, %3.0f %%\n", what, value.wall,
                100 * value.wall / socket.wall, value.processor, 100 * value.processor / socket.processor);
  };
  const auto [a, b] = testing::tcp_sockets();
  const auto tcp_a = resuming(make_socket_stream(a, "tcp")), tcp_b = resuming(make_socket_stream(b, "tcp"));
  print("not encrypted, up", frames(*tcp_a, *tcp_b));
  print("not encrypted, down", frames(*tcp_b, *tcp_a));
  auto [e, f] = testing::key_streams({1}, {1});
  for (const auto& end : {&e, &f}) end->stream->use_large_buffers();
  const auto key_a = resuming(std::move(e.stream)), key_b = resuming(std::move(f.stream));
  print("tcp:// + token, up", frames(*key_a, *key_b));
  print("tcp:// + token, down", frames(*key_b, *key_a));
  const testing::Certificates files;
  auto [c, d] = testing::tls_streams({"", "", files.file("ca.pem")}, files.of("worker"), "127.0.0.1");
  for (const auto& end : {&c, &d}) end->stream->use_large_buffers();
  const auto tls_a = resuming(std::move(c.stream)), tls_b = resuming(std::move(d.stream));
  print("tls://, up", frames(*tls_a, *tls_b));
  print("tls://, down", frames(*tls_b, *tls_a));
}

}  // namespace
}  // namespace torch_remote::remote

int main() { torch_remote::remote::run(); }
