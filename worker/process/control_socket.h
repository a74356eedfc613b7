#pragma once

#include <string>

#include "ir/status.h"

// Between a listener and a session's process: whole messages, of one byte that says what it is and a few more; a
// descriptor may come with one.
namespace torch_remote::worker {

enum class Control : char {
  kAsks = 'a',      // from the session: its client is known, is there room? The session's routing key follows
  kAdmitted = 'y',  // to it: there is
  kRefused = 'n',   // to it: there is not; why follows
  kReturns = 'r',   // to it: its client comes back; the opening follows, the socket comes with it
};

struct ControlMessage {
  Control type{};
  std::string body;
  int descriptor = -1;  // the receiver's to close
};

// Two ends; the caller closes them.
Status make_control_sockets(int ends[2]);
// False if the other end is gone, or cannot take more now.
bool send_control(int socket, Control type, const std::string& body, int descriptor = -1);
// kTimeout if there is nothing, kLost if the other end is gone.
Status receive_control(int socket, ControlMessage* message);

}  // namespace torch_remote::worker
