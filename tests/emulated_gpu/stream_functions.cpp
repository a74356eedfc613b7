#include <algorithm>
#include <set>

#include "tests/emulated_gpu/machine.h"

// Streams, events and captures.
namespace torch_remote::worker::cuda::emulated {
namespace {

Result stream_create(Stream* handle, unsigned flags, int) {
  Call call("cuStreamCreateWithPriority");
  if (!call.ready() || !call.may_synchronize()) return call.error;
  if (flags > kStreamNonBlocking) return Result::kInvalidValue;
  Machine& machine = *call.machine;
  auto stream = std::make_shared<StreamState>();
  stream->gpu = call.gpu;
  stream->random.seed(static_cast<unsigned>(machine.options.seed * 7919 + ++machine.streams_made));
  stream->thread = std::thread([&machine, made = stream.get()] { machine.serve(*made); });
  *handle = machine.streams.add(std::move(stream));
  return Result::kSuccess;
}

// Work that is already queued still executes.
Result stream_destroy(Stream handle) {
  Call call("cuStreamDestroy");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (stream->capture) return call.refuse(*stream->capture);
  stream->closing = true;
  call.machine->closing_streams.push_back(call.machine->streams.take(handle));
  call.machine->changed.notify_all();
  return Result::kSuccess;
}

Result stream_query(Stream handle) {
  Call call("cuStreamQuery");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (stream->capture) return call.refuse(*stream->capture);
  return stream->idle() ? Result::kSuccess : Result::kNotReady;
}

// Waits until the stream has finished its current work. Other threads may enqueue more meanwhile.
void wait_for(Call& call, StreamState& stream) {
  const auto position = std::make_shared<StreamPosition>();
  call.machine->enqueue(stream, {nullptr, nullptr, position});
  call.wait([&] { return position->done; });
}

Result stream_synchronize(Stream handle) {
  Call call("cuStreamSynchronize");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (stream->capture) return call.refuse(*stream->capture);
  wait_for(call, *stream);
  return call.after_wait();
}

Result launch_host_func(Stream handle, HostFunction function, void* data) {
  Call call("cuLaunchHostFunc");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (function == nullptr) return Result::kInvalidValue;
  return call.submit(*stream, {NodeType::kHost,
                               [function, data] {
                                 in_host_function() = true;
                                 function(data);
                                 in_host_function() = false;
                                 return Result::kSuccess;
                               },
                               nullptr});
}

// --- events

Result event_create(Event* handle, unsigned flags) {
  Call call("cuEventCreate");
  if (!call.ready()) return call.error;
  if ((flags & ~(kEventBlockingSync | kEventDisableTiming)) != 0) return Result::kInvalidValue;
  auto event = std::make_shared<EventState>();
  event->gpu = call.gpu;
  event->flags = flags;
  *handle = call.machine->events.add(std::move(event));
  return Result::kSuccess;
}

Result event_destroy(Event handle) {
  Call call("cuEventDestroy");
  if (!call.ready()) return call.error;
  return call.machine->events.take(handle) != nullptr ? Result::kSuccess : Result::kInvalidHandle;
}

Result event_record(Event handle, Stream stream_handle) {
  Call call("cuEventRecord");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(stream_handle);
  EventState* event = stream != nullptr ? call.event(handle) : nullptr;
  if (event == nullptr) return call.error;
  if (event->gpu != stream->gpu) return Result::kInvalidHandle;
  call.check_thread(*stream);
  event->capture = stream->capture;
  event->tail = stream->tail;
  if (stream->capture) return stream->capture->invalid ? Result::kCaptureInvalidated : Result::kSuccess;
  event->position = std::make_shared<StreamPosition>();
  call.machine->enqueue(*stream, {nullptr, nullptr, event->position});
  return Result::kSuccess;
}

Result event_query(Event handle) {
  Call call("cuEventQuery");
  if (!call.ready()) return call.error;
  const EventState* event = call.event(handle);
  if (event == nullptr) return call.error;
  if (event->capture) return Result::kCapturedEvent;
  return event->position == nullptr || event->position->done ? Result::kSuccess : Result::kNotReady;
}

Result event_synchronize(Event handle) {
  Call call("cuEventSynchronize");
  if (!call.ready()) return call.error;
  const EventState* event = call.event(handle);
  if (event == nullptr) return call.error;
  if (event->capture) return Result::kCapturedEvent;
  const StreamPositionPtr position = event->position;
  if (position) call.wait([&] { return position->done; });
  return call.after_wait();
}

Result event_elapsed_time(float* milliseconds, Event begin, Event end) {
  Call call("cuEventElapsedTime");
  if (!call.ready()) return call.error;
  const EventState* first = call.event(begin);
  const EventState* last = first != nullptr ? call.event(end) : nullptr;
  if (last == nullptr) return call.error;
  if (((first->flags | last->flags) & kEventDisableTiming) != 0 || !first->position || !last->position ||
      first->gpu != last->gpu) {
    return Result::kInvalidHandle;
  }
  if (!first->position->done || !last->position->done) return Result::kNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(last->position->time - first->position->time).count();
  return Result::kSuccess;
}

Result join_capture(Capture& capture, StreamState& stream, const EventState& event) {
  if (capture.invalid) return Result::kCaptureInvalidated;
  if (event.capture.get() != &capture) {
    capture.invalid = true;
    return event.capture ? Result::kCaptureMerge : Result::kCaptureIsolation;
  }
  for (const Node* node : event.tail) {
    if (std::ranges::find(stream.tail, node) == stream.tail.end()) stream.tail.push_back(node);
  }
  return Result::kSuccess;
}

Result stream_wait_event(Stream handle, Event event_handle, unsigned flags) {
  Call call("cuStreamWaitEvent");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  const EventState* event = stream != nullptr ? call.event(event_handle) : nullptr;
  if (event == nullptr) return call.error;
  if (flags != 0) return Result::kInvalidValue;
  if (stream->capture) return join_capture(*stream->capture, *stream, *event);
  if (event->capture) {  // the stream joins the capture from here on
    stream->capture = event->capture;
    stream->capture->streams.push_back(stream);
    return join_capture(*stream->capture, *stream, *event);
  }
  if (event->position) call.machine->enqueue(*stream, {nullptr, event->position, nullptr});
  return Result::kSuccess;
}

// --- captures

Result stream_begin_capture(Stream handle, CaptureMode mode) {
  Call call("cuStreamBeginCapture");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (stream->capture) return Result::kCaptureUnsupported;
  stream->capture = std::make_shared<Capture>();
  stream->capture->graph->gpu = stream->gpu;
  stream->capture->origin = stream;
  stream->capture->streams = {stream};
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->tail.clear();
  call.machine->captures.push_back(stream->capture);
  return Result::kSuccess;
}

// Whether all nodes of the capture precede the end of the stream that began it.
bool is_joined(const Capture& capture) {
  std::set<const Node*> before;
  std::vector<const Node*> next = capture.origin->tail;
  while (!next.empty()) {
    const Node* node = next.back();
    next.pop_back();
    if (before.insert(node).second) next.insert(next.end(), node->after.begin(), node->after.end());
  }
  return std::ranges::all_of(capture.streams, [&](const StreamState* stream) {
    return std::ranges::all_of(stream->tail, [&](const Node* node) { return before.contains(node); });
  });
}

Result stream_end_capture(Stream handle, Graph* graph) {
  Call call("cuStreamEndCapture");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  const std::shared_ptr<Capture> capture = stream->capture;
  *graph = nullptr;
  if (capture == nullptr) return Result::kInvalidValue;
  if (capture->origin != stream) {
    capture->invalid = true;
    return Result::kCaptureUnmatched;
  }
  if (capture->mode != CaptureMode::kRelaxed && capture->thread != std::this_thread::get_id()) {
    return Result::kCaptureWrongThread;
  }
  const bool joined = is_joined(*capture);
  for (StreamState* member : capture->streams) {
    member->capture = nullptr;
    member->tail.clear();
  }
  std::erase(call.machine->captures, capture);
  if (capture->invalid) return Result::kCaptureInvalidated;
  if (!joined) return Result::kCaptureUnjoined;
  *graph = call.machine->graphs.add(capture->graph);
  return Result::kSuccess;
}

Result stream_is_capturing(Stream handle, CaptureStatus* status) {
  Call call("cuStreamIsCapturing");
  if (!call.ready()) return call.error;
  const StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  *status = !stream->capture           ? CaptureStatus::kNone
            : stream->capture->invalid ? CaptureStatus::kInvalidated
                                       : CaptureStatus::kActive;
  return Result::kSuccess;
}

// The graph may not be used before the capture ends. Callers may keep node handles.
Result stream_get_capture_info(Stream handle, CaptureStatus* status, uint64_t* id, Graph* graph, const GraphNode** last,
                               size_t* count) {
  Call call("cuStreamGetCaptureInfo");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  *status = !stream->capture           ? CaptureStatus::kNone
            : stream->capture->invalid ? CaptureStatus::kInvalidated
                                       : CaptureStatus::kActive;
  if (*status != CaptureStatus::kActive) return Result::kSuccess;
  *id = reinterpret_cast<uint64_t>(stream->capture.get());
  *graph = nullptr;
  stream->returned_tail.clear();
  for (const Node* node : stream->tail) stream->returned_tail.push_back(handle_of(call, stream->capture->graph, node));
  *last = stream->returned_tail.data();
  *count = stream->returned_tail.size();
  return Result::kSuccess;
}

}  // namespace

void add_stream_functions(Driver& driver) {
  driver.stream_create = stream_create;
  driver.stream_destroy = stream_destroy;
  driver.stream_query = stream_query;
  driver.stream_synchronize = stream_synchronize;
  driver.stream_wait_event = stream_wait_event;
  driver.launch_host_func = launch_host_func;
  driver.stream_begin_capture = stream_begin_capture;
  driver.stream_end_capture = stream_end_capture;
  driver.stream_is_capturing = stream_is_capturing;
  driver.stream_get_capture_info = stream_get_capture_info;
  driver.event_create = event_create;
  driver.event_destroy = event_destroy;
  driver.event_record = event_record;
  driver.event_query = event_query;
  driver.event_synchronize = event_synchronize;
  driver.event_elapsed_time = event_elapsed_time;
}

}  // namespace torch_remote::worker::cuda::emulated
