#include "worker/shadow/reference.h"

#include <cstring>
#include <utility>

#include "remote/wire/delta.h"
#include "worker/session/session.h"

namespace torch_remote::worker {
namespace {

// Copies the contents of a buffer, which are in this process's memory.
Status take(Session& session, uint64_t id, Bytes* bytes) {
  const Buffers::Entry* const entry = session.buffers().find(id);
  if (entry == nullptr) return Status::internal("remote: the reference lacks a result");
  if (entry->failure || entry->check) return (entry->failure ? entry->failure : entry->check)->status;
  bytes->resize(entry->memory->nbytes());
  if (!bytes->empty()) std::memcpy(bytes->data(), entry->memory->data(), bytes->size());
  return {};
}

}  // namespace

Status Reference::open(const ReferenceOpener& opener, std::unique_ptr<Reference>* reference) {
  std::unique_ptr<Reference> made(new Reference);
  if (Status status = opener(&made->opened_); !status.ok()) return status;
  *reference = std::move(made);
  return {};
}

Status Reference::run(const IsolatedStep& step, std::span<const Bytes> inputs, ir::MathModes math_modes,
                      StepResults* results) {
  Session session(opened_.device.get(), &opened_.runners);
  const std::vector<uint8_t> program = ir::encode_program(step.graph);
  session.load_program(1, std::as_bytes(std::span(program)));
  std::vector<uint64_t> ids;
  for (const Bytes& bytes : inputs) {
    ids.push_back(ids.size() + 1);
    const auto copy = std::make_shared<Bytes>(bytes);
    if (Status status = session.buffers().upload(ids.back(), *copy, copy); !status.ok()) return status;
  }
  RunRequest request;
  request.program = 1;
  request.first_result_id = ids.size() + 1;
  request.sequence = 1;
  request.reset_delta = true;
  request.math_modes = math_modes;
  remote::LastRun last;
  std::vector<uint8_t> params, bindings;
  remote::encode_params(step.params, last.params, params);
  remote::encode_bindings(ids, request.first_result_id, last.bindings, bindings);
  request.params = params;
  request.bindings = bindings;
  std::vector<int64_t> result_words;
  FailurePtr failure;
  Status status = session.run(request, &result_words, &failure);
  if (status.ok() && failure) status = failure->status;
  results->inputs.resize(ids.size());
  results->created.resize(step.created.size());
  for (size_t i = 0; i < ids.size() && status.ok(); ++i) status = take(session, ids[i], &results->inputs[i]);
  for (size_t i = 0; i < results->created.size() && status.ok(); ++i)
    status = take(session, ids.size() + 1 + i, &results->created[i]);
  return status;
}

}  // namespace torch_remote::worker
