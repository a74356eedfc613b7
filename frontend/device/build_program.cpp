#include "frontend/device/build_program.h"

#include <fcntl.h>
#include <torch/version.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "frontend/source/source.h"
#include "ir/graph.h"
#include "passes/pass.h"
#include "remote/client/event_log.h"
#include "remote/wire/environment.h"

namespace torch_remote::frontend {

using remote::Event;
using remote::EventLog;

Status open_capture(std::shared_ptr<remote::CaptureWriter>* writer) {
  remote::CaptureOptions options;
  options.torch_version = TORCH_VERSION;
  if (Status status = remote::capture_options(std::getenv("TORCH_REMOTE_CAPTURE"),
                                              std::getenv("TORCH_REMOTE_CAPTURE_LIMIT"), &options);
      !status || options.path.empty()) {
    return status;
  }
  return remote::CaptureWriter::open(options, writer);
}

namespace {

// Times the steps of a build, for a profile.
class BuildSteps {
 public:
  explicit BuildSteps(uint32_t program) : program_(program) { next(); }
  // The next step begins now.
  void next() { began_ = remote::monotonic_ns(); }
  void done(std::string_view name) {
    if (!EventLog::on()) return;
    Event step;
    step.kind = Event::Kind::kPass;
    step.name = name;
    step.program = program_;
    step.begin = began_;
    step.end = remote::monotonic_ns();
    EventLog::add(std::move(step));
    next();
  }

 private:
  const uint32_t program_;
  uint64_t began_ = 0;
};

// Creates the file readable only by this user, and follows no symbolic link. Write errors are ignored.
void write_dump(const std::filesystem::path& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return;
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    text.remove_prefix(static_cast<size_t>(written));
  }
  ::close(file);
}

}  // namespace

Status read_switches(passes::PassContext* context) {
  const char* fusion = std::getenv("TORCH_REMOTE_FUSION");
  context->fusion = fusion == nullptr || *fusion == '\0' || remote::is_enabled("TORCH_REMOTE_FUSION");
  const char* options = std::getenv("TORCH_REMOTE_PASSES");
  if (options == nullptr) return {};
  if (Status status = passes::parse_options(options, context); !status) {
    return Status::invalid("remote: TORCH_REMOTE_PASSES: " + status.message());
  }
  return {};
}

Status build_program(const remote::BuildRequest& request, remote::CaptureWriter* capture,
                     std::vector<uint8_t>* program) {
  static const bool verify = remote::is_enabled("TORCH_REMOTE_VERIFY");
  static const char* const dump = std::getenv("TORCH_REMOTE_DUMP");
  BuildSteps steps(request.program);
  ir::Graph graph;
  if (request.graph != nullptr) {
    graph = *request.graph;
  } else if (Status status = ir::import_trace(*request.trace, *request.survivors, &graph); !status) {
    return status;
  }
  steps.done("import");
  passes::PipelineOptions options;
  options.verify = verify;
  if (request.worker != nullptr) options.context.worker = *request.worker;
  options.context.sample = request.sample;
  options.context.deterministic = request.deterministic;
  if (Status status = read_switches(&options.context); !status) return status;
  options.observe = [&](std::string_view name, const ir::Graph&) {
    if (name != "input") steps.done(name);
  };
  const bool dumps = dump != nullptr && *dump != '\0';
  if (dumps || capture != nullptr) {
    graph.source_lines = describe_sources(request.sources);
  }
  if (capture != nullptr) capture->source_graph(request.program, ir::encode_program(graph));
  if (dumps) {
    const std::filesystem::path folder = std::filesystem::path(dump) / ("program_" + std::to_string(request.program));
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      return Status::invalid("remote: TORCH_REMOTE_DUMP: cannot create " + folder.string() + ": " + error.message());
    }
    options.observe = [observe = std::move(options.observe), &steps, folder, step = 0](std::string_view name,
                                                                                       const ir::Graph& g) mutable {
      observe(name, g);
      write_dump(folder / (std::to_string(step++) + "_" + std::string(name) + ".txt"), ir::print(g));
      steps.next();
    };
  }
  if (Status status = passes::run_pipeline(graph, options); !status) return status;
  graph.source_lines.clear();
  *program = ir::encode_program(graph);
  steps.done("encode");
  return {};
}

}  // namespace torch_remote::frontend
