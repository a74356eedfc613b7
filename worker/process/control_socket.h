#pragma once

#include <string>

#include "ir/status.h"

// Messages between a listener and a session's process. A message has one byte for its type and a short body; a
// descriptor may come with it.
namespace torch_remote::worker {

enum class Control : char {
  // From the session: its client is authenticated and asks to be admitted. Body: the session's routing key.
  kAdmissionRequest = 'a',
  kAdmitted = 'y',   // To the session: the client is admitted.
  kRefused = 'n',    // To the session: the client is refused. Body: the reason.
  kReconnect = 'r',  // To the session: its client reconnects. Body: the client hello; the socket comes with it.
};

struct ControlMessage {
  Control type{};
  std::string body;
  int descriptor = -1;  // The receiver closes it.
};

// Creates the two ends; the caller closes them.
Status make_control_sockets(int ends[2]);
// Returns false if the other end is gone, or cannot take more now.
bool send_control(int socket, Control type, const std::string& body, int descriptor = -1);
// Returns kTimeout if there is no message, kLost if the other end is gone.
Status receive_control(int socket, ControlMessage* message);

}  // namespace torch_remote::worker
