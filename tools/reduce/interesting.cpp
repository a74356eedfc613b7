#include "tools/reduce/interesting.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tools/runs/execute.h"

namespace torch_remote::tools::reduce {
namespace {

// Runs one graph on one worker.
Status outcome_of(Device& device, const ir::Graph& graph, const RunCase& run, std::span<const OutputView> views,
                  Outcome* outcome) {
  LoadedGraph loaded;
  if (Status status = device.load(std::make_shared<const ir::Graph>(graph), &loaded); !status) return status;
  Inputs inputs;
  if (Status status = upload(device, run.inputs, &inputs); !status) return status;
  device.set_math_modes(run.math_modes);
  Status status = execute(device, loaded, run.params, inputs, views, outcome);
  free(device, inputs);
  return status;
}

class Mismatch : public Test {
 public:
  Mismatch(RestartingWorker& worker, RestartingWorker& other, bool compare_passes, std::span<const passes::Pass> passes,
           const ir::Tolerance& tolerance)
      : worker_(worker), other_(other), compare_passes_(compare_passes), passes_(passes), tolerance_(tolerance) {}

  Status interesting(const RunCase& run, bool* yes) override {
    *yes = false;
    ir::Graph optimized = run.graph;
    if (!passes::run_pipeline(optimized, {passes_, /*verify=*/true, {}})) return {};
    std::vector<int64_t> values;
    if (!ir::evaluate(run.graph, run.params.data(), &values)) return {};
    const std::vector<OutputView> views = output_views(run.graph, values);
    Outcome first, second;
    bool gone = false;
    if (Status status = outcome(worker_, compare_passes_ ? run.graph : optimized, run, views, &first, &gone);
        !status || gone || first.error) {
      return status;
    }
    if (Status status = outcome(other_, optimized, run, views, &second, &gone); !status || gone) return status;
    // All interesting runs must fail in the same way: with different results, or with an op that fails.
    const auto difference = compare(views, first, second, tolerance_);
    *yes = difference && (!known_ || second.error.has_value() == fails_);
    if (!*yes) return {};
    known_ = true;
    fails_ = second.error.has_value();
    finding_ = *difference;
    return {};
  }
  std::string finding() const override { return finding_; }

 private:
  static Status outcome(RestartingWorker& worker, const ir::Graph& graph, const RunCase& run,
                        std::span<const OutputView> views, Outcome* outcome, bool* gone) {
    Device* device = nullptr;
    if (Status status = worker.get(&device); !status) return status;
    Status status = outcome_of(*device, graph, run, views, outcome);
    *gone = worker.lost(status);
    return *gone ? Status() : status;
  }

  RestartingWorker& worker_;
  RestartingWorker& other_;
  const bool compare_passes_;
  const std::span<const passes::Pass> passes_;
  const ir::Tolerance tolerance_;
  bool known_ = false, fails_ = false;
  std::string finding_;
};

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

class Command : public Test {
 public:
  explicit Command(std::string command) : command_(std::move(command)) {
    std::string folder = (std::filesystem::temp_directory_path() / "remote-reduce.XXXXXX").string();
    if (mkdtemp(folder.data())) folder_ = folder;
  }
  ~Command() override {
    std::error_code error;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
  }

  Status interesting(const RunCase& run, bool* yes) override {
    if (folder_.empty()) return Status::invalid("cannot make a folder for temporary files");
    const std::string path = folder_ + "/candidate.rreplay";
    if (Status status = save_case(run, path); !status) return status;
    std::string line = command_;
    constexpr std::string_view kPlace = "{}";
    for (size_t at = line.find(kPlace); at != std::string::npos; at = line.find(kPlace, at)) {
      const std::string name = quoted(path);
      line.replace(at, kPlace.size(), name);
      at += name.size();
    }
    std::fflush(nullptr);
    const int status = std::system(line.c_str());
    // Ctrl-C ends only the command, because system() ignores it here. A shell reports it as 128 + 2.
    if ((WIFSIGNALED(status) && (WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGQUIT)) ||
        (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT)) {
      return {ErrorCode::kInterrupted, "the command was interrupted: " + command_};
    }
    *yes = status == 0;
    return {};
  }
  std::string finding() const override { return "the command exits with 0"; }

 private:
  const std::string command_;
  std::string folder_;
};

}  // namespace

Status RestartingWorker::get(Device** device) {
  if (!device_) {
    if (Status status = Device::open(name_, threads_, &device_); !status) return status;
  }
  *device = device_.get();
  return {};
}

bool RestartingWorker::lost(const Status& status) {
  if (status.code() != ErrorCode::kLost) return false;
  device_ = nullptr;
  return true;
}

std::unique_ptr<Test> passes_mismatch(RestartingWorker& worker, std::span<const passes::Pass> passes,
                                      const ir::Tolerance& tolerance) {
  return std::make_unique<Mismatch>(worker, worker, true, passes, tolerance);
}

std::unique_ptr<Test> worker_mismatch(RestartingWorker& worker, RestartingWorker& other,
                                      std::span<const passes::Pass> passes, const ir::Tolerance& tolerance) {
  return std::make_unique<Mismatch>(worker, other, false, passes, tolerance);
}

std::unique_ptr<Test> command(std::string command) { return std::make_unique<Command>(std::move(command)); }

}  // namespace torch_remote::tools::reduce
