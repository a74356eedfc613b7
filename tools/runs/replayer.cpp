#include "tools/runs/replayer.h"

#include "remote/wire/wire.h"

namespace torch_remote::tools {

using namespace remote;

// Captured errors may come later than the runs that caused them, and so may ours. So errors are matched by their
// messages at the end.
void Replayer::expect(const std::optional<CapturedError>& error) {
  if (error) expected_.insert(error->status.message());
}

void Replayer::record_error(const WorkerError& error) {
  if (!error) return;
  failed_ = true;
  if (recorded_.insert(error->status.message()).second) errors_.push_back(error->status.message());
}

Status Replayer::perform(const CaptureEvent& event, Bytes* answer) {
  failed_ = false;
  if (const auto* load = std::get_if<ProgramEvent>(&event.what)) return this->load(load->program);
  if (const auto* run = std::get_if<RunEvent>(&event.what)) return this->run(*run);
  if (const auto* read = std::get_if<ReadEvent>(&event.what)) return this->read(*read, answer);
  if (const auto* upload = std::get_if<UploadEvent>(&event.what)) {
    Buffer buffer{0, upload->bytes.size()};
    if (Status status = device_.upload(upload->bytes, &buffer.id); !status) return status;
    buffers_[upload->buffer] = buffer;
    ++counts_.uploads;
    counts_.bytes_uploaded += upload->bytes.size();
  } else if (const auto* free = std::get_if<FreeEvent>(&event.what)) {
    for (const uint64_t id : free->buffers) this->free(id);
  } else if (const auto* synchronize = std::get_if<SynchronizeEvent>(&event.what)) {
    expect(synchronize->error);
    WorkerError error;
    if (Status status = device_.synchronize(&error); !status) return status;
    record_error(error);
  } else {
    expect(std::get<ErrorEvent>(event.what).error);
  }
  return {};
}

Status Replayer::finish() {
  WorkerError error;
  if (Status status = device_.synchronize(&error); !status) return status;
  record_error(error);
  new_errors_.clear();
  for (const std::string& message : errors_) {
    if (!expected_.contains(message)) new_errors_.push_back(message);
  }
  return {};
}

Status Replayer::load(const CapturedProgramPtr& program) {
  ++counts_.programs;
  return device_.load({program, &program->graph}, &programs_[program->number]);
}

bool Replayer::inputs(const RunEvent& run, Inputs* inputs) const {
  *inputs = {};
  for (const uint64_t id : run.inputs) {
    const auto found = buffers_.find(id);
    if (found == buffers_.end()) return false;
    inputs->ids.push_back(found->second.id);
    inputs->nbytes.push_back(found->second.nbytes);
  }
  return true;
}

Status Replayer::extract(const RunEvent& run, RunCase* found) {
  Inputs inputs;
  if (!this->inputs(run, &inputs)) return Status::invalid("an input of the run is not in the capture");
  *found = {run.program->source.value_or(run.program->graph), run.program->graph, run.params, {}, run.math_modes};
  found->inputs.resize(inputs.ids.size());
  for (size_t i = 0; i < inputs.ids.size(); ++i) {
    WorkerError error;
    if (Status status = device_.read(inputs.ids[i], inputs.nbytes[i], &found->inputs[i], &error); !status) {
      return status;
    }
    if (error) return Status::invalid("an input of the run cannot be read: " + error->status.message());
  }
  return {};
}

Status Replayer::run(const RunEvent& event) {
  const CapturedProgram& program = *event.program;
  expect(event.error);
  Inputs inputs;
  if (!this->inputs(event, &inputs)) {
    ++counts_.left_out;
    for (const uint64_t id : event.freed_ids) free(id);
    return {};
  }
  std::vector<int64_t> values;
  if (Status status = ir::evaluate(program.graph, event.params.data(), &values); !status) return status;
  uint64_t first_result_id;
  ResultWords result_words;
  WorkerError error;
  const LoadedGraph& loaded = programs_[program.number];
  device_.set_math_modes(event.math_modes);
  if (Status status = device_.run(loaded, event.params, inputs.ids, &first_result_id, &result_words, &error); !status)
    return status;
  record_error(error);
  ++counts_.runs;
  counts_.ops += program.graph.nodes.size();
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (!program.graph.buffers[program.inputs[i]].survives) buffers_.erase(event.inputs[i]);
  }
  for (size_t k = 0; k < program.survivors.size(); ++k) {
    const ir::Sym nbytes = program.graph.buffers[program.survivors[k]].nbytes;
    buffers_[event.first_result_id + k] = {first_result_id + k,
                                           nbytes == ir::kNoSym ? 0 : static_cast<uint64_t>(values[nbytes])};
  }
  for (const OutputView& view : dynamic_results(program.graph, result_words)) {
    uint64_t last = 0;
    bool empty = false;
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      empty |= view.sizes[d] == 0;
      last += static_cast<uint64_t>(view.sizes[d] - 1) * static_cast<uint64_t>(view.strides[d]);
    }
    buffers_[event.first_result_id + view.index].nbytes = empty ? 0 : (last + 1) * ir::item_size(view.dtype);
  }
  for (const uint64_t id : event.freed_ids) free(id);
  return {};
}

Status Replayer::read(const ReadEvent& event, Bytes* answer) {
  expect(event.error);
  const auto found = buffers_.find(event.buffer);
  // a failed run did not make it, or the captured client asked for an unknown buffer
  if (found == buffers_.end()) return {};
  Bytes bytes;
  WorkerError error;
  if (Status status =
          device_.read(found->second.id, event.item_size, event.sizes, event.strides, event.offset, &bytes, &error);
      !status) {
    return status;
  }
  record_error(error);
  ++counts_.reads;
  counts_.bytes_read += bytes.size();
  if (answer) *answer = std::move(bytes);
  return {};
}

void Replayer::free(uint64_t captured) {
  const auto found = buffers_.find(captured);
  if (found == buffers_.end()) return;
  device_.free(found->second.id);
  buffers_.erase(found);
}

}  // namespace torch_remote::tools
