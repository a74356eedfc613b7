#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "ir/status.h"
#include "remote/wire/wire_generated.h"
#include "worker/session/failure.h"

// Helpers to decode a client's messages, which are not trusted, and to encode the failures in replies.
namespace torch_remote::worker {

inline Status damaged(const char* what) {
  return Status::invalid(std::string("remote: the client sent a damaged ") + what + " message");
}

// The failure of a message, outside of any program.
inline FailurePtr make_failure(Status status, uint64_t sequence) {
  return std::make_shared<Failure>(Failure{std::move(status), 0, 0, sequence});
}

// Null: there is no failure.
inline flatbuffers::Offset<wire::Error> encode(flatbuffers::FlatBufferBuilder& builder, const FailurePtr& failure) {
  if (!failure) return 0;
  const Status& status = failure->status;
  return wire::CreateErrorDirect(builder, static_cast<uint8_t>(status.code()), status.exception_type().c_str(),
                                 status.message().c_str(), failure->program, failure->record, failure->sequence,
                                 failure->skipped_updates, failure->reported);
}

}  // namespace torch_remote::worker
