#include "worker/collectives/device_group.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace torch_remote::worker {
namespace {

// A rank's message in meet(): whether it continues and, from rank 0, the id.
struct Note {
  uint8_t good = 0;
  DeviceCollectives::Id id{};
};

// Labels of this file's own messages; tags of users have the highest bit clear. `sequence`: number of the collective
// op, or 0 in meet().
constexpr uint64_t kOwn = uint64_t{1} << 63;
Label note_label(CollectiveOp op, uint64_t sequence, uint64_t step) {
  Label label;
  label.kind = Label::kPoint;
  label.op = static_cast<uint8_t>(op);
  label.sequence = kOwn | (sequence << 2 | step);
  return label;
}

// Receives one message from each other rank, while this one waits for its device.
template <typename T>
class ReceiveFromAll {
 public:
  ReceiveFromAll(Mesh& mesh, const Label& label, const OpLimits& limits) : mesh_(mesh) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      if (rank == mesh.rank()) continue;
      const auto& state = states_.emplace_back(std::make_shared<State>(rank));
      std::vector<Incoming> receives = {{rank, label, std::as_writable_bytes(std::span(&state->note, 1))}};
      mesh.begin({}, std::move(receives), limits, [state](const Status& status, std::span<const Incoming>) {
        state->status = status;
        state->finished = true;
      });
    }
  }

  // Returns when all have arrived.
  Status wait() {
    Status status;
    for (const auto& state : states_) {
      while (!state->finished) mesh_.drive(mesh_.wakes());
      if (status.ok()) status = state->status;
    }
    return status;
  }
  // Calls f(rank, note) for each message that has arrived.
  template <typename F>
  void for_each(F&& f) const {
    for (const auto& state : states_) {
      if (state->finished && state->status.ok()) f(state->rank, state->note);
    }
  }

 private:
  struct State {
    explicit State(int from) : rank(from) {}
    const int rank;
    T note{};
    Status status;
    std::atomic<bool> finished{false};  // Publishes `note` and `status`.
  };
  Mesh& mesh_;
  std::vector<std::shared_ptr<State>> states_;
};

template <typename T>
Status send_to_all(Mesh& mesh, const Label& label, const T& note, const OpLimits& limits) {
  std::vector<Outgoing> sends;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (rank != mesh.rank()) sends.push_back({rank, label, std::as_bytes(std::span(&note, 1))});
  }
  return mesh.exchange(sends, {}, limits);
}

// Drives the connections while a device is waited for.
DeviceCollectives::KeepWaiting looking(Mesh& mesh, const OpLimits& limits, std::function<bool()> wanted) {
  const auto until = std::chrono::steady_clock::now() + limits.time;
  return [&mesh, until, wanted = std::move(wanted), interrupted = limits.interrupted] {
    mesh.drive(mesh.wakes());
    return mesh.status().ok() && wanted() && !(interrupted && interrupted()) &&
           std::chrono::steady_clock::now() < until;
  };
}

}  // namespace

bool all_have_device_collectives(const Mesh& mesh) {
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (rank != mesh.rank() && (mesh.capabilities_of(rank) & kHasDeviceCollectives) == 0) return false;
  }
  return mesh.size() > 1;
}

Status meet(Mesh& mesh, DeviceCollectives& collectives, const OpLimits& limits,
            std::shared_ptr<DeviceCollectives::Group>* group, std::string* why) {
  Note note;
  const Label begins = note_label(CollectiveOp::kMeet, 0, 1), ends = note_label(CollectiveOp::kMeet, 0, 2);
  Status status;
  if (mesh.rank() == 0) {
    status = collectives.make_id(&note.id);
    note.good = status.ok() ? 1 : 0;
    if (const Status told = send_to_all(mesh, begins, note, limits); !told.ok()) return told;
  } else {
    std::vector<Incoming> receives = {{0, begins, std::as_writable_bytes(std::span(&note, 1))}};
    if (const Status came = mesh.exchange({}, receives, limits); !came.ok()) return came;
    if (note.good == 0) status = {ErrorCode::kOpFailed, "rank 0 could not create an id"};
  }
  if (note.good == 0) {  // All ranks know it.
    *why = status.message();
    return {};
  }
  ReceiveFromAll<Note> others(mesh, ends, limits);
  const auto none_gave_up = [&] {
    bool good = true;
    others.for_each([&](int, const Note& theirs) { good = good && theirs.good != 0; });
    return good;
  };
  status = collectives.join(note.id, mesh.rank(), mesh.size(), looking(mesh, limits, none_gave_up), group);
  note.good = status.ok() ? 1 : 0;
  if (const Status told = send_to_all(mesh, ends, note, limits); !told.ok()) return told;
  if (const Status came = others.wait(); !came.ok()) return came;
  others.for_each([&](int rank, const Note& theirs) {
    if (status.ok() && theirs.good == 0) status = {ErrorCode::kOpFailed, mesh.name_of(rank) + " could not join"};
  });
  if (!status.ok()) {
    group->reset();
    *why = status.message();
  }
  return {};
}

Status run_on_devices(Mesh& mesh, DeviceCollectives::Group& group, const Label& label,
                      const DeviceCollectives::Call& call, const OpLimits& limits) {
  // All ranks are here, with the same op.
  const uint8_t here = 1;
  ReceiveFromAll<uint8_t> others(mesh, label, limits);
  Status status = send_to_all(mesh, label, here, limits);
  if (status.ok()) status = others.wait();
  if (!status.ok()) return status;
  const Label done = note_label(static_cast<CollectiveOp>(label.op), label.sequence, 3);
  ReceiveFromAll<uint8_t> ended(mesh, done, limits);
  status = group.run(call, looking(mesh, limits, [] { return true; }), [&mesh] { mesh.wake(); });
  if (!mesh.status().ok()) return mesh.status();  // The mesh's status says more.
  if (!status.ok() && limits.interrupted && limits.interrupted()) {
    return mesh.fail({ErrorCode::kOpFailed, "remote: " + describe(label) + " was cancelled", "RuntimeError"});
  }
  if (!status.ok())
    return mesh.fail({ErrorCode::kOpFailed, "remote: " + status.message() + ", in " + describe(label), "RuntimeError"});
  status = send_to_all(mesh, done, here, limits);
  return status.ok() ? ended.wait() : status;
}

}  // namespace torch_remote::worker
