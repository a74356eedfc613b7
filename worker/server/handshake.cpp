#include "worker/server/handshake.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <string>

#include "remote/wire/environment.h"
#include "remote/wire/message.h"
#include "worker/collectives/collective_runner.h"
#include "worker/device/machine.h"
#include "worker/server/messages.h"

namespace torch_remote::worker {
namespace {

using wire::Type;

Status send_reply(remote::Transport& transport, const OpenSession& session,
                  const flatbuffers::FlatBufferBuilder& builder) {
  wire::Header header;
  header.type = static_cast<uint8_t>(Type::kHelloReply);
  header.session = session.number;
  header.sequence = session.hello;
  return transport.send(header, {builder.GetBufferPointer(), builder.GetSize()}, nullptr);
}

Status refuse(remote::Transport& transport, const OpenSession& session, const Status& why) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(
      wire::CreateHelloReply(builder, encode(builder, make_failure(why, 0)), static_cast<uint32_t>(getpid())));
  Status sent = send_reply(transport, session, builder);
  return sent.ok() ? why : sent;
}

Status open_device(remote::Transport& transport, Inbox& inbox, const ServerOptions& options, int client,
                   OpenSession* session) {
  // An op's number of threads depends on the activity of the client and other processes. For reproducible results the
  // inbox watches neither, and reports that the client rests.
  if (!session->reproducible) {
    inbox.watch_client(client);
    inbox.watch_others();
  }
  DeviceOptions device_options = options;
  device_options.deterministic = session->deterministic;
  Status status = options.open_device(transport, device_options, [&inbox] { return inbox.client_activity(); }, session);
  if (!status.ok()) return status;
  // They come before runners that accept any op.
  session->runners.insert(session->runners.begin(), make_collective_runner({session->device.get(), session->collectives,
                                                                            options.peer_host, &inbox}));
  session->memory_limit = session->device->memory().limit();
  return {};
}

}  // namespace

Status handshake(remote::Transport& transport, Inbox& inbox, const ServerOptions& options, OpenSession* session) {
  remote::Frame frame;
  Status status = inbox.receive(&frame, options.hello_timeout);
  if (status.code() == ErrorCode::kTimeout) {
    return {ErrorCode::kTimeout,
            "remote: received no client hello within " + std::to_string(options.hello_timeout.count()) + " ms"};
  }
  if (!status.ok()) return status;
  const auto* hello = wire::verify<wire::Hello>(frame.control);
  if (frame.header.type != static_cast<uint8_t>(Type::kHello) || !hello) return damaged("client hello");
  session->number = frame.header.session;
  session->hello = frame.header.sequence;
  if (!options.unavailable.ok()) return refuse(transport, *session, options.unavailable);
  session->deterministic = hello->deterministic();
  session->reproducible = session->deterministic || remote::is_enabled("TORCH_REMOTE_WAIT_COMPILE");
  status = open_device(transport, inbox, options, static_cast<int>(hello->process()), session);
  if (!status.ok()) return refuse(transport, *session, status);
  if (!options.inproc) transport.avoid_busy_cores();
  flatbuffers::FlatBufferBuilder builder;
  const auto description = builder.CreateString(descriptions(session->runners));
  const auto processor = builder.CreateString(session->device->description());
  const auto targets = builder.CreateVectorOfStrings(session->targets);
  const auto capabilities = wire::CreateCapabilities(builder, targets, session->group_kind_mask, session->dtype_mask,
                                                     session->memory_limit, processor_cores(), description);
  builder.Finish(wire::CreateHelloReply(builder, 0, static_cast<uint32_t>(getpid()), description, processor,
                                        processor_cores(), session->memory_limit, capabilities));
  spdlog::debug("session with process {}", hello->process());
  return send_reply(transport, *session, builder);
}

}  // namespace torch_remote::worker
