#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "remote/net/tcp.h"

namespace torch_remote::remote::testing {

// A TCP proxy that cuts connections after a random number of bytes.
class CuttingProxy {
 public:
  // Forwards to 127.0.0.1:`to`. Cuts each connection after at most `between` bytes (0: never), until it has made `cuts`
  // cuts.
  CuttingProxy(uint16_t to, uint32_t seed, size_t between, size_t cuts)
      : to_(to), random_(seed), between_(between), cuts_(cuts) {
    bool loopback;
    (void)listen_tcp(&address_, &listener_, &loopback);
    thread_ = std::thread([this] { run(); });
  }
  ~CuttingProxy() {
    ending_ = true;
    thread_.join();
    close(listener_);
  }

  uint16_t port() const { return address_.port; }
  size_t cuts() const { return done_; }
  size_t connections() const { return connections_; }
  // Cuts the current connection.
  void cut() { cut_ = true; }
  // While `stalls` is set, the proxy forwards nothing but keeps the connections open.
  void stall(bool stalls) { stalls_ = stalls; }

 private:
  void run() {
    while (!ending_) {
      if (!ready(listener_)) continue;
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      int worker = -1;
      if (connect_tcp({"127.0.0.1", to_}, Deadline(std::chrono::seconds(10)), &worker).ok()) {
        set_up_tcp(client);
        ++connections_;
        forward(client, worker);
        close(worker);
      }
      close(client);
    }
  }

  static bool ready(int socket) {
    pollfd polled{socket, POLLIN, 0};
    return poll(&polled, 1, 10) > 0;
  }

  // Forwards until one end closes or the cut comes.
  void forward(int a, int b) {
    const bool cuts = between_ > 0 && done_ < cuts_;
    size_t left = cuts ? std::uniform_int_distribution<size_t>(1, between_)(random_) : SIZE_MAX;
    std::vector<char> bytes(64 << 10);
    while (!ending_) {
      if (cut_.exchange(false)) return;
      pollfd polled[] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
      if (stalls_ || poll(polled, 2, 10) <= 0) continue;
      for (const auto& [from, to] : {std::pair(0, b), std::pair(1, a)}) {
        if (polled[from].revents == 0) continue;
        const ssize_t n = recv(polled[from].fd, bytes.data(), std::min(bytes.size(), left), MSG_DONTWAIT);
        if (n <= 0) return;
        if (!pass(to, bytes.data(), static_cast<size_t>(n))) return;
        left -= static_cast<size_t>(n);
        if (left == 0) {
          ++done_;
          // Every second cut is a reset instead of a regular close.
          if (done_ % 2) {
            const linger now{1, 0};
            for (const int socket : {a, b}) setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
          }
          return;
        }
      }
    }
  }

  bool pass(int to, const char* data, size_t size) {
    while (size > 0 && !ending_) {
      const ssize_t n = send(to, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        data += n;
        size -= static_cast<size_t>(n);
        continue;
      }
      if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
      pollfd polled{to, POLLOUT, 0};
      (void)poll(&polled, 1, 10);
    }
    return size == 0;
  }

  const uint16_t to_;
  std::mt19937 random_;
  const size_t between_, cuts_;
  Address address_{"127.0.0.1", 0};
  int listener_ = -1;
  std::atomic<bool> ending_{false}, stalls_{false}, cut_{false};
  std::atomic<size_t> done_{0}, connections_{0};
  std::thread thread_;
};

}  // namespace torch_remote::remote::testing
