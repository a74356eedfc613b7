#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "ir/status.h"

namespace torch_remote::remote {

// An ordered stream of bytes to and from another process. No call blocks; a caller that must wait polls the
// descriptors. One thread may read while another one writes.
class ByteStream {
 public:
  virtual ~ByteStream() = default;  // closes the stream

  // Reads the available bytes, as many as fit into `to`; *bytes is 0 at the end of the stream. Returns kTimeout if none
  // are available, neither from the kernel nor in this end's own buffers, and kLost if the stream broke. Descriptors
  // that came along are appended to `descriptors`.
  virtual Status read(std::span<const iovec> to, size_t* bytes, std::deque<int>* descriptors) = 0;
  // Sends as many bytes as the other end accepts now; *bytes is their number. Returns kTimeout if it accepts none; the
  // next call must then begin with the same bytes. If `*descriptor` is not -1, it is sent along with the first byte,
  // closed and set to -1. Only Unix sockets support this.
  virtual Status write(std::span<const iovec> from, size_t* bytes, int* descriptor) = 0;

  // The descriptors to poll before reading and writing; they may be the same.
  virtual int input() const = 0;
  virtual int output() const = 0;

  // Ends the stream in both directions and for both ends, without closing it. Any thread may call this.
  virtual void shut_down() = 0;
  // For a forked child: closes the child's descriptors and does nothing else.
  virtual void abandon() = 0;

  // The other end's process id if it is another process on this machine, else 0.
  virtual int peer_process() const { return 0; }
  // As Transport::is_peer.
  virtual bool is_peer(int process) const { return process != 0 && process == peer_process(); }
  virtual std::string description() const = 0;
};

// Whether `process` is another process on this machine that has the other end of this TCP connection. Also false if
// this process may not read its /proc entry.
bool is_tcp_peer(int socket, int process);

// Calls sendmsg with MSG_NOSIGNAL and `flags`, again if a signal interrupts it. If `descriptor` is not -1, it is sent
// along with the bytes; only Unix sockets support this.
ssize_t send_pieces(int socket, std::span<const iovec> pieces, int descriptor, int flags);
// Calls recvmsg on a Unix socket with `flags`, again if a signal interrupts it. *descriptor becomes the descriptor that
// was sent along, which the caller must close, or -1. The kernel closes any further ones.
ssize_t receive_piece(int socket, std::span<char> bytes, int* descriptor, int flags);

// Makes a stream of a connected Unix or TCP socket, whose descriptor it owns.
std::unique_ptr<ByteStream> make_socket_stream(int socket, std::string description);
// Makes a stream of two pipes, or of a socket passed twice, such as standard input and output. It owns both
// descriptors. The process must ignore SIGPIPE.
std::unique_ptr<ByteStream> make_pipe_stream(int input, int output, std::string description);

}  // namespace torch_remote::remote
