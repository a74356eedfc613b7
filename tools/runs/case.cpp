#include "tools/runs/case.h"

#include "remote/capture/session_writer.h"

namespace torch_remote::tools {

Status save_case(const RunCase& run, const std::string& path) {
  std::shared_ptr<remote::CaptureWriter> writer;
  if (Status status = remote::CaptureWriter::open({path, UINT64_MAX}, &writer); !status) return status;
  remote::SessionWriter session(std::move(writer));
  std::vector<uint64_t> ids;
  for (const Bytes& bytes : run.inputs) {
    ids.push_back(ids.size() + 1);
    session.upload(ids.back(), bytes);
  }
  ir::Graph sent = run.optimized ? *run.optimized : run.graph;
  sent.source_lines.clear();  // `graph` has them
  session.load(1, &run.graph, sent);
  session.run(1, run.params, ids, ids.size() + 1, {}, run.math_modes);
  return {};
}

}  // namespace torch_remote::tools
