#include "frontend/record/direct_copy.h"

#include <ATen/EmptyTensor.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "frontend/device/device_state.h"
#include "frontend/device/restore.h"
#include "frontend/device/tensor.h"
#include "frontend/device/without_gil.h"
#include "frontend/record/failure_observer.h"
#include "frontend/record/flush_log.h"
#include "frontend/record/recorder.h"
#include "frontend/record/requests.h"
#include "frontend/record/storages.h"
#include "ir/ops/op_table.h"

namespace torch_remote::frontend {
namespace {

using at::Tensor;
using c10::DeviceIndex;
using c10::IValue;
using ir::ArgKind;

constexpr int64_t kAnswerBytes = 512;                     // bytes of a worker's answer
constexpr int64_t kFirstConnectionId = int64_t{1} << 32;  // process groups have ids below it
constexpr size_t kSecretBytes = 32;                       // bytes
constexpr std::string_view kReceive = "remote_c10d::copy_receive";

// Declares the ops; worker/collectives/collective_runner.cpp defines their arguments.
const ir::OpDesc& op(std::string_view name, const std::vector<ir::OpaqueArg>& args) {
  const bool writes = std::ranges::any_of(args, &ir::OpaqueArg::writes);
  const uint32_t flags = writes ? uint32_t{ir::kOpInPlace} : 0;
  return ir::op_desc(ir::register_opaque(name, args, {}, flags));
}

struct Ops {
  const ir::OpaqueArg written{"tensor", ArgKind::kTensor, true}, read{"tensor", ArgKind::kTensor},
      pair{"pair", ArgKind::kInt}, number{"number", ArgKind::kInt};
  const ir::OpDesc& listen = op("remote_c10d::copy_listen", {written, pair});
  const ir::OpDesc& accept = op("remote_c10d::copy_accept", {read, pair});
  const ir::OpDesc& connect = op("remote_c10d::copy_connect", {written, read, pair});
  const ir::OpDesc& send = op("remote_c10d::copy_send", {read, pair, number});
  const ir::OpDesc& receive = op(kReceive, {written, pair, number});
  const ir::OpDesc& leave = op("remote_c10d::copy_leave", {read, pair, number});
};

const Ops& ops() {
  static const auto* all = new Ops;
  return *all;
}

// The connection between the workers of two devices.
struct Link {
  std::mutex mutex;
  std::array<DeviceIndex, 2> devices{};
  std::array<uint64_t, 2> sessions{};     // sessions for which the members below hold; 0: not tried yet
  int64_t pair = 0;                       // id of the connection; 0: none
  std::string why;                        // why there is no connection
  std::string transport;                  // transport of the connection
  int64_t copies = 0;                     // number of copies over the connection
  std::atomic<bool> reconnect{false};     // a copy failed or was cancelled: connect again
  std::atomic<bool> skip_pending{false};  // and do not wait for pending copies
};

struct Path {
  std::atomic<uint64_t> direct{0}, relayed{0};
  std::atomic<bool> used{false};  // a direct copy was ever made
  std::mutex mutex;
  std::string why;
  std::string transport;
};

struct State {
  std::array<std::array<Link, kMaxDevices>, kMaxDevices> links;  // the lower index first
  std::array<std::array<Path, kMaxDevices>, kMaxDevices> paths;  // from, to
  std::atomic<int64_t> next_pair{kFirstConnectionId};
};

State& state() {
  static auto* instance = new State;
  return *instance;
}

Link& link_of(DeviceIndex a, DeviceIndex b) { return state().links[std::min(a, b)][std::max(a, b)]; }

void record(const ir::OpDesc& op, const std::vector<IValue>& args) {
  Recorder::get(args[0].toTensor().device().index()).record(op, args.data(), {}, {}, std::nullopt);
}

void send_recorded(DeviceIndex device) { Recorder::get(device).flush_own("copy between devices"); }

std::string name_of(DeviceIndex device) { return "remote:" + std::to_string(device); }

// Records an op whose result is the worker's answer, and waits for it.
std::string ask(DeviceIndex device, const ir::OpDesc& op, const std::vector<IValue>& rest) {
  const Tensor answer = make_contiguous_tensor({kAnswerBytes}, c10::ScalarType::Byte, device);
  std::vector<IValue> args{answer};
  args.insert(args.end(), rest.begin(), rest.end());
  record(op, args);
  std::string text(kAnswerBytes, '\0');
  read_tensor(answer, text.data(), "the workers' first copy");
  return text.substr(0, std::min(text.find('\0'), text.size()));
}

Tensor plan_on(DeviceIndex device, const std::string& text) {
  const auto size = static_cast<int64_t>(text.size());
  const Tensor bytes = at::detail::empty_cpu({size}, c10::ScalarType::Byte);
  std::ranges::copy(text, static_cast<char*>(bytes.mutable_data_ptr()));
  return upload_tensor(bytes, device);
}

void leave(DeviceIndex device, int64_t pair, bool skip_pending) {
  const Tensor unused = plan_on(device, "-");
  record(ops().leave, {unused, pair, int64_t{skip_pending}});
  send_recorded(device);
}

std::string new_secret() {
  std::array<uint8_t, kSecretBytes> bytes{};
  TORCH_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
              "remote: the system has no random numbers");
  std::string digits;
  for (const uint8_t byte : bytes) digits.append({"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]});
  return digits;
}

// Lets the worker of `other` connect to the worker of `waits`, which listens. If that fails, returns false and appends
// the reason to *why.
bool connect_to(DeviceIndex waits, DeviceIndex other, int64_t pair, std::string* why, std::string* transport) {
  const auto refused = [&](DeviceIndex device, const std::string& answer) {
    *why += (why->empty() ? "" : "; ") + name_of(device) + ": " + (answer.empty() ? "no answer" : answer.substr(1));
    return false;
  };
  const std::string address = ask(waits, ops().listen, {pair});
  if (!address.starts_with('+')) return refused(waits, address);
  const std::string plan = new_secret() + "\n" + name_of(waits) + "\n" + name_of(other) + "\n" + address.substr(1);
  const Tensor here = plan_on(waits, plan);
  record(ops().accept, {here, pair});
  send_recorded(waits);
  const std::string answer = ask(other, ops().connect, {plan_on(other, plan), pair});
  if (answer.starts_with('+')) {
    *transport = answer.substr(1);
    return true;
  }
  leave(waits, pair, /*skip_pending=*/true);
  leave(other, pair, /*skip_pending=*/true);
  return refused(other, answer);
}

// Connects the two workers if that was not tried yet, or if the connection must be renewed. Requires the link's mutex.
void update(Link& link, DeviceIndex from, DeviceIndex to) {
  link.devices = {std::min(from, to), std::max(from, to)};
  const std::array<uint64_t, 2> sessions{client(link.devices[0])->connection().session(),
                                         client(link.devices[1])->connection().session()};
  const bool reconnect = link.reconnect.exchange(false), skip_pending = link.skip_pending.exchange(false);
  if (sessions == link.sessions && !(reconnect && link.pair != 0)) return;
  const std::array<uint64_t, 2> before = std::exchange(link.sessions, {});
  const int64_t left = std::exchange(link.pair, 0);
  link.copies = 0;
  for (size_t i = 0; i < 2 && left != 0; ++i) {
    if (sessions[i] == before[i]) leave(link.devices[i], left, sessions != before || skip_pending);
  }
  std::string why;
  for (const auto& [waits, other] : {std::pair(to, from), std::pair(from, to)}) {
    const int64_t pair = state().next_pair.fetch_add(1);
    if (!connect_to(waits, other, pair, &why, &link.transport)) continue;
    link.pair = pair;
    break;
  }
  link.why = std::move(why);
  link.sessions = sessions;
}

// The reason why a copy must go through this process, whatever the workers support; null if there is none.
const char* refused(DeviceIndex from, DeviceIndex to) {
  if (sync_each_op()) return "TORCH_REMOTE_SYNC=1 runs each op alone";
  const char* capture = std::getenv("TORCH_REMOTE_CAPTURE");
  if (capture != nullptr && *capture != '\0') return "a session that is captured has all of its bytes";
  for (const DeviceIndex device : {from, to}) {
    RestoreOptions options;
    if (restore_options(device, &options).ok() && options.replay) {
      return "restore='replay': what another worker sent could not be sent again";
    }
    if (Recorder::get(device).capture().is_on()) return "torch.remote.trace() keeps what can be run again";
  }
  return nullptr;
}

bool relay(DeviceIndex from, DeviceIndex to, const std::string& why) {
  Path& path = state().paths[from][to];
  ++path.relayed;
  const std::lock_guard lock(path.mutex);
  path.why = why;
  return false;
}

bool has_failed_copy(const remote::OpError& error) {
  return error.op == kReceive ||
         std::ranges::any_of(error.more_errors, [](const remote::OpError& other) { return other.op == kReceive; });
}

// Collects the failures of a device, including those of recorded ops that were not sent yet. Returns false if there are
// none, or if the device cannot be asked.
bool take_failures(DeviceIndex device, remote::OpError* error) {
  const std::shared_ptr<remote::Client> worker = running_client(device);
  if (worker == nullptr || !worker->connection().health().ok()) return false;  // its next use raises it
  try {
    Recorder::get(device).flush("a copy failed");
  } catch (...) {  // the next use of that device raises it
    return false;
  }
  (void)worker->synchronize(keep_waiting, error);
  return !error->status.ok();
}

class Observer final : public FailureObserver {
 public:
  Observer() { failure_observer = this; }

  void raises(DeviceIndex device, remote::OpError& error) override {
    std::array<bool, kMaxDevices> seen{};
    seen[device] = true;
    std::deque<DeviceIndex> failed;
    if (has_failed_copy(error)) failed.push_back(device);
    for (; !failed.empty(); failed.pop_front()) {
      for (int i = 0; i < device_count(); ++i) {
        const auto other = static_cast<DeviceIndex>(i);
        if (other != failed.front()) link_of(failed.front(), other).reconnect = true;
        remote::OpError cause;
        if (seen[i] || !state().paths[i][failed.front()].used) continue;
        seen[i] = true;
        if (!take_failures(other, &cause)) continue;
        if (has_failed_copy(cause)) failed.push_back(other);
        error.omitted_errors += std::exchange(cause.omitted_errors, 0);
        const std::vector<remote::OpError> more_errors = std::exchange(cause.more_errors, {});
        error.more_errors.push_back(std::move(cause));
        error.more_errors.insert(error.more_errors.end(), more_errors.begin(), more_errors.end());
      }
    }
  }
  void cancels(DeviceIndex device) noexcept override {
    for (int other = 0; other < kMaxDevices; ++other) {
      if (other == device) continue;
      Link& link = link_of(device, static_cast<DeviceIndex>(other));
      link.skip_pending = true;
      link.reconnect = true;
    }
  }
};
const Observer observer;

}  // namespace

bool copy_directly(const Tensor& to, const Tensor& from) {
  const DeviceIndex source = from.device().index(), destination = to.device().index();
  if (const char* why = refused(source, destination)) return relay(source, destination, why);
  const WithoutGil without_gil;
  Link& link = link_of(source, destination);
  const std::lock_guard lock(link.mutex);
  update(link, source, destination);
  if (link.pair == 0) return relay(source, destination, link.why);
  const int64_t number = ++link.copies;
  Path& path = state().paths[source][destination];
  path.used = true;
  try {
    // Send both ops now, the send first. So a receive only ever waits for a send that is already issued.
    record(ops().send, {from, link.pair, number});
    send_recorded(source);
    record(ops().receive, {to, link.pair, number});
    send_recorded(destination);
  } catch (...) {  // one of the two ops may be missing
    link.reconnect = link.skip_pending = true;
    for (const DeviceIndex device : {source, destination}) {
      try {
        leave(device, link.pair, /*skip_pending=*/true);
      } catch (...) {  // its worker is lost, or the user pressed Ctrl-C
        continue;
      }
    }
    throw;
  }
  ++path.direct;
  const std::lock_guard path_lock(path.mutex);
  path.transport = link.transport;
  return true;
}

std::vector<CopyPath> copy_paths() {
  std::vector<CopyPath> all;
  for (int from = 0; from < kMaxDevices; ++from) {
    for (int to = 0; to < kMaxDevices; ++to) {
      Path& path = state().paths[from][to];
      if (path.direct == 0 && path.relayed == 0) continue;
      const std::lock_guard lock(path.mutex);
      all.push_back({static_cast<DeviceIndex>(from), static_cast<DeviceIndex>(to), path.direct, path.relayed, path.why,
                     path.transport});
    }
  }
  return all;
}

void reset_copy_paths() {
  for (auto& paths : state().paths) {
    for (Path& path : paths) {
      const std::lock_guard lock(path.mutex);
      path.direct = path.relayed = 0;
      path.why.clear();
      path.transport.clear();
    }
  }
}

}  // namespace torch_remote::frontend
