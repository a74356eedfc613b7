#include "remote/client/worker_profile.h"

#include <cstring>
#include <span>

#include "remote/wire/wire_generated.h"

namespace torch_remote::remote {

static_assert(static_cast<int>(ProfileCommand::kReadClock) == static_cast<int>(wire::ProfileCommand::ReadClock));
static_assert(static_cast<int>(ProfileCommand::kStart) == static_cast<int>(wire::ProfileCommand::Start));
static_assert(static_cast<int>(ProfileCommand::kStop) == static_cast<int>(wire::ProfileCommand::Stop));

namespace {

void append(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* from, std::vector<std::string>* to) {
  if (from == nullptr) return;
  for (const flatbuffers::String* text : *from) to->push_back(text->str());
}

}  // namespace

void decode_worker_clock(const Frame& reply, uint64_t begin, uint64_t end, WorkerProfile* profile) {
  const auto* message = flatbuffers::GetRoot<wire::ProfileReply>(reply.control.data());
  profile->process = message->process();
  profile->begin = begin;
  profile->end = end;
  profile->clock_least = static_cast<int64_t>(message->sent_ns() - end);
  profile->clock_most = static_cast<int64_t>(message->received_ns() - begin);
}

Status append_worker_profile(const Frame& part, WorkerProfile* profile) {
  const auto* message = flatbuffers::GetRoot<wire::ProfileReply>(part.control.data());
  profile->dropped = message->dropped();
  if (message->programs()) {
    for (const wire::ProfileProgram* program : *message->programs()) {
      WorkerProfile::ProfiledProgram& known = profile->programs.emplace_back();
      known.program = program->program();
      append(program->labels(), &known.labels);
      append(program->runners(), &known.runners);
      append(program->declined(), &known.declined);
      if (program->record_indices())
        known.record_indices.assign(program->record_indices()->begin(), program->record_indices()->end());
      const size_t nodes = known.labels.size();
      if (known.record_indices.size() != nodes || known.runners.size() != nodes || known.declined.size() != nodes) {
        return Status::invalid("remote: the worker's profile of program " + std::to_string(known.program) +
                               " names nodes that the program does not have");
      }
    }
  }
  if (!part.attachment) return {};
  const std::span<const std::byte> bytes = part.attachment->bytes();
  if (bytes.size() % sizeof(wire::ProfileEvent) != 0) {
    return Status::invalid("remote: the worker's profile has " + std::to_string(bytes.size()) +
                           " bytes, which is not a multiple of an event's size");
  }
  const size_t before = profile->events.size();
  profile->events.resize(before + bytes.size() / sizeof(wire::ProfileEvent));
  std::memcpy(profile->events.data() + before, bytes.data(), bytes.size());
  for (const wire::ProfileEvent& event : std::span(profile->events).subspan(before)) {
    if (event.program == wire::ProfileEvent::kMessage) continue;
    if (event.program >= profile->programs.size() || event.node >= profile->programs[event.program].labels.size()) {
      return Status::invalid("remote: the worker's profile has an event of node " + std::to_string(event.node) +
                             " of a program that it does not describe");
    }
  }
  return {};
}

}  // namespace torch_remote::remote
