#include "worker/process/main.h"
#include "worker/server/testing/delayed.h"

// For tests: the worker, on a device that does its work late and whose memory only the device can access.
int main(int argc, char** argv) {
  return torch_remote::worker::run_worker(argc, argv,
                                          {.open_device = torch_remote::worker::testing::open_delayed_device});
}
