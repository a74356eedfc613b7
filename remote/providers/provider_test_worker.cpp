// A worker for provider_test that echoes every frame. $TEST_WORKER selects how it misbehaves.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include "remote/transport/transport.h"

using namespace torch_remote::remote;

int main(int argc, char** argv) {
  const char* setting = std::getenv("TEST_WORKER");
  const std::string mode = setting ? setting : "";
  if (mode == "exit") return 3;
  if (mode == "stubborn") std::signal(SIGTERM, SIG_IGN);
  std::string text;
  for (int i = 1; i < argc; ++i) text += std::string(argv[i]) + " ";
  text += std::getenv("TORCH_REMOTE_TORCH_LIB");
  for (int descriptor = 4; descriptor < 64; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0) text += " open:" + std::to_string(descriptor);
  }
  if (getpgrp() != getpid()) text += " group";
  auto transport = make_unix_transport(std::atoi(argv[2]));
  torch_remote::wire::Header header;
  header.type = 1;
  const std::span<const uint8_t> control(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  if (!transport->send(header, control, nullptr)) return 4;
  for (;;) {
    Frame frame;
    const auto status = transport->receive(&frame, std::chrono::hours(1));
    if (mode == "stubborn") {
      for (;;) pause();
    }
    if (!status.ok()) return 0;
    if (mode == "crash") std::raise(SIGUSR1);
    if (!transport->send(frame.header, frame.control, frame.attachment).ok()) return 0;
  }
}
