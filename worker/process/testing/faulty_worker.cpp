#include <cstdlib>
#include <string>
#include <utility>

#include "worker/process/main.h"
#include "worker/runner/testing/faulty_runner.h"
#include "worker/targets/target.h"

// For tests: the worker on a CPU, whose results of the op in $TORCH_REMOTE_TEST_FAULT are wrong.
int main(int argc, char** argv) {
  using namespace torch_remote;
  using namespace torch_remote::worker;
  const char* op = std::getenv("TORCH_REMOTE_TEST_FAULT");
  static const testing::Fault fault = testing::add_to_results_of(op ? op : "aten::tanh", 0.5f);
  std::vector<Target> targets = all_targets();
  targets.front().open = [open = targets.front().open](const std::string& id) -> DeviceOpener {
    return [inner = open(id)](remote::Transport& transport, const DeviceOptions& options,
                              std::function<tr_client_activity()> activity, OpenDevice* opened) {
      Status status = inner(transport, options, std::move(activity), opened);
      for (auto& runner : opened->runners) runner = testing::make_faulty_runner(std::move(runner), fault);
      return status;
    };
  };
  return run_worker(argc, argv, targets);
}
