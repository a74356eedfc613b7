#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "ir/status.h"

namespace torch_remote::remote {

// Bytes to and from another process, in order. Nothing here waits: whoever has to, polls the descriptors. One thread
// may read while another one writes.
class ByteStream {
 public:
  virtual ~ByteStream() = default;  // closes it

  // Takes what is there, as far as `to` has room: *bytes; 0 at the end of the stream. kTimeout: nothing is there now,
  // not in memory of this end's either; kLost: it broke. `descriptors`: where those that came along go.
  virtual Status read(std::span<const iovec> to, size_t* bytes, std::deque<int>* descriptors) = 0;
  // Sends what the other end takes now, from the first byte on: *bytes. kTimeout: nothing; the next call must begin
  // with the same bytes. `*descriptor`, if it is not -1, goes along with the first byte, is closed and set to -1; only
  // Unix sockets can.
  virtual Status write(std::span<const iovec> from, size_t* bytes, int* descriptor) = 0;

  // What to poll before reading and writing; they may be the same.
  virtual int input() const = 0;
  virtual int output() const = 0;

  // Ends it in both directions, for both ends, without closing. From any thread.
  virtual void shut_down() = 0;
  // In a forked child: closes the child's descriptors and does nothing else.
  virtual void abandon() = 0;

  // The process at the other end, if it is another one on this machine, else 0.
  virtual int peer_process() const { return 0; }
  // As Transport's.
  virtual bool is_peer(int process) const { return process != 0 && process == peer_process(); }
  virtual std::string description() const = 0;
};

// Whether that process is another one on this machine and has the other end of this TCP connection. False, too, if this
// process may not look.
bool is_tcp_peer(int socket, int process);

// A connected stream socket: Unix or TCP. Owns the descriptor.
std::unique_ptr<ByteStream> make_socket_stream(int socket, std::string description);
// Two pipes, or a socket twice: a program's standard input and output. Owns both. The process must ignore SIGPIPE.
std::unique_ptr<ByteStream> make_pipe_stream(int input, int output, std::string description);

}  // namespace torch_remote::remote
