#include "remote/transport/byte_stream.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

namespace torch_remote::remote {
namespace {

constexpr size_t kMaxDescriptors = 16;  // in one message; our own ends send one at a time

Status timed_out() { return {ErrorCode::kTimeout, "remote: timeout"}; }
Status broken() { return {ErrorCode::kLost, std::strerror(errno)}; }
bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// An address as /proc/net/tcp writes it: "0100007F:1F90".
std::string table_name(const sockaddr_storage& address) {
  char text[48] = "";
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    std::snprintf(text, sizeof(text), "%08X:%04X", in.sin_addr.s_addr, ntohs(in.sin_port));
  } else if (address.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
    uint32_t words[4];
    std::memcpy(words, &in.sin6_addr, sizeof(words));
    std::snprintf(text, sizeof(text), "%08X%08X%08X%08X:%04X", words[0], words[1], words[2], words[3],
                  ntohs(in.sin6_port));
  }
  return text;
}

// The other end's socket as /proc/PID/fd names it, "socket:[1234]"; empty if that socket is not on this machine.
std::string peers_socket(int socket) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
    return "";
  }
  const std::string from = table_name(peer), to = table_name(own);
  if (from.empty()) return "";
  std::ifstream table(own.ss_family == AF_INET6 ? "/proc/net/tcp6" : "/proc/net/tcp");
  for (std::string line; std::getline(table, line);) {
    char local[48] = "", remote[48] = "";
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), " %*d: %47s %47s %*s %*s %*s %*s %*s %*s %lu", local, remote, &inode) != 3) continue;
    if (local == from && remote == to && inode != 0) return "socket:[" + std::to_string(inode) + "]";
  }
  return "";
}

}  // namespace

bool is_tcp_peer(int socket, int process) {
  const std::string theirs = process != getpid() ? peers_socket(socket) : "";
  const std::string folder = "/proc/" + std::to_string(process) + "/fd/";
  const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(theirs.empty() ? nullptr : opendir(folder.c_str()), closedir);
  while (descriptors) {
    const dirent* entry = readdir(descriptors.get());
    if (entry == nullptr) break;
    char target[64];
    const ssize_t size = readlink((folder + entry->d_name).c_str(), target, sizeof(target));
    if (size > 0 && theirs == std::string_view(target, static_cast<size_t>(size))) return true;
  }
  return false;
}

ssize_t send_pieces(int socket, std::span<const iovec> pieces, int descriptor, int flags) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))];
  if (descriptor >= 0) {
    message.msg_control = ancillary;
    message.msg_controllen = sizeof(ancillary);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &descriptor, sizeof(int));
  }
  return TEMP_FAILURE_RETRY(sendmsg(socket, &message, MSG_NOSIGNAL | flags));
}

ssize_t receive_piece(int socket, std::span<char> bytes, int* descriptor, int flags) {
  *descriptor = -1;
  iovec piece{bytes.data(), bytes.size()};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = ancillary;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // without its padding, which has space for a second descriptor
  const ssize_t n = TEMP_FAILURE_RETRY(recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags));
  const cmsghdr* part = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (part != nullptr && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
    std::memcpy(descriptor, CMSG_DATA(part), sizeof(int));
  }
  return n;
}

namespace {

class SocketStream : public ByteStream {
 public:
  SocketStream(int socket, std::string description) : socket_(socket), description_(std::move(description)) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    is_unix_ = getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0 && address.ss_family == AF_UNIX;
  }
  ~SocketStream() override {
    if (!is_unix_) linger();
    ::close(socket_);
  }

  Status read(std::span<const iovec> to, size_t* bytes, std::deque<int>* descriptors) override {
    alignas(cmsghdr) char ancillary[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(to.data());
    message.msg_iovlen = to.size();
    if (is_unix_ && descriptors != nullptr) {
      message.msg_control = ancillary;
      message.msg_controllen = sizeof(ancillary);
    }
    const ssize_t n = TEMP_FAILURE_RETRY(recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
    if (n < 0) return would_block() ? timed_out() : broken();
    *bytes = static_cast<size_t>(n);
    if (descriptors != nullptr && message.msg_controllen != 0) keep_descriptors(message, *descriptors);
    if (message.msg_flags & MSG_CTRUNC) {
      return Status::invalid("remote: more descriptors came than this process may have open; raise `ulimit -n`");
    }
    return {};
  }

  Status write(std::span<const iovec> from, size_t* bytes, int* descriptor) override {
    const ssize_t n = send_pieces(socket_, from, *descriptor, MSG_DONTWAIT);
    if (n >= 0) {
      if (*descriptor >= 0) ::close(std::exchange(*descriptor, -1));
      *bytes = static_cast<size_t>(n);
      return {};
    }
    if (errno == ETOOMANYREFS) {  // too many descriptors are in flight, which poll does not report
      usleep(1000);
      return timed_out();
    }
    return would_block() ? timed_out() : broken();
  }

  int input() const override { return socket_; }
  int output() const override { return socket_; }
  void shut_down() override { shutdown(socket_, SHUT_RDWR); }
  void abandon() override { ::close(socket_); }

  int peer_process() const override {
    ucred peer{};
    socklen_t size = sizeof(peer);
    // For a socketpair the kernel reports the process that created it, which may be this one.
    const bool known =
        is_unix_ && getsockopt(socket_, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid != getpid();
    return known && peer.pid > 0 ? peer.pid : 0;
  }
  bool is_peer(int process) const override {
    return is_unix_ ? ByteStream::is_peer(process) : is_tcp_peer(socket_, process);
  }
  std::string description() const override {
    const int peer = peer_process();
    return peer != 0 ? description_ + ", pid " + std::to_string(peer) : description_;
  }

 private:
  // If a TCP socket is closed with unread bytes, the kernel drops what the peer has not received yet. So we read them
  // first.
  void linger() const {
    shutdown(socket_, SHUT_WR);
    char bytes[4096];
    for (int i = 0; i < 256 && recv(socket_, bytes, sizeof(bytes), MSG_DONTWAIT) > 0; ++i) {
    }
  }

  static void keep_descriptors(msghdr& message, std::deque<int>& descriptors) {
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int descriptor;
        std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
        descriptors.push_back(descriptor);
      }
    }
  }

  const int socket_;
  const std::string description_;
  bool is_unix_ = false;
};

class PipeStream final : public ByteStream {
 public:
  PipeStream(int input, int output, std::string description)
      : input_(input), output_(output), description_(std::move(description)) {
    for (const int pipe : {input_, output_}) fcntl(pipe, F_SETFL, fcntl(pipe, F_GETFL) | O_NONBLOCK);
    fcntl(output_, F_SETPIPE_SZ, 1 << 20);  // fewer context switches between the two ends; a hint that may fail
  }
  ~PipeStream() override { abandon(); }

  Status read(std::span<const iovec> to, size_t* bytes, std::deque<int>*) override {
    if (ended_) {
      *bytes = 0;
      return {};
    }
    const ssize_t n = TEMP_FAILURE_RETRY(readv(input_, to.data(), static_cast<int>(to.size())));
    if (n < 0) return would_block() ? timed_out() : broken();
    *bytes = static_cast<size_t>(n);
    return {};
  }

  Status write(std::span<const iovec> from, size_t* bytes, int*) override {
    if (ended_) return {ErrorCode::kLost, "it was closed"};
    const ssize_t n = TEMP_FAILURE_RETRY(writev(output_, from.data(), static_cast<int>(from.size())));
    if (n < 0) return would_block() ? timed_out() : broken();
    *bytes = static_cast<size_t>(n);
    return {};
  }

  int input() const override { return input_; }
  int output() const override { return output_; }
  // Pipes have no shutdown(). Instead we replace both descriptors, under the same numbers, by pipes whose other end is
  // closed.
  void shut_down() override {
    ended_ = true;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return;
    dup3(ends[0], input_, O_CLOEXEC);
    if (output_ != input_) dup3(ends[1], output_, O_CLOEXEC);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  void abandon() override {
    ::close(input_);
    if (output_ != input_) ::close(output_);
  }
  std::string description() const override { return description_; }

 private:
  const int input_;
  const int output_;
  const std::string description_;
  std::atomic<bool> ended_{false};
};

}  // namespace

std::unique_ptr<ByteStream> make_socket_stream(int socket, std::string description) {
  return std::make_unique<SocketStream>(socket, std::move(description));
}

std::unique_ptr<ByteStream> make_pipe_stream(int input, int output, std::string description) {
  return std::make_unique<PipeStream>(input, output, std::move(description));
}

}  // namespace torch_remote::remote
