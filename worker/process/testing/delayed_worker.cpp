#include "worker/process/main.h"
#include "worker/server/testing/delayed.h"

// For tests: the worker, on a device that does its work late and whose memory only the device can access.
int main(int argc, char** argv) {
  using namespace torch_remote::worker;
  std::vector<Target> targets = all_targets();
  targets.front().open = [](const std::string&) { return testing::open_delayed_device; };
  return run_worker(argc, argv, targets);
}
