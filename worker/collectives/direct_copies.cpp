#include "worker/collectives/direct_copies.h"

#include <algorithm>
#include <utility>

namespace torch_remote::worker {
namespace {

// A copy takes as long as earlier work does: a lost peer is noticed by the connection.
constexpr std::chrono::hours kNoLimit{24 * 365};

Status damaged() { return Status::invalid("remote: the plan of direct copies is damaged"); }
Status no_pair() {
  return collective_failed(
      "remote: the connection between the two workers of this copy was ended; the next copy makes another one");
}

Label label_of(CollectiveOp op, int64_t number, ir::DType dtype, uint64_t nbytes) {
  Label label;
  label.kind = Label::kPoint;
  label.op = static_cast<uint8_t>(op);
  label.dtype = static_cast<uint8_t>(dtype);
  label.sequence = static_cast<uint64_t>(number);
  label.count = nbytes / std::max(ir::item_size(dtype), 1u);
  return label;
}

Status read_plan(std::string_view text, GroupPlan* plan) {
  if (!read_secret(take_line(text), &plan->secret)) return damaged();
  for (int rank = 0; rank < 2; ++rank) plan->names.emplace_back(take_line(text).substr(0, 100));
  plan->addresses.resize(2);
  const std::string_view address = take_line(text);
  if (!remote::parse_address(address, address, plan->addresses.data()).ok()) return damaged();
  plan->addresses[1].port = 1;  // Not 0: this rank is to be connected.
  return {};
}

// A send: failures are reported by the other end.
class Sent final : public BackgroundWork {
 public:
  explicit Sent(std::shared_ptr<BackgroundWork> work) : work_(std::move(work)) {}
  bool done() const override { return work_->done(); }
  void wait(const std::function<void()>& look) override { work_->wait(look); }
  const Status& status() const override { return good_; }

 private:
  const std::shared_ptr<BackgroundWork> work_;
  const Status good_;
};

// Finds out, once both are connected, whether copies go from device to device. `path` describes their path in words.
Status find_path(Mesh& mesh, int peer, PeerMemory* memory, const OpLimits& limits, bool* between_devices,
                 std::string* path) {
  std::string why;
  if (Status status = PeerCopies::test_access(mesh, peer, memory, limits, &why); !status.ok()) return status;
  *between_devices = why.empty();
  *path = why.empty() ? "from GPU to GPU" : "over the network";
  if (!why.empty() && why != "-") *path += ", as " + why;
  return {};
}

MeshOptions options_of(const GroupPlan& plan, Device* device) {
  return {plan.names, 0, device != nullptr ? &device->memory() : nullptr};
}

}  // namespace

DirectCopies::Pair* DirectCopies::find(int64_t pair) {
  const auto found = pairs_.find(pair);
  return found == pairs_.end() ? nullptr : &found->second;
}

OpLimits DirectCopies::limits_of(const Pair& pair, Interrupted interrupted) {
  OpLimits limits;
  limits.time = kNoLimit;
  limits.interrupted = [ended = pair.ended, interrupted = std::move(interrupted)] {
    return *ended || (interrupted && interrupted());
  };
  return limits;
}

std::string DirectCopies::listen(int64_t pair) {
  std::string answer;
  if (host_.empty()) return "-this worker accepts no connections of other workers; start it with --peer-host HOST";
  Pair made;
  made.waits = true;
  if (Status status = PeerListener::open(host_, &made.listener); !status.ok())
    return answer.append("-").append(status.message());
  answer.append("+").append(made.listener->address().text());
  close(pair, true, nullptr);
  pairs_.emplace(pair, std::move(made));
  return answer;
}

Status DirectCopies::accept(int64_t pair, std::string_view plan, Interrupted interrupted, Work* work) {
  Pair* const found = find(pair);
  if (found == nullptr || !found->listener || found->queue) return no_pair();
  GroupPlan group;
  if (Status status = read_plan(plan, &group); !status.ok()) return status;
  found->queue = std::make_shared<OpQueue>(0, 2, on_done_, options_of(group, device_));
  found->connected = found->queue->connect([listener = found->listener.get(), group = std::move(group),
                                            limits = limits_of(*found, std::move(interrupted)), memory = peer_memory(),
                                            between_devices = found->between_devices](Mesh& mesh) {
    Status status = worker::join(*listener, group, limits, mesh);
    std::string path;
    if (status.ok()) status = find_path(mesh, 1, memory, limits, between_devices.get(), &path);
    return status.ok() ? status : mesh.fail(status);
  });
  *work = std::make_shared<Sent>(found->connected);
  return {};
}

Status DirectCopies::connect(int64_t pair, std::string_view plan, Interrupted interrupted,
                             std::function<void(const std::string& answer)> answered, Work* work) {
  if (host_.empty()) {
    answered("-this worker connects to no other workers; start it with --peer-host HOST");
    return {};
  }
  GroupPlan group;
  if (Status status = read_plan(plan, &group); !status.ok()) return status;
  group.rank = 1;
  close(pair, true, nullptr);
  Pair& made = pairs_[pair];
  made.queue = std::make_shared<OpQueue>(1, 2, on_done_, options_of(group, device_));
  OpLimits limits = limits_of(made, std::move(interrupted));
  limits.time = kConnectTimeout;
  *work = made.queue->connect([group = std::move(group), limits = std::move(limits), answered = std::move(answered),
                               memory = peer_memory(), between_devices = made.between_devices](Mesh& mesh) -> Status {
    Status status = worker::join_rank(group, 0, limits, mesh);
    std::string path;
    if (status.ok()) status = find_path(mesh, 0, memory, limits, between_devices.get(), &path);
    answered(status.ok() ? "+" + path : "-" + status.message());
    if (!status.ok()) std::ignore = mesh.fail(status);
    return {};
  });
  made.connected = *work;
  return {};
}

bool DirectCopies::is_between_devices(int64_t pair) {
  Pair* const found = find(pair);
  if (found == nullptr || !found->connected || peer_memory() == nullptr) return false;
  found->connected->wait(nullptr);
  if (!*found->between_devices) return false;
  if (!found->peers) found->peers = std::make_unique<PeerCopies>(*device_, found->queue, found->other());
  return true;
}

Status DirectCopies::send_from(int64_t pair, int64_t number, ir::DType dtype, const void* data, uint64_t nbytes,
                               Interrupted interrupted) {
  Pair& found = *find(pair);
  const Label label = label_of(CollectiveOp::kCopy, number, dtype, nbytes);
  const Status status = found.peers->send(label, data, nbytes, limits_of(found, std::move(interrupted)));
  if (!status.ok()) send_failure(pair, number, status);
  return {};
}

Status DirectCopies::receive_to(int64_t pair, int64_t number, ir::DType dtype, void* data, uint64_t nbytes,
                                Interrupted interrupted, const std::function<void()>& look) {
  Pair& found = *find(pair);
  found.asked = number;
  const Label label = label_of(CollectiveOp::kCopy, number, dtype, nbytes);
  return found.peers->receive(label, data, nbytes, limits_of(found, std::move(interrupted)), look);
}

Status DirectCopies::send(int64_t pair, int64_t number, ir::DType dtype, std::span<const std::byte> bytes,
                          std::shared_ptr<void> keep, Interrupted interrupted, Work* work) {
  Pair* const found = find(pair);
  if (found == nullptr || !found->queue) return {};  // Then no receive waits for it, either.
  const Label label = label_of(CollectiveOp::kCopy, number, dtype, bytes.size());
  *work = std::make_shared<Sent>(
      found->queue->send({found->other(), label, bytes}, limits_of(*found, std::move(interrupted)), std::move(keep)));
  return {};
}

Status DirectCopies::receive(int64_t pair, int64_t number, ir::DType dtype, std::span<std::byte> bytes,
                             std::shared_ptr<void> keep, Interrupted interrupted, Work* work) {
  Pair* const found = find(pair);
  if (found == nullptr || !found->queue) return no_pair();
  found->asked = number;
  Incoming message;
  message.peer = found->other();
  message.label = label_of(CollectiveOp::kCopy, number, dtype, bytes.size());
  message.bytes = bytes;
  *work = found->queue->receive(message, limits_of(*found, std::move(interrupted)), [keep = std::move(keep)](int) {});
  return {};
}

void DirectCopies::send_failure(int64_t pair, int64_t number, const Status& why) {
  Pair* const found = find(pair);
  if (found == nullptr || !found->queue) return;
  std::string text = (why.exception_type().empty() ? "RuntimeError" : why.exception_type()) + "\n";
  text += why.message().substr(0, Mesh::kMostText);
  const auto keep = std::make_shared<std::string>(std::move(text));
  const Label label = label_of(CollectiveOp::kSkipped, number, ir::DType::kUInt8, keep->size());
  (void)found->queue->send({found->other(), label, std::as_bytes(std::span(*keep))}, limits_of(*found, nullptr), keep);
}

void DirectCopies::drop(int64_t pair, int64_t number, ir::DType dtype, uint64_t nbytes) {
  Pair* const found = find(pair);
  if (found == nullptr || !found->queue || number <= found->asked) return;
  const Label label = label_of(CollectiveOp::kCopy, number, dtype, nbytes);
  if (is_between_devices(pair)) return found->peers->drop(label, limits_of(*found, nullptr));
  Incoming message;
  message.peer = found->other();
  message.label = label;
  message.dropped = nbytes;
  (void)found->queue->receive(message, limits_of(*found, nullptr), nullptr);
}

void DirectCopies::close(int64_t pair, bool now, const std::function<void()>& look) {
  Pair* const found = find(pair);
  if (found == nullptr) return;
  if (found->peers) found->peers->finish_reading();
  if (!now && found->queue) found->queue->wait_all(look);
  *found->ended = true;
  pairs_.erase(pair);
}

void DirectCopies::end() {
  for (auto& [number, pair] : pairs_) *pair.ended = true;
  pairs_.clear();
}

}  // namespace torch_remote::worker
